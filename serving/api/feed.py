"""Event streams of runs, as server-sent events. Many watchers of a run cost hardly more than one.

A watcher is a client that follows the events of a run. Each watched run has one feed on a router, which
encodes each event once and holds a window of the encoded events (frames). The router's own store notifies the
feed of new events; for a run of another router, the feed polls the store. A watcher that falls behind the
window, or starts too late for it, gets a separate feed, which reads the store at that watcher's pace.
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
from conductor.run.run import end_task
from serving.api import event_json
from serving.api.record_json import dumps
from serving.edge.exchange import PIECE_BYTES
from serving.fairness import Room, Share
from serving.sessions.following import AnswerDiffers, RetoldAnswer
from serving.sessions.service import Service
from serving.store.rows import Item
from serving.store.store import EventPage

WINDOW_BYTES = 262_144
"""Bytes of events that a feed holds. The excess of a larger event counts in `limits.max_unread_bytes`."""
MOST_PENDING = 1_000
"""Maximum number of new events of a local run that wait to be encoded by its feed."""
PAUSE_S = 0.05
"""Pause between two sends to the watchers."""
SOONEST_S, LATEST_S = 0.1, 0.25
"""Interval for polling a run of another router. It grows while nothing happens."""
SURE_S = 2.0
"""Interval for checking the store for a local run, in case a notification was dropped."""
Json = dict[str, Any]
Frame = tuple[int, bytes]
"""Number of an event, and the event as it is sent."""


class Feed:
    """Encoded events of one run, for all its watchers.

    The feed drops the oldest events that its fastest watcher already has. It reads at most about
    `WINDOW_BYTES` ahead of that watcher.

    Args:
        room: memory budget for the bytes that the feed holds beyond its window.
        account: account of the watcher that opened the feed. Those bytes count against it.
    """

    def __init__(self, service: Service, id: str, room: Room, account: Account) -> None:
        self.frames = deque[Frame]()
        self.n_dropped, self.dropped_seq = 0, 0
        """Number of dropped frames, and the number of the last dropped event."""
        self.is_over = False
        """True if `frames` has the last events of the run."""
        self.is_full = False
        """True if there was no memory for the next events. The feed ends, and watchers reconnect."""
        self.watchers = set[FeedSubscription]()
        self._service, self._id, self._large = service, id, Share(room, account)
        self._newest, self._n_bytes = 0, 0
        self._pending: list[Item] = []
        self._answer = RetoldAnswer()
        self._woken, self._news, self._moved = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._watching = ExitStack()

    @property
    def n_frames(self) -> int:
        """Number of frames so far, dropped ones included."""
        return self.n_dropped + len(self.frames)

    def begin(self) -> None:
        """Start reading events, until the run ends."""
        self._watching.enter_context(self._service.sessions.watch(self._id, self))
        self._task = asyncio.create_task(self._read_on(), name=f"feed of {self._id}")

    async def aclose(self) -> None:
        self._watching.close()
        await end_task(self._task)
        self._large.resize(0)

    def hear(self, items: Sequence[Item]) -> None:
        """Receive new events of a local run. Events that do not fit are read from the store later."""
        if len(self._pending) < MOST_PENDING:
            self._pending += items
        self._woken.set()

    async def wait(self, n_frames: int, timeout_s: float) -> bool:
        """Wait until the feed has more than `n_frames` frames, or has ended. Return False after `timeout_s` seconds."""
        assert self._task is not None, "the feed has begun"
        while self.n_frames <= n_frames and not (self.is_over or self.is_full):
            if self._task.done():
                self._task.result()  # raise its error
            news = asyncio.ensure_future(self._news.wait())
            try:
                done, _ = await asyncio.wait([news, self._task], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
            finally:
                news.cancel()
            if not done:
                return False
        return True

    def trim(self) -> None:
        """Drop frames that the fastest watcher has, down to `WINDOW_BYTES`. Call it after a watcher got
        frames.
        """
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
            if not self._take_pending():
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
            async with asyncio.timeout(PAUSE_S if self._pending else SURE_S if is_here else pause_s):
                await self._woken.wait()

    def _take_pending(self) -> bool:
        """Add the last notification's events, or return False if they do not directly follow."""
        self._woken.clear()
        self._pending = [item for item in self._pending if item.seq > self._newest]
        if not self._pending or self._pending[0].seq > self._newest + 1:
            return False
        items, self._pending = self._pending, []
        self._take(items)
        return True

    def _take(self, items: Sequence[Item]) -> None:
        n_before = len(self.frames)
        for item in items:
            self._newest = max(self._newest, item.seq)
            for body in show_event(item.event, self._answer) if item.run_id == self._id else ():
                frame = b"id: %d\ndata: %s\n\n" % (item.seq, dumps(body))
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
        """Number of bytes beyond the window, for the frames and for the text of the answer so far."""
        return max(0, self._n_bytes + self._answer.n_chars - WINDOW_BYTES)

    async def _page(self) -> EventPage:
        """Return the next events of the store, or none while it is unreachable."""
        try:
            return await self._service.store.events(self._id, self._newest)
        except StoreUnavailable:
            return EventPage([], is_over=False)


