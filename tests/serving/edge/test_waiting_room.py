"""Eviction from a full waiting room: the oldest request of the address with the most. Also the number of requests
that start together.
"""

import asyncio
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from serving.edge.exchange import MOST_WAITING, STARTS, StartQueue, Ticket, WaitingRoom
from tests.serving.api.served import listening
from tests.states import until


def filled(places: int, peers: list[str], room_bytes: int = 10**9) -> tuple[WaitingRoom, list[str]]:
    """Return a room that these peers have entered in turn, and the evicted names as `PEER-NUMBER`."""
    room, evictions = WaitingRoom(places, room_bytes), list[str]()
    for number, peer in enumerate(peers):
        room.enter(peer, lambda name=f"{peer}-{number}": evictions.append(name))
    return room, evictions


def test_an_attackers_oldest_requests_are_evicted_first() -> None:
    room, evictions = filled(4, ["slow client", "attacker", "attacker", "attacker", "attacker", "attacker"])
    assert evictions == ["attacker-1", "attacker-2"]
    assert (len(room), room.evicted) == (4, 2)


def test_among_many_addresses_the_oldest_request_is_evicted() -> None:
    assert filled(3, ["a", "b", "c", "d"])[1] == ["a-0"]


def test_over_the_byte_limit_the_address_with_the_most_bytes_is_evicted() -> None:
    evictions: list[str] = []
    room = WaitingRoom(100, room_bytes=1000)
    idle = room.enter("attacker", lambda: evictions.append("idle"))
    tickets = {
        name: room.enter(name.split()[0], lambda name=name: evictions.append(name))
        for name in ("attacker 1", "attacker 2", "client 1")
    }
    room.grow(tickets["client 1"], 300)
    room.grow(tickets["attacker 1"], 350)
    room.grow(tickets["attacker 2"], 400)
    assert evictions == ["attacker 1"]
    room.leave(idle)
    room.leave(tickets["attacker 1"])  # it was evicted, and leaves
    room.grow(tickets["attacker 1"], 10**6)  # its later bytes no longer count
    assert (evictions, len(room)) == (["attacker 1"], 2)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=200), st.integers(1, 12))
def test_the_room_is_never_over_its_limit_and_evicts_the_largest_address(
    moves: list[tuple[str, bool]], places: int
) -> None:
    room, inside = WaitingRoom(places, 10**9), dict[Ticket, str]()

    def evict(peer: str) -> None:
        # The oldest, because dicts keep insertion order.
        ticket = next(ticket for ticket, owner in inside.items() if owner == peer)
        counts = Counter(inside.values())
        assert counts[peer] == max(counts.values())
        del inside[ticket]

    for peer, enters in moves:
        mine = [ticket for ticket, owner in inside.items() if owner == peer]
        if enters:
            ticket = room.enter(peer, lambda peer=peer: evict(peer))
            inside[ticket] = peer
        elif mine:
            room.leave(mine[-1])
            del inside[mine[-1]]
        assert len(room) == len(inside) <= places


async def test_a_few_requests_start_per_event_loop_iteration_in_order() -> None:
    queue, started = StartQueue(), list[int]()
    for n in range(3 * STARTS):
        queue.add("a", lambda n=n: started.append(n))
    counts = list[int]()
    for _ in range(3):
        counts.append(len(started))
        await asyncio.sleep(0)
    assert (counts, started) == ([STARTS, 2 * STARTS, 3 * STARTS], list(range(3 * STARTS)))
    await asyncio.sleep(0)
    queue.add("a", lambda: started.append(-1))
    assert started[-1] == -1, "an idle queue starts a request at once"


async def test_a_sender_does_not_wait_for_another_senders_reads() -> None:
    queue, started = StartQueue(), list[str]()
    for _ in range(100 * STARTS):
        queue.add("flood", lambda: started.append("flood"))
    queue.add("other", lambda: started.append("other"))
    for _ in range(3):
        await asyncio.sleep(0)
    assert "other" in started
    assert len(started) == 4 * STARTS


async def test_a_sender_with_too_many_waiting_reads_gets_a_429_and_keeps_its_connection() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[bytes, bytes]:
        writer.write(b"GET /v1/workflows HTTP/1.1\r\nhost: localhost\r\nx-api-key: flood\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        return head.split()[1], await reader.readexactly(length)

    async with listening(app) as url:
        port = int(url.rpartition(":")[2])
        streams = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2 * MOST_WAITING)]
        answers = [await asyncio.gather(*(ask(*stream) for stream in streams)) for _ in range(2)]
        late = await ask(*streams[-1])
        for _, writer in streams:
            writer.close()
    for each in answers:
        statuses = Counter(status for status, _ in each)
        assert set(statuses) == {b"204", b"429"}
        assert statuses[b"204"] >= MOST_WAITING
    assert all(b"router.max_ongoing_requests" in body for status, body in answers[1] if status == b"429")
    assert late == (b"204", b"")


async def test_a_probe_and_a_post_overtake_a_burst_of_reads() -> None:
    started = list[str]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        started.append(f"{scope['method']} {scope['path']}")
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    reads, overtaking = ["GET /v1/workflows"] * 12 * STARTS, ["GET /healthz", "POST /v1/responses"]
    async with listening(app) as url:
        port = int(url.rpartition(":")[2])
        streams = [await asyncio.open_connection("127.0.0.1", port) for _ in (*reads, *overtaking)]
        for (_, writer), line in zip(streams, (*reads, *overtaking), strict=True):
            writer.write(f"{line} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n".encode())
        await until(lambda: len(started) == len(streams), "every request has started")
        for _, writer in streams:
            writer.close()
    assert max(map(started.index, overtaking)) < len(reads) / 2
