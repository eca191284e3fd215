"""Fairness of the queue, property-tested over any order of events."""

import asyncio
from collections import Counter, deque
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.model.terms import Priority
from serving.dispatch.slots import BATCH_EVERY, FEWEST, FairQueue

PRIORITIES: tuple[Priority, ...] = get_args(Priority)
Event = tuple[str, int]
events = st.lists(
    st.tuples(st.sampled_from(["join", "leave", "give back", "resize"]), st.integers(0, 99)), max_size=60
)


class Crowd:
    """Waiters that take places and give them back on demand."""

    def __init__(self, places: int) -> None:
        self.queue, self.places = FairQueue(places), places
        self.tasks = list[asyncio.Task[None]]()
        self.holders = list[tuple[Priority, str]]()
        """Waiters in the order of their turns."""
        self.n_held = 0
        self.paying = deque[str]()
        """Payers of those who hold a place."""
        self.interactive = Counter[str]()
        """Number of interactive waiters by payer."""

    async def join(self, priority: Priority, payer: str) -> None:
        async def take() -> None:
            waits = Counter({payer: priority == "interactive"})
            self.interactive += waits
            try:
                await self.queue.take(priority, payer)
            finally:
                self.interactive -= waits
            self.holders.append((priority, payer))
            self.paying.append(payer)
            self.n_held += 1

        self.tasks.append(asyncio.create_task(take()))
        await asyncio.sleep(0)

    async def give_back(self) -> None:
        self.n_held -= 1
        self.queue.give_back(self.paying.popleft())
        await settle()

    @property
    def waiting(self) -> list[asyncio.Task[None]]:
        return [task for task in self.tasks if not task.done()]


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


@given(st.integers(1, 12), events)
def test_no_slot_is_lost_or_granted_twice(places: int, happened: list[Event]) -> None:
    async def run() -> None:
        nonlocal places
        crowd, most = Crowd(places), places
        for what, n in happened:
            match what:
                case "join":
                    await crowd.join(PRIORITIES[n % 2], str(n % 3))
                case "leave" if crowd.waiting:
                    crowd.waiting[n % len(crowd.waiting)].cancel()
                    if n % 2 and crowd.n_held:  # in the same turn of the loop
                        await crowd.give_back()
                case "give back" if crowd.n_held:
                    await crowd.give_back()
                case "resize":
                    crowd.queue.resize(places := 1 + n % 12)
                case _:
                    pass
            await settle()
            # Places that are held stay held when the queue shrinks.
            most = max(places, min(most, crowd.n_held))
            assert 0 <= crowd.n_held <= most
            reserve = 1 if places >= FEWEST else 0
            assert crowd.n_held >= places - reserve or not crowd.waiting, "a place is free and somebody waits"
            if crowd.n_held < places:
                assert all(crowd.paying.count(each) for each in crowd.interactive), "it waits and has none"
        while crowd.n_held:
            await crowd.give_back()
        assert not crowd.waiting

    asyncio.run(run())


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=30))
def test_keys_take_turns(payers: list[str]) -> None:
    order = [payer for _, payer in asyncio.run(turns_of([("interactive", each) for each in payers]))]
    remaining, had = Counter(payers), Counter[str]()
    assert Counter(order) == remaining
    for payer in order:
        had[payer] += 1
        waiting = [each for each in remaining if had[each] < remaining[each]]
        assert all(had[payer] - had[each] <= 1 for each in waiting), "somebody had two turns before another"


async def test_a_key_with_more_slots_waits_until_others_have_as_many() -> None:
    crowd = Crowd(4)
    for payer in (*"aaaa", *"aabbb"):
        await crowd.join("interactive", payer)
    for _ in range(4):
        await crowd.give_back()
    assert [payer for _, payer in crowd.holders[4:]] == ["b", "b", "a", "a"]


