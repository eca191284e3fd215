"""Several answers to one request: `n`, and lists of prompts."""

from typing import Any

import openai
import pytest

from tests.serving.api.served import ASK, PRICE, Json, scripted, served, team
from tests.wires.anthropic import AnthropicWire
from tests.wires.server import serving

TURNS = scripted("a", "first word", "second word", "third word", price=PRICE)
POOL = team(workers=[TURNS, scripted("b"), scripted("c")])


async def test_each_of_n_answers_is_a_run_and_usage_is_added() -> None:
    async with served(POOL) as api, api.sdk as sdk:
        answer = await sdk.chat.completions.create(model="a", messages=ASK["messages"], n=3)
        podium: Any = answer.model_extra["podium"]  # type: ignore[index]
        records = [await api.record(each["workflow_id"]) for each in podium["choices"]]
    texts = [choice.message.content for choice in answer.choices]
    assert sorted(filter(None, texts)) == ["first word", "second word", "third word"]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [record["answer"] for record in records] == texts
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6
    assert podium["cost_usd"] == pytest.approx(sum(record["cost_usd"] for record in records))


async def test_a_team_may_answer_n_times() -> None:
    async with served(team()) as api:
        answer = await api.ok({"n": 2})
    assert len(answer["choices"]) == len(answer["podium"]["choices"]) == 2


async def test_a_stream_of_n_answers_has_indexed_chunks_and_one_end() -> None:
    async with served(POOL) as api, api.sdk as sdk:
        texts, finishes, ids, usage = ["", ""], [None, None], set[str](), None
        stream = await sdk.chat.completions.create(
            model="a", messages=ASK["messages"], n=2, stream=True, stream_options={"include_usage": True}
        )
        async for chunk in stream:
            ids.add(chunk.id)
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                finishes[choice.index] = choice.finish_reason or finishes[choice.index]  # type: ignore[call-overload]
        events = await api.events({"model": "a", "n": 2})
    assert sorted(texts) == ["first word", "second word"]
    assert finishes == ["stop", "stop"]
    assert len(ids) == 1
    assert usage is not None
    assert usage.completion_tokens == 4
    assert events.count("[DONE]") == 1
    assert events[-1] == "[DONE]"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_first_failure_is_returned_and_cancels_the_other_answers(stream: bool) -> None:
    slow = {"text": "x y z", "stall_after_tokens": 1}
    broken = scripted("a", {"error": "refused"}, slow, slow, retry={"attempts": 1})
    async with served(team(workers=[broken, scripted("b"), scripted("c")])) as api:
        answer = await api.post({"model": "a", "n": 3, "stream": stream})
        assert "refused" in answer.text
        assert answer.status_code == (200 if answer.text.startswith("data") else 400)


async def test_the_failure_of_one_of_n_answers_is_final_if_another_was_billed() -> None:
    worker = scripted("a", "Paid.", {"error": "unavailable"}, price=PRICE, retry={"attempts": 1})
    async with served(team(workers=[worker], workflows={})) as api:
        failed = await api.post({"model": "a", "n": 2})
        assert (failed.status_code, failed.headers["x-should-retry"]) == (400, "false")
        runs = (await api.http.get("/v1/workflows")).json()["data"]
        assert len(runs) == 2


async def test_n_answers_start_only_if_all_have_slots() -> None:
    worker = scripted("a", "Here.", price=PRICE)
    async with served(team(workers=[worker], workflows={}, limits={"max_running": 4})) as api:
        refused = await api.post({"model": "a", "n": 8})
        assert (refused.status_code, refused.headers["x-should-retry"]) == (429, "true")
        assert not api.worker("a").calls
        await api.quiet()
        assert len((await api.ok({"model": "a", "n": 3}))["choices"]) == 3


