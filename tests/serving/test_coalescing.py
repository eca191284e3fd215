"""Coalescing of chunks into fewer messages."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from msgspec.structs import replace

from conductor.model.call import Call
from conductor.model.messages import Message
from serving.deployments.coalescing import coalesce
from serving.workers.vllm import UNREAD_GAP_S, Chunk, EngineCall, VllmWorker


class Tokens:
    """An answer of one word every 0.1 s of a fake clock."""

    def __init__(self, *pieces: str, finish: str | None = "stop") -> None:
        self._pieces, self._finish = pieces, finish
        self.now_s, self.closed = 0.0, False

    async def chunks(self) -> AsyncGenerator[Chunk]:
        try:
            for n, piece in enumerate(self._pieces, 1):
                self.now_s += 0.1
                finish = self._finish if n == len(self._pieces) else None
                yield Chunk(piece, "", finish, 7, 0, n, 0)
        finally:
            self.closed = True

    async def in_messages(self, gap_s: float) -> list[tuple[str, int]]:
        messages = coalesce(self.chunks(), lambda: gap_s, lambda: self.now_s)
        return [(message.text, message.output_tokens) async for message in messages]


async def test_without_a_gap_every_chunk_is_a_message() -> None:
    assert await Tokens("a", "b", "c").in_messages(0) == [("a", 1), ("b", 2), ("c", 3)]


async def test_the_first_text_and_the_last_chunk_are_sent_immediately() -> None:
    assert await Tokens("a", "b", "c", "d").in_messages(60) == [("a", 1), ("bcd", 4)]
    assert await Tokens("", "", "a", "b", "c").in_messages(60) == [("", 1), ("", 2), ("a", 3), ("bc", 5)], (
        "half a letter is no word"
    )


async def test_chunks_since_the_last_message_are_sent_together() -> None:
    assert await Tokens(*"abcdefg").in_messages(0.25) == [("a", 1), ("bcd", 4), ("efg", 7)]


async def test_an_answer_without_a_finish_reason_is_sent_completely() -> None:
    assert await Tokens("a", "b", "c", finish=None).in_messages(60) == [("a", 1), ("bc", 3)]


async def test_leaving_early_closes_the_answer() -> None:
    tokens = Tokens("a", "b", "c")
    async with aclosing(coalesce(tokens.chunks(), lambda: 60, lambda: tokens.now_s)) as messages:
        await anext(messages)
    assert tokens.closed


async def test_an_engine_call_states_whether_its_answer_is_streamed() -> None:
    calls: list[EngineCall] = []

    class Client:
        async def generate(self, call: EngineCall, waiting: object = None) -> AsyncGenerator[Chunk]:
            calls.append(call)
            yield Chunk("all of it", "", "stop", 7, 0, 3, 0)

        async def ready(self, adapters: Sequence[str] = ()) -> bool:
            return True

        async def load(self, adapter: str) -> None:
            pass

    worker = VllmWorker("w", "m", Client())
    call = Call((Message.of("user", "Why?"),))
    for each in (call, replace(call, coalesce=True)):
        async with worker.open(each) as reply:
            assert [delta.text async for delta in reply] == ["all of it"]
    assert [each.gap_s for each in calls] == [0, UNREAD_GAP_S]
