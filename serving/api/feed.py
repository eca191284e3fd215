"""What happens in a run, as server-sent events, for any number of watchers at the cost of one.

A run that somebody watches has one feed here: it is told of news by the router's own store, or looks for them where
another router runs it, and writes each event as bytes once. A feed holds a window of the events. A watcher that is slower
than others by more than that, or comes too late for it, gets a feed of its own, which reads the store as fast as that
watcher does. Knows no request.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from itertools import islice
from typing import Any

from conductor.errors import Overloaded, StoreUnavailable
from conductor.run.events import AnswerDelta, Event, ResultsGiven, RunFinished, RunResumed, StepRestarted
from conductor.run.record import Account
from conductor.run.waiting import end_task
from serving.api import event_json
from serving.api.encode import dumps
from serving.edge.exchange import PIECE_BYTES
from serving.runs.rows import Item
from serving.runs.store import EventPage
from serving.sessions.following import AnswerDiffers, RetoldAnswer
from serving.sessions.service import Service
from serving.shares import Room, Share

WINDOW_BYTES = 262_144
"""Of events that a feed holds. Larger events are held whole, and counted in `limits.max_unread_bytes`."""
MOST_TOLD = 1_000
"""Events of a run of this router that wait for its feed."""
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
    """One run's events, without those that its watchers have got already. It reads no further ahead than the first of them.

    Args:
        service: that has the run, or its store.
        id: of the run.
        room: where its bytes are counted.
        account: of the watcher that it was made for, which holds them.
    """

    def __init__(self, service: Service, id: str, room: Room, account: Account) -> None:
        self.frames = deque[Frame]()
        self.n_dropped, self.dropped_seq = 0, 0
        """How many frames were dropped before those, and the number of the last."""
        self.is_over = False
        """Whether nothing follows `frames`."""
        self.is_full = False
        """Whether there was no room for what follows: the feed ends, and its watchers have to come again."""
        self.watchers = set[Watch]()
        self._service, self._id, self._large = service, id, Share(room, account)
        self._newest, self._n_bytes = 0, 0
        self._told: list[Item] = []
        self._answer = RetoldAnswer()
        self._woken, self._news, self._moved = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._watching = ExitStack()

    @property
    def n_frames(self) -> int:
        """How many there were until now."""
        return self.n_dropped + len(self.frames)

    def begin(self) -> None:
        """Look for events until the run ends."""
        self._watching.enter_context(self._service.sessions.watch(self._id, self))
        self._task = asyncio.create_task(self._read_on(), name=f"feed of {self._id}")

    async def aclose(self) -> None:
        """Look no more."""
        self._watching.close()
        await end_task(self._task)
        self._large.resize(0)

    def hear(self, items: Sequence[Item]) -> None:
        """What has just happened in the run, here. What does not fit is read from the store later."""
        if len(self._told) < MOST_TOLD:
            self._told += items
        self._woken.set()

    async def wait(self, n_frames: int, timeout_s: float) -> bool:
        """Wait for more than `n_frames` frames or the end. Return False after `timeout_s` seconds."""
        assert self._task is not None, "it was begun"
        while self.n_frames <= n_frames and not (self.is_over or self.is_full):
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

    def trim(self) -> None:
        """Drop what the first watcher has got, down to `WINDOW_BYTES`. Call it when a watcher has moved on."""
        first = max((each.n_frames for each in self.watchers), default=0)
        while self._n_bytes > WINDOW_BYTES and self.n_dropped < first:
            self.dropped_seq, frame = self.frames.popleft()
            self.n_dropped += 1
            self._n_bytes -= len(frame)
        self._large.resize(min(self._large.n, self._n_large))
        self._moved.set()

    async def _read_on(self) -> None:
        pause_s = SOONEST_S
        while not (self.is_over or self.is_full):
            n_before = self.n_frames
            if not self._take_told():
                page = await self._page()
                self._take(page.items)
                self.is_over = page.is_over and not self.is_full
            if self.n_frames > n_before or self.is_over or self.is_full:
                self._news.set()
                self._news = asyncio.Event()
                pause_s = SOONEST_S
                await asyncio.sleep(PAUSE_S)
                await self._wait_for_watchers()
                continue
            await self._wait_for_news(pause_s)
            pause_s = min(1.5 * pause_s, LATEST_S)

    async def _wait_for_watchers(self) -> None:
        self.trim()
        while self._n_bytes > WINDOW_BYTES and not (self.is_over or self.is_full):
            self._moved.clear()
            await self._moved.wait()

    async def _wait_for_news(self, pause_s: float) -> None:
        is_here = self._service.sessions.find(self._id) is not None
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
        n_before = len(self.frames)
        for item in items:
            self._newest = max(self._newest, item.seq)
            for shown in shown_events(item.event, self._answer) if item.run_id == self._id else ():
                frame = b"id: %d\ndata: %s\n\n" % (item.seq, dumps(shown))
                self.frames.append((item.seq, frame))
                self._n_bytes += len(frame)
        try:
            self._large.resize(self._n_large)
        except Overloaded:
            self.is_full = True
            while len(self.frames) > n_before:
                self._n_bytes -= len(self.frames.pop()[1])
            self._answer = RetoldAnswer()

    @property
    def _n_large(self) -> int:
        """Bytes beyond what each watcher holds anyway: frames, and the answer that they were made from."""
        return max(0, self._n_bytes + self._answer.n_chars - WINDOW_BYTES)

    async def _page(self) -> EventPage:
        """What the store has; nothing while it is away, and the run goes on all the same."""
        try:
            return await self._service.store.events(self._id, self._newest)
        except StoreUnavailable:
            return EventPage([], is_over=False)


class Watch:
    """One watcher's place in the feed of a run; see `Feeds.watch`.

    Args:
        feeds: of the router.
        id: of the run.
        account: of the watcher.
        after: the number of the last event that it has.
    """

    def __init__(self, feeds: "Feeds", id: str, account: Account, after: int) -> None:
        self._feeds, self._id, self._account, self._after = feeds, id, account, after
        self._piece = Share(feeds.room, account)
        self._join()

    @property
    def is_over(self) -> bool:
        """Whether it has everything."""
        return self._feed.is_over and self.n_frames == self._feed.n_frames

    async def wait(self, timeout_s: float) -> bool:
        """Wait for news or the end. Return False after `timeout_s` seconds."""
        if self.n_frames < self._feed.n_dropped:  # others got what this one has not: it reads for itself
            await self.leave()
            self._join()
        return await self._feed.wait(self.n_frames, timeout_s)

    def take(self) -> bytes | None:
        """Return what is sent next, about a piece, or None if there is no room for it. Each watcher has no more than that in
        memory of its own, until it asks for the next.
        """
        feed, piece, n_bytes = self._feed, list[bytes](), 0
        for seq, frame in islice(feed.frames, max(0, self.n_frames - feed.n_dropped), None):
            if n_bytes >= PIECE_BYTES and seq > self._after:
                break
            if seq > self._after or piece:  # an event of several frames is sent whole
                piece.append(frame)
                n_bytes += len(frame)
            self.n_frames += 1
            self._after = max(self._after, seq)
        try:
            self._piece.resize(n_bytes if n_bytes > 2 * PIECE_BYTES else 0)
        except Overloaded:
            return None
        feed.trim()
        return None if feed.is_full and not piece else b"".join(piece)

    async def leave(self) -> None:
        """Watch no more; the feed ends with its last watcher."""
        self._piece.resize(0)
        await self._feeds.leave(self._id, self._feed, self)

    def _join(self) -> None:
        self._feed = self._feeds.join(self._id, self._account, self._after)
        self.n_frames = self._feed.n_dropped
        self._feed.watchers.add(self)


class Feeds:
    """Those that somebody watches.

    Args:
        service: whose runs.
        room: where bytes of answers are counted that clients have not taken.
    """

    def __init__(self, service: Service, room: Room) -> None:
        self.room = room
        self._service = service

    @asynccontextmanager
    async def watch(self, id: str, account: Account, after: int) -> AsyncGenerator[Watch]:
        """A place in the feed of a run, for one watcher that has the events up to number `after`."""
        watch = Watch(self, id, account, after)
        try:
            yield watch
        finally:
            await watch.leave()

    def join(self, id: str, account: Account, after: int) -> Feed:
        """A feed of the run that has all events after that one, for one more watcher."""
        for feed in self._service.sessions.watchers(id):
            if isinstance(feed, Feed) and feed.dropped_seq <= after and not feed.is_full:
                return feed
        feed = Feed(self._service, id, self.room, account)
        feed.begin()
        return feed

    async def leave(self, id: str, feed: Feed, watch: Watch) -> None:
        """`watch` looks no more at `feed`."""
        if watch not in feed.watchers:
            return None
        feed.watchers.discard(watch)
        if feed.watchers:
            return feed.trim()
        return await feed.aclose()


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