async def test_all_of_them_share_the_limits_of_their_request() -> None:
    worker = scripted("a", "word " * 400, price=PRICE)
    async with served(team(workers=[worker], workflows={})) as api:
        alone = (await api.ok({"model": "a"}))["podium"]["cost_usd"]
        limits = {"max_cost_usd": alone * 2}
        together = await api.post({"model": "a", "n": 4, "podium": limits})
        spent = (await api.http.get("/v1/workflows")).json()["data"]
        assert sum(run["cost_usd"] for run in spent[:4]) <= alone * 2, together.text
        refused = await api.post({"model": "a", "n": 4, "podium": {"max_cost_usd": alone / 10}})
    assert f"${alone / 40:f}".rstrip("0") in refused.json()["error"]["message"]


async def test_a_request_for_n_answers_is_not_deduplicated() -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    worker = scripted("a", "one two three", "uno dos tres", "un deux trois", "eins zwei drei", tokens_per_s=5)
    body = ASK | {"model": "a", "n": 2, "tools": [tool], "stream": True}
    async with served(team(workers=[worker], workflows={})) as api:
        async with api.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            await anext(answer.aiter_lines())
        again = await api.ok(body | {"stream": False})
    assert len({choice["message"]["content"] for choice in again["choices"]}) == 2
    assert len({run["workflow_id"] for run in again["podium"]["choices"]}) == 2


@pytest.mark.parametrize(
    ("body", "headers", "param"),
    [
        ({"n": 0}, {}, "n"),
        ({"n": 9}, {}, "n"),
        ({"n": 2, "podium": {"keep": True}}, {}, "n"),
        ({"n": 2}, {"Idempotency-Key": "k"}, "n"),
    ],
)
async def test_an_invalid_n_is_rejected(body: Json, headers: dict[str, str], param: str) -> None:
    async with served(POOL) as api:
        answer = await api.http.post("/v1/chat/completions", json=ASK | body, headers=headers)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_worker_completes_text_without_additions() -> None:
    pool = team(
        workers=[scripted("a", "then {question}", system_prompt="Be kind."), scripted("b"), scripted("c")]
    )
    async with served(pool) as api, api.sdk as sdk:
        answer = await sdk.completions.create(model="a", prompt="Once", max_tokens=5, seed=1, logprobs=0)
        [call] = api.worker("a").calls
    assert [(message.role, message.text) for message in call.messages] == [("user", "Once")]
    [choice] = answer.choices
    assert (answer.object, choice.text, choice.finish_reason) == ("text_completion", "then Once", "stop")
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == ["then", " Once"]
    assert choice.logprobs.text_offset == [0, 4]


async def test_each_prompt_of_a_list_has_its_choices_in_order() -> None:
    pool = team(workers=[scripted("a", "{question}!"), scripted("b"), scripted("c")])
    async with served(pool) as api, api.sdk as sdk:
        answer = await sdk.completions.create(model="a", prompt=["one", "two"], n=2)
        streamed = await sdk.completions.create(model="a", prompt=["one", "two"], stream=True)
        texts = ["", ""]
        async for chunk in streamed:
            assert chunk.object == "text_completion"
            for choice in chunk.choices:
                texts[choice.index] += choice.text
    assert [choice.text for choice in answer.choices] == ["one!", "one!", "two!", "two!"]
    assert texts == ["one!", "two!"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"model": "mini"}, "model"),
        ({"prompt": ""}, "prompt[0]"),
        ({"prompt": [1, "two"]}, "prompt[1]"),
        ({"prompt": [1, True]}, "prompt[1]"),
        ({"prompt": [[1], [-2]]}, "prompt[1][0]"),
        ({"prompt": [[1], "two"]}, "prompt[1]"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[1]] * 129}, "prompt"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"echo": True}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