@pytest.mark.parametrize(("places", "reserve"), [(3, 0), (4, 1), (8, 1), (30, 3)])
async def test_the_last_tenth_is_reserved_for_keys_below_their_share(places: int, reserve: int) -> None:
    crowd = Crowd(places)
    await crowd.join("interactive", "modest")
    await crowd.give_back()
    for _ in range(2 * places):
        await crowd.join("interactive", "flood")
    assert crowd.n_held == places - reserve
    assert (crowd.queue.free("flood"), crowd.queue.free("modest")) == (0, reserve)
    for _ in range(reserve):
        await crowd.join("interactive", "modest")
    assert crowd.paying.count("modest") == reserve
    while crowd.n_held:
        await crowd.give_back()
    assert not crowd.waiting


async def test_a_key_alone_may_use_all_slots() -> None:
    alone, shared = Crowd(8), Crowd(8)
    for _ in range(9):
        await alone.join("interactive", "flood")
    assert (alone.n_held, len(alone.waiting)) == (8, 1)
    await shared.join("interactive", "modest")
    await shared.give_back()
    for _ in range(8):
        await shared.join("interactive", "flood")
    assert shared.n_held == 7
    await asyncio.sleep(shared.queue.lent_after_s + 1)
    await shared.give_back()
    assert (shared.n_held, len(shared.waiting)) == (7, 0)
    await shared.join("interactive", "flood")
    assert shared.n_held == 8


async def test_keys_with_equal_shares_use_all_slots() -> None:
    crowd = Crowd(8)
    for payer in "ab" * 8:
        await crowd.join("interactive", payer)
    assert Counter(crowd.paying) == {"a": 4, "b": 4}


async def test_the_reserve_is_for_interactive_requests() -> None:
    crowd = Crowd(4)
    await crowd.join("interactive", "modest")
    await crowd.give_back()
    for payer in ("flood", "flood", "flood", "other"):
        await crowd.join("batch", payer)
    assert (crowd.n_held, len(crowd.waiting)) == (3, 1)
    await crowd.join("interactive", "modest")
    assert crowd.paying.count("modest") == 1
    while crowd.n_held:
        await crowd.give_back()
    assert not crowd.waiting


async def turns_of(line: list[tuple[Priority, str]]) -> list[tuple[Priority, str]]:
    """Return the order in which `line` gets the only place, which is taken at first."""
    crowd = Crowd(1)
    await crowd.queue.take("interactive", "first")
    crowd.n_held = 1
    crowd.paying.append("first")
    for priority, payer in line:
        await crowd.join(priority, payer)
    while crowd.n_held:
        await crowd.give_back()
    return crowd.holders


@pytest.mark.parametrize("n_batch", [1, 5])
async def test_batch_requests_come_last_but_get_one_slot_in_ten(n_batch: int) -> None:
    line: list[tuple[Priority, str]] = [("batch", "b")] * n_batch + [("interactive", "a")] * (3 * BATCH_EVERY)
    order = [priority for priority, _ in await turns_of(line)]
    assert order[: BATCH_EVERY - 1] == ["interactive"] * (BATCH_EVERY - 1)
    places = [at for at, priority in enumerate(order) if priority == "batch"]
    assert places[:3] == [BATCH_EVERY * n - 1 for n in range(1, min(n_batch, 3) + 1)]


@given(st.lists(st.sampled_from("abc"), max_size=30), st.sampled_from("abcd"))
def test_the_number_of_calls_ahead_is_known_before_waiting(payers: list[str], newest: str) -> None:
    async def run() -> tuple[int, list[str]]:
        crowd = Crowd(1)
        await crowd.queue.take("interactive", "first")
        crowd.n_held = 1
        crowd.paying.append("first")
        for payer in payers:
            await crowd.join("interactive", payer)
        ahead = crowd.queue.ahead(newest)
        await crowd.join("interactive", newest)
        while crowd.n_held:
            await crowd.give_back()
        return ahead, [payer for _, payer in crowd.holders]

    ahead, order = asyncio.run(run())
    own = [at for at, payer in enumerate(order) if payer == newest]
    assert own[-1] == ahead


async def test_a_wait_that_is_cancelled_as_it_gets_its_slot_releases_it() -> None:
    queue = FairQueue(1)
    await queue.take("interactive", "a")
    waiting = asyncio.create_task(queue.take("interactive", "b"))
    await asyncio.sleep(0)
    queue.give_back("a")
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert queue.take_now("interactive", "a")
