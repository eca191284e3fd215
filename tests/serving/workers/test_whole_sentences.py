"""An answer of a small model that reaches its limit of tokens ends with a whole sentence."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from conductor.model.call import AnswerFormat, Call, Sampling
from conductor.model.messages import Message
from conductor.model.reply import Delta, FinishReason
from conductor.model.usage import Usage
from serving.workers.vllm import Chunk, EngineCall, VllmWorker
from serving.workers.whole_sentences import whole_sentences
from tests.serving.api.served import answer_text, served, team

CALL = Call((Message.of("user", "Tell me a story."),), sampling=Sampling(max_output_tokens=40))
WORDS = st.sampled_from(["word ", "A", " is", ". ", ".", "! ", "\n", "3.14", "```", '."', " "])


class Engine:
    """Engine that generates one token in each chunk, until the answer ends or the call's limit is reached."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self.tokens, self.is_open = tokens, False

    async def generate(self, call: EngineCall, waiting: object = None) -> AsyncGenerator[Chunk]:
        most = call.max_tokens or len(self.tokens)
        is_cut, tokens = len(self.tokens) > most, self.tokens[:most]
        self.is_open = True
        try:
            for number, token in enumerate(tokens, 1):
                finish = ("length" if is_cut else "stop") if number == len(tokens) else None
                yield Chunk(token, "", finish, 7, 0, number, 0)
        finally:
            self.is_open = False

    async def ready(self, adapters: Sequence[str] = ()) -> bool:
        return True

    async def load(self, adapter: str) -> None:
        pass


async def read(tokens: Sequence[str], call: Call = CALL, whole: bool = True) -> list[Delta]:
    async with VllmWorker("w", "m", Engine(tokens), whole_sentences=whole).open(call) as reply:
        return [delta async for delta in reply]


def text_of(deltas: Sequence[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


STORY = [*["a "] * 30, "bee", ". ", *["c "] * 20]


async def test_a_cut_answer_ends_with_its_last_sentence_and_says_that_it_was_cut() -> None:
    deltas = await read(STORY)
    assert text_of(deltas) == "a " * 30 + "bee."
    assert deltas[-1].finish is FinishReason.LENGTH
    assert deltas[-1].usage == Usage(7, 40)


async def test_the_beginning_of_an_answer_arrives_token_by_token() -> None:
    n_free = 30  # of 40
    assert [delta.text for delta in (await read(STORY))[:n_free]] == ["a "] * n_free


@pytest.mark.parametrize(
    "tokens",
    [
        ["word "] * 50,
        ["```", *["x = 1\n"] * 50],
        ["One. ", *["A whole sentence. "] * 38],
    ],
    ids=["no sentence ends", "open code block", "not cut"],
)
async def test_other_answers_are_not_shortened(tokens: list[str]) -> None:
    assert text_of(await read(tokens)) == "".join(tokens[:40])


@pytest.mark.parametrize(
    ("last", "shown"),
    [
        (["\n1. ", "Mix the flour.", "\n2. ", "Add "], "\n1. Mix the flour.\n"),
        (["\n1. ", "Mix the flour.", "\n2."], "\n1. Mix the flour.\n"),
        (["\n- ", "Mix ", "the flour", "\n- ", "Add "], "\n- Mix the flour\n"),
        (["Mix ", "the flour. ", "2. ", "Add it. ", "3. ", "Bake"], "Mix the flour. 2. Add it."),
        (["Mix ", "the flour. ", "2. ", "Add it. ", "3."], "Mix the flour. 2. Add it."),
        (["done. ", "Ask ", "Dr. ", "Smith, ", "e.g. ", "in ", "the ", "U.S. ", "or "], "done."),
        (["**done.** ", "Then "], "**done.**"),
        (["完了。", "次"], "完了。"),
        (["is 3.14 ", "metres. ", "And "], "is 3.14 metres."),
    ],
)
async def test_numbers_of_list_items_and_abbreviations_do_not_end_a_sentence(
    last: list[str], shown: str
) -> None:
    start = ["a "] * (40 - len(last))
    assert text_of(await read([*start, *last, "more"])).rstrip(" ") == "".join(start) + shown


async def test_only_the_workers_that_are_set_to_it_and_only_prose_are_shortened() -> None:
    whole = "".join(STORY[:40])
    as_json = replace(CALL, answer_format=AnswerFormat({"type": "object"}))
    assert text_of(await read(STORY, whole=False)) == whole
    assert text_of(await read(STORY, as_json)) == whole


@given(st.lists(WORDS, min_size=1, max_size=60), st.integers(1, 50))
async def test_what_is_shown_is_a_beginning_of_the_answer_and_complete_unless_it_was_cut(
    tokens: list[str], most: int
) -> None:
    deltas = await read(tokens, replace(CALL, sampling=Sampling(max_output_tokens=most)))
    shown, all_of_it = text_of(deltas), "".join(tokens[:most])
    assert all_of_it.startswith(shown)
    assert len(deltas) == len(tokens[:most])
    if len(tokens) <= most:
        assert shown == all_of_it
    elif shown != all_of_it:
        assert shown.endswith(("\n", ".", "!", '."'))


BODY: dict[str, Any] = {
    "model": "w",
    "max_tokens": 40,
    "messages": [{"role": "user", "content": "Tell me a story."}],
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_cut_answer_ends_with_a_sentence_in_every_dialect_and_is_billed_whole(stream: bool) -> None:
    own = {"name": "w", "kind": "vllm", "model": "m", "whole_sentences": True}
    shown = "a " * 30 + "bee."
    async with served(team(workers=[own], workflows={}), engines={"w": Engine(STORY)}) as api:
        chat = await api.http.post("/v1/chat/completions", json=BODY | {"stream": stream})
        messages = await api.http.post("/v1/messages", json=BODY | {"stream": stream})
        responses = await api.http.post(
            "/v1/responses",
            json={"model": "w", "input": "Tell me a story.", "max_output_tokens": 40, "stream": stream},
        )
        used = [step["usage"]["output_tokens"] for step in (await api.newest())["steps"]]
    assert used == [40]
    if not stream:
        choice, message, response = chat.json()["choices"][0], messages.json(), responses.json()
        texts = (
            choice["message"]["content"],
            message["content"][0]["text"],
            response["output"][-1]["content"][0]["text"],
        )
        assert (choice["finish_reason"], message["stop_reason"]) == ("length", "max_tokens")
    else:
        *_, last = read_events(responses)
        response = last["response"]
        texts = (
            answer_text(read_events(chat)),
            "".join(
                each["delta"].get("text", "")
                for each in read_events(messages)
                if each["type"] == "content_block_delta"
            ),
            "".join(
                each["delta"]
                for each in read_events(responses)
                if each["type"] == "response.output_text.delta"
            ),
        )
        assert '"finish_reason":"length"' in chat.text.replace(" ", "")
        assert '"stop_reason":"max_tokens"' in messages.text.replace(" ", "")
    assert texts == (shown, shown, shown)
    assert (response["status"], response["incomplete_details"]["reason"]) == (
        "incomplete",
        "max_output_tokens",
    )
    assert response["usage"]["output_tokens"] == 40


def read_events(answer: httpx2.Response) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


async def test_closing_the_answer_closes_the_call() -> None:
    engine = Engine(STORY)
    deltas = VllmWorker("w", "m", engine)._deltas(CALL)
    async with aclosing(whole_sentences(deltas, 40)) as answer:
        await anext(answer)
        assert engine.is_open
    assert not engine.is_open