async def test_text_completions_reject_unsupported_fields(body: Json, param: str) -> None:
    async with served(POOL) as api:
        answer = await api.http.post("/v1/completions", json={"model": "a", "prompt": "x"} | body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


async def test_options_reach_the_worker_and_neutral_ones_are_omitted() -> None:
    async with served(POOL) as api, api.sdk as sdk:
        await sdk.chat.completions.create(
            model="a", messages=ASK["messages"], frequency_penalty=0.5, presence_penalty=-1, logit_bias={"7": 3},
            verbosity="low", logprobs=True, top_logprobs=2, user="u1", metadata={"a": "b"}, store=True,
        )  # fmt: skip
        await api.ok({"model": "a", "frequency_penalty": 0, "logit_bias": {"7": 0}, "verbosity": "medium"})
        options, neutral = [call.sampling.options for call in api.worker("a").calls]
        record = await api.newest()
    assert (options.frequency_penalty, options.presence_penalty, options.verbosity) == (0.5, -1, "low")
    assert [(each.token, each.bias) for each in options.logit_bias or ()] == [("7", 3)]
    assert options.top_logprobs == 2
    assert neutral.set_options == ()
    assert "left_out" not in record


async def test_samplers_of_every_dialect_reach_the_worker_or_are_noted() -> None:
    claude = {"name": "claude", "kind": "anthropic", "model": "claude-sonnet-5", "api_key_env": "K"}
    samplers: Json = {"top_k": 5, "min_p": 0.5, "repetition_penalty": 1.5}
    async with served(POOL) as api, api.sdk as sdk:
        ask: Any = {"model": "a", "extra_body": samplers}
        await sdk.chat.completions.create(messages=ASK["messages"], **ask)
        await sdk.completions.create(prompt="Once", **ask)
        await sdk.responses.create(input="Once", **ask)
        await api.http.post("/v1/messages", json=ASK | {"model": "a", "max_tokens": 9, "top_k": 5})
        await api.ok({"model": "a", "top_k": -1, "min_p": None})
        samplings = [call.sampling for call in api.worker("a").calls]
        for field, value in (("top_k", -2), ("min_p", 2), ("repetition_penalty", 0)):
            answer = await api.post({"model": "a", field: value})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    assert [(each.top_k, each.min_p, each.repetition_penalty) for each in samplings] == [
        (5, 0.5, 1.5), (5, 0.5, 1.5), (5, 0.5, 1.5), (5, None, None), (0, None, None),
    ]  # fmt: skip
    async with serving(AnthropicWire()) as server:
        own = claude | {"base_url": server.url, "price": PRICE}
        async with served(
            team(workers=[own], conductor=None, models={}, workflows={}), environ={"K": "k"}
        ) as api:
            await api.ok({"model": "claude", **samplers})
            record = await api.newest()
    notes = record["steps"][0]["notes"]
    assert [note.split()[0] for note in notes] == ["top_k", "min_p", "repetition_penalty"]


async def test_logprobs_are_returned_whole_and_streamed_in_the_sdks_types() -> None:
    async with served(POOL) as api, api.sdk as sdk:
        ask: Any = {"model": "a", "messages": ASK["messages"], "logprobs": True}
        whole = await sdk.chat.completions.create(**ask)
        pieces = [
            each.token
            async for chunk in await sdk.chat.completions.create(**ask, stream=True)
            for choice in chunk.choices
            for each in (choice.logprobs.content or [] if choice.logprobs else [])
        ]
    assert whole.choices[0].logprobs is not None
    assert [each.token for each in whole.choices[0].logprobs.content or []] == ["first", " word"]
    assert pieces == ["second", " word"]


async def test_fields_without_effect_are_noted_by_name_only() -> None:
    async with served(POOL) as api:
        await api.ok({"model": "a", "user": "person-17", "metadata": {"a": "b"}, "service_tier": "flex"})
        record = await api.newest()
    assert [line.split()[0] for line in record["left_out"]] == ["metadata", "user"]
    assert "person-17" not in str(record)


async def test_an_unsupported_option_is_rejected_by_name_before_any_call() -> None:
    claude = {"name": "a", "kind": "anthropic", "model": "claude-sonnet-5", "api_key_env": "K"}
    async with served(team(workers=[claude, scripted("b"), scripted("c")]), environ={"K": "k"}) as api:
        for field, value in (("frequency_penalty", 1), ("logprobs", True), ("verbosity", "low")):
            for model in ("a", "mini"):
                answer = await api.post({field: value, "model": model})
                error = answer.json()["error"]
                assert (answer.status_code, error["param"]) == (400, field)
                assert f"{field} is not supported by worker 'a'" in error["message"]
        with pytest.raises(openai.BadRequestError):
            await api.sdk.completions.create(model="a", prompt="x")