class FeedSubscription:
    """Position of one watcher in the feed of a run, after the last event that it has. See `Feeds.watch`."""

    def __init__(self, feeds: "Feeds", id: str, account: Account, after: int) -> None:
        self._feeds, self._id, self._account, self._after = feeds, id, account, after
        self._piece = Share(feeds.room, account)
        self._join()

    @property
    def is_over(self) -> bool:
        """True if the watcher has all events of the run."""
        return self._feed.is_over and self.n_frames == self._feed.n_frames

    async def wait(self, timeout_s: float) -> bool:
        """Wait for new events or for the end of the run. Return False if there are none after `timeout_s` seconds."""
        if self.n_frames < self._feed.n_dropped:  # the feed dropped frames that this watcher still needs
            await self.leave()
            self._join()
        return await self._feed.wait(self.n_frames, timeout_s)

    def take(self) -> bytes | None:
        """Return about `PIECE_BYTES` of frames, or None without memory. Large ones count until the next call."""
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
        """Stop watching. The feed ends with its last watcher."""
        self._piece.resize(0)
        await self._feeds.leave(self._id, self._feed, self)

    def _join(self) -> None:
        self._feed = self._feeds.join(self._id, self._account, self._after)
        self.n_frames = self._feed.n_dropped
        self._feed.watchers.add(self)


class Feeds:
    """Feeds of the runs that are being watched. `room` is for bytes that clients have not read yet."""

    def __init__(self, service: Service, room: Room) -> None:
        self.room = room
        self._service = service

    @asynccontextmanager
    async def watch(self, id: str, account: Account, after: int) -> AsyncGenerator[FeedSubscription]:
        """Watch a run until the end of the block. The watcher already has the events up to number `after`."""
        watch = FeedSubscription(self, id, account, after)
        try:
            yield watch
        finally:
            await watch.leave()

    def join(self, id: str, account: Account, after: int) -> Feed:
        """Return a feed that contains all events of the run after number `after`, for one more watcher."""
        for feed in self._service.sessions.watchers(id):
            if isinstance(feed, Feed) and feed.dropped_seq <= after and not feed.is_full:
                return feed
        feed = Feed(self._service, id, self.room, account)
        feed.begin()
        return feed

    async def leave(self, id: str, feed: Feed, watch: FeedSubscription) -> None:
        """Remove `watch` from `feed`, and close the feed after its last watcher."""
        if watch not in feed.watchers:
            return None
        feed.watchers.discard(watch)
        if feed.watchers:
            return feed.trim()
        return await feed.aclose()


def show_event(event: Event, answer: RetoldAnswer) -> list[Json]:
    """Return an event for watchers as JSON objects. If an answer is written again, show only the new
    part, or all of it as `answer_restarted` if it differs.
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
                return [_restart_json(exc.answer)]
            return _event_json(piece) if piece else []
        case RunFinished():
            before = answer.correct(event)
        case _:
            pass
    return [*([_restart_json(before)] if before else []), *_event_json(event)]


def _restart_json(whole: AnswerDelta) -> Json:
    return (event_json.details(whole) or {}) | {"type": "answer_restarted"}


def _event_json(event: Event) -> list[Json]:
    body = event_json.details(event)
    return [body] if body else []
