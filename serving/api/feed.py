"""What happens in a run, as server-sent events, for any number of watchers at the cost of one.

A run that somebody watches has one feed here: it is told of news by the router's own store, or looks for them where
another router runs it, and writes each event as bytes once. Knows no request and no key.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from conductor.errors import StoreUnavailable
from conductor.run.events import AnswerDelta, Event, ResultsGiven, RunFinished, RunResumed, StepRestarted
from conductor.run.waiting import end_task
from serving.api import event_json
from serving.api.encode import dumps
from serving.runs.following import AnswerDiffers, RetoldAnswer
from serving.runs.rows import Item
from serving.runs.service import Service
from serving.runs.store import EventPage

PAUSE_S = 0.05
"""Between two times that watchers are told something."""
SOONEST_S, LATEST_S = 0.1, 0.25
"""How often a run of another router is looked at: less often while nothing happens in it."""
SURE_S = 2.0
"""How often a run of this router is looked at in the store, whatever it told."""
Json = dict[str, Any]
Frame = tuple[int, bytes]
"""An event as it is sent, and its number."""


class Feed:
    """One run's.

    Args:
        service: that has the run, or its store.
        id: of the run.
    """

    def __init__(self, service: Service, id: str) -> None:
        self.frames: list[Frame] = []
        self.is_over = False
        """Whether nothing follows `frames`."""
        self.n_watchers = 0
        self._service, self._id = service, id
        self._newest = 0
        self._told: list[Item] = []
        self._answer = RetoldAnswer()
        self._woken, self._news = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Look for events until the run ends."""
        self._task = asyncio.create_task(self._read_on(), name=f"feed of {self._id}")

    async def aclose(self) -> None:
        """Look no more."""
        await end_task(self._task)

    def hear(self, items: Sequence[Item]) -> None:
        """What has just happened in the run, here."""
        self._told += items
        self._woken.set()

    async def wait(self, n_frames: int, timeout_s: float) -> bool:
        """Wait for more than `n_frames` frames or the end of the run. Return False after `timeout_s` seconds."""
        assert self._task is not None, "it was begun"
        while len(self.frames) <= n_frames and not self.is_over:
            if self._task.done():
                self._task.result()  # what went wrong
            news = asyncio.ensure_future(self._news.wait())
            try:
                done, _ = await asyncio.wait([news, self._task], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
            finally:
                news.cancel()
            if not done:
                return False
        return True

    async def _read_on(self) -> None:
        pause_s = SOONEST_S
        while not self.is_over:
            n_before = len(self.frames)
            if not self._take_told():
                page = await self._page()
                self._take(page.items)
                self.is_over = page.is_over
            if len(self.frames) > n_before or self.is_over:
                self._news.set()
                self._news = asyncio.Event()
                pause_s = SOONEST_S
                await asyncio.sleep(PAUSE_S)
                continue
            await self._wait_for_news(pause_s)
            pause_s = min(1.5 * pause_s, LATEST_S)

    async def _wait_for_news(self, pause_s: float) -> None:
        is_here = self._service.is_running(self._id)
        with suppress(TimeoutError):
            async with asyncio.timeout(PAUSE_S if self._told else SURE_S if is_here else pause_s):
                await self._woken.wait()

    def _take_told(self) -> bool:
        """Take what was told, where it follows what is here; False: the store has to be looked at."""
        self._woken.clear()
        self._told = [item for item in self._told if item.seq > self._newest]
        if not self._told or self._told[0].seq > self._newest + 1:
            return False
        told, self._told = self._told, []
        self._take(told)
        return True

    def _take(self, items: Sequence[Item]) -> None:
        for item in items:
            self._newest = max(self._newest, item.seq)
            for shown in shown_events(item.event, self._answer) if item.run_id == self._id else ():
                self.frames.append((item.seq, b"id: %d\ndata: %s\n\n" % (item.seq, dumps(shown))))

    async def _page(self) -> EventPage:
        """What the store has; nothing while it is away, and the run goes on all the same."""
        try:
            return await self._service.store.events(self._id, self._newest)
        except StoreUnavailable:
            return EventPage([], is_over=False)


class Feeds:
    """Those that somebody watches.

    Args:
        service: whose runs.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._feeds = dict[str, Feed]()
        service.store.on_items = self._hear

    def _hear(self, id: str, items: Sequence[Item]) -> None:
        if (feed := self._feeds.get(id)) is not None:
            feed.hear(items)

    @asynccontextmanager
    async def of(self, id: str) -> AsyncGenerator[Feed]:
        """The feed of a run, for one watcher; it ends with the last one."""
        feed = self._feeds.get(id)
        if feed is None:
            feed = self._feeds[id] = Feed(self._service, id)
            feed.begin()
        feed.n_watchers += 1
        try:
            yield feed
        finally:
            feed.n_watchers -= 1
            if feed.n_watchers == 0:
                self._feeds.pop(id, None)
                await feed.aclose()


def shown_events(event: Event, answer: RetoldAnswer) -> list[Json]:
    """An event as watchers are shown it. Of an answer that is written again, what is new; all of it, as `answer_restarted`,
    where it is another one.
    """
    before: AnswerDelta | None = None
    match event:
        case RunResumed() | StepRestarted():
            answer.begin_again()
        case ResultsGiven():
            answer.begin_next()
        case AnswerDelta():
            try:
                piece = answer.add(event)
            except AnswerDiffers as exc:
                return [_restart_json(exc.said)]
            return _event_json(piece) if piece else []
        case RunFinished():
            before = answer.correct(event)
        case _:
            pass
    return [*([_restart_json(before)] if before else []), *_event_json(event)]


def _restart_json(whole: AnswerDelta) -> Json:
    return (event_json.told(whole) or {}) | {"type": "answer_restarted"}


def _event_json(event: Event) -> list[Json]:
    shown = event_json.told(event)
    return [shown] if shown else []
