"""`POST /v1/chat/completions` with the official SDK and plain HTTP."""

import asyncio
import json

import openai
import pytest

from tests.serving.api.served import ASK, PRICE, TWO, Json, answer_text, plan, scripted, served, step, team
from tests.states import until

ANSWER = "Blue light scatters most."
MESSAGES = ASK["messages"]


async def test_the_async_sdk_gets_an_answer():
    async with served(team()) as api, api.sdk as sdk:
        answer = await sdk.chat.completions.create(model="mini", messages=MESSAGES)
    assert answer.choices[0].message.content == ANSWER
    assert (answer.object, answer.model, answer.choices[0].finish_reason) == (
        "chat.completion",
        "mini",
        "stop",
    )
    assert answer.choices[0].message.role == "assistant"


async def test_the_async_sdk_gets_a_stream():
    async with served(team()) as api, api.sdk as sdk:
        stream = await sdk.chat.completions.create(model="mini", messages=MESSAGES, stream=True)
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert len(chunks) > 3, "token by token"


async def test_the_sync_sdk_gets_an_answer_and_a_stream():
    def talk(url: str) -> tuple[str | None, str]:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as sdk:
            whole = sdk.chat.completions.create(model="mini", messages=MESSAGES)
            stream = sdk.chat.completions.create(model="mini", messages=MESSAGES, stream=True)
            return whole.choices[0].message.content, "".join(c.choices[0].delta.content or "" for c in stream)

    async with served(team()) as api:
        assert await asyncio.to_thread(talk, api.url) == (ANSWER, ANSWER)


async def test_the_sdks_stream_helper_understands_the_stream():
    async with (
        served(team()) as api,
        api.sdk as sdk,
        sdk.chat.completions.stream(model="mini", messages=MESSAGES) as stream,
    ):
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == ANSWER


async def test_a_stream_with_usage_ends_with_a_usage_only_chunk():
    async with served(team()) as api, api.sdk as sdk:
        stream = await sdk.chat.completions.create(
            model="mini", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        whole = await sdk.chat.completions.create(model="mini", messages=MESSAGES)
    *others, last = chunks
    assert (last.choices, last.usage) == ([], whole.usage)
    assert all(chunk.usage is None for chunk in others)


async def test_usage_is_null_in_other_chunks_if_requested_and_otherwise_absent():
    async with served(team()) as api:
        *events, last, done = await api.events({"stream_options": {"include_usage": True}}, progress="events")
        without = await api.events()
    assert done == "[DONE]"
    assert last["choices"] == []
    assert [event["usage"] for event in events] == [None] * len(events)
    assert all("usage" not in event for event in without[:-1])


async def test_unknown_fields_are_ignored_and_noted_by_name():
    more = {
        "user": "u1", "store": True, "metadata": {"a": "b"}, "parallel_tool_calls": True, "service_tier": "auto",
        "some_new_thing": [1],
    }  # fmt: skip
    async with served(team()) as api:
        assert (await api.ok(more))["choices"][0]["message"]["content"] == ANSWER
        assert answer_text(await api.events(more)) == ANSWER
        assert (
            "'some_new_thing' was ignored, because it has no effect on this server."
            in (await api.newest())["left_out"]
        )
        await api.ok({f"new_{n}": n for n in range(1, 20)} | {"none": None})
        *names, rest = (await api.newest())["left_out"]
        assert (len(names), rest) == (
            16,
            "3 more fields were ignored, because they have no effect on this server.",
        )
        assert (
            await api.post({"messages": [{"role": "user", "content": "hi", "name": "ann"}]})
        ).status_code == 200


async def test_content_may_be_a_list_of_parts():
    parts = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}},
    ]
    workers = [scripted("seeing", "{question}", sees_images=True)]
    async with served(team(workers=workers, workflows={})) as api:
        await api.ok({"model": "seeing", "messages": [{"role": "user", "content": parts}]})
        seeing = api.worker("seeing").calls[0].messages[-1]
    assert seeing.has_image
    assert seeing.text == "What is this?"


async def test_a_developer_message_is_a_system_message_and_turns_keep_their_order():
    turns = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "Two?"},
    ]
    async with served(team()) as api:
        await api.ok({"model": "a", "messages": turns})
        call = api.worker("a").calls[0]
    assert [(m.role, m.text) for m in call.messages] == [
        ("system", "Be brief."), ("user", "One?"), ("assistant", "Yes."), ("user", "Two?"),
    ]  # fmt: skip


async def test_an_assistant_message_without_content_is_accepted():
    turns = [*MESSAGES, {"role": "assistant", "content": None}, {"role": "user", "content": "Go on."}]
    async with served(team()) as api:
        assert (await api.post({"messages": turns})).status_code == 200


async def test_sampling_parameters_reach_the_workers():
    body = {
        "temperature": 0.3,
        "top_p": 0.9,
        "seed": 7,
        "stop": "END",
        "max_completion_tokens": 50,
        "max_tokens": 9,
    }
    async with served(team()) as api:
        await api.ok({"model": "a"} | body)
        call = api.worker("a").calls[0]
    assert (
        call.sampling.temperature,
        call.sampling.top_p,
        call.sampling.seed,
        call.sampling.stop,
        call.sampling.max_output_tokens,
    ) == (
        0.3,
        0.9,
        7,
        ("END",),
        50,
    )


async def test_a_model_may_be_a_conductor_a_workflow_or_a_worker():
    async with served(team()) as api:
        conducted, fixed, plain = [await api.ok({"model": name}, trace=True) for name in ("mini", "duo", "a")]
        n_calls = [len(api.worker(name).calls) for name in ("conductor", "a", "b")]
        sources = [
            (await api.record(each["podium"]["workflow_id"]))["plans"][0]["source"]
            for each in (conducted, fixed, plain)
        ]
    assert [each["choices"][0]["message"]["content"] for each in (conducted, fixed, plain)] == [
        ANSWER,
        ANSWER,
        "A reason: scattering.",
    ]
    assert n_calls == [1, 3, 2]
    assert sources == ["conductor", "workflow", "worker"]
    assert [s["subtask"] for s in fixed["podium"]["steps"]] == ["Draft.", "Polish."]


async def test_a_worker_outside_the_pool_can_be_called_by_name():
    async with served(team()) as api:
        assert (await api.ok({"model": "conductor"}))["choices"][0]["message"]["content"] == TWO


async def test_the_answer_has_the_fields_of_the_contract():
    slow = [scripted(name, price=PRICE, delay_s=0.1) for name in ("a", "b", "c")]
    async with served(team(workers=slow)) as api:
        answer = await api.post()
    body = answer.json()
    podium, usage = body["podium"], body["usage"]
    assert answer.headers["x-podium-workflow-id"] == podium["workflow_id"]
    assert podium.keys() >= {
        "workflow_id",
        "rounds",
        "steps",
        "cost_usd",
        "conversation",
        "cached_share",
        "saved_usd",
        "wall_s",
        "critical_path_s",
        "fallback",
        "console_url",
    }
    assert (podium["rounds"], podium["fallback"]) == (1, None)
    assert podium["console_url"] == f"/console/#/runs/{podium['workflow_id']}"
    assert [(s["worker"], s["access"], s["status"]) for s in podium["steps"]] == [
        ("a", [], "done"),
        ("b", [0], "done"),
    ]
    assert 0.2 <= podium["critical_path_s"] <= podium["wall_s"]
    assert podium["cost_usd"] > 0
    assert usage.keys() >= {"prompt_tokens", "completion_tokens", "total_tokens"}
    assert body["id"].startswith("chatcmpl-")


async def test_usage_counts_the_answer_and_orchestration_separately():
    async with served(team()) as api:
        body = await api.ok(trace=True)
        record = await api.record(body["podium"]["workflow_id"])
    usage, (first, last) = body["usage"], body["podium"]["steps"]
    planning = record["plans"][0]["usage"]
    assert usage["prompt_tokens"] == last["usage"]["input_tokens"]
    assert usage["completion_tokens"] == last["usage"]["output_tokens"] == 4
    inputs = usage["prompt_tokens_details"]
    assert inputs["orchestration_input_tokens"] == first["usage"]["input_tokens"] + planning["input_tokens"]
    assert inputs["orchestration_input_cached_tokens"] == 0
    outputs = usage["completion_tokens_details"]["orchestration_output_tokens"]
    assert outputs == first["usage"]["output_tokens"] + planning["output_tokens"]
    everything = [first["usage"], last["usage"], planning]
    assert usage["total_tokens"] == sum(u["input_tokens"] + u["output_tokens"] for u in everything)


async def test_a_plain_pass_through_has_no_orchestration():
    async with served(team()) as api:
        usage = (await api.ok({"model": "a"}))["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"]["orchestration_input_tokens"] == 0


async def test_the_cost_is_the_sum_of_tokens_times_prices():
    async with served(team()) as api:
        podium = (await api.ok(trace=True))["podium"]
    tokens = [s["usage"] for s in podium["steps"]]
    assert podium["cost_usd"] == pytest.approx(
        sum(u["input_tokens"] + 2 * u["output_tokens"] for u in tokens) / 1e6
    )


async def test_a_trace_contains_the_complete_steps():
    async with served(team()) as api:
        brief, full = await api.ok(), await api.ok(trace=True)
    assert "output" not in brief["podium"]["steps"][0]
    first, last = full["podium"]["steps"]
    assert first.keys() >= {
        "worker", "subtask", "access", "prompt", "output", "usage", "cost_usd", "started_s", "ended_s", "error", "attempts",
    }  # fmt: skip
    assert (first["output"], last["output"]) == ("A reason: scattering.", ANSWER)
    assert "Why is the sky blue?" in last["prompt"][-1]["content"]
    assert "A reason: scattering." in last["prompt"][-1]["content"]


async def test_a_streams_trace_is_in_the_last_chunk_of_the_answer():
    async with served(team()) as api:
        *_, last, done = await api.events(trace=True)
    assert done == "[DONE]"
    assert last["choices"][0]["finish_reason"] == "stop"
    assert [s["output"] for s in last["podium"]["steps"]] == ["A reason: scattering.", ANSWER]


async def test_reasoning_is_separate_from_the_answer():
    workers = [scripted("a", {"text": "Yes.", "reasoning": "Let me see."})]
    async with served(team(workers=workers, workflows={})) as api:
        whole = await api.ok({"model": "a"})
        events = await api.events({"model": "a"})
    assert whole["choices"][0]["message"]["reasoning_content"] == "Let me see."
    thoughts = [c["delta"].get("reasoning_content", "") for e in events[:-1] for c in e["choices"]]
    assert ("".join(thoughts), answer_text(events)) == ("Let me see.", "Yes.")
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == 3


async def test_a_truncated_answer_has_the_finish_reason_length():
    async with served(team()) as api:
        answer = await api.ok({"model": "b", "max_tokens": 2})
    assert (answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"]) == (
        "Blue light",
        "length",
    )


async def test_progress_is_off_unless_requested():
    async with served(team()) as api:
        events = await api.events()
    chunks = [e for e in events if isinstance(e, dict)]
    assert all(chunk["choices"] for chunk in chunks)
    assert not any("reasoning_content" in chunk["choices"][0]["delta"] for chunk in chunks)


async def test_progress_as_events():
    async with served(team()) as api:
        events = await api.events(progress="events")
    progress = [e["podium"] for e in events[:-1] if not e["choices"]]
    assert sorted(each["type"] for each in progress) == sorted(
        ["plan_began", "plan_ended", *["step_planned", "step_began", "step_spoke", "step_ended"] * 2]
    )
    for number in (0, 1):
        types = [each["type"] for each in progress if each.get("step") == number]
        assert types == ["step_planned", "step_began", "step_spoke", "step_ended"]
    assert [each["at_s"] for each in progress] == sorted(each["at_s"] for each in progress)
    planned = [each for each in progress if each["type"] == "step_planned"]
    assert [(p["step"], p["worker"], p["subtask"], p["access"]) for p in planned] == [
        (0, "a", "Find a reason.", []), (1, "b", "Conclude.", [0]),
    ]  # fmt: skip
    assert answer_text(events) == ANSWER


async def test_a_steps_needs_are_shown_with_the_step():
    thoughtful = plan({"needs": "optics"} | step("a", ""))
    async with served(team(thoughtful)) as api:
        events = await api.events(progress="events")
        (event,) = [e["podium"] for e in events[:-1] if e.get("podium", {}).get("type") == "step_planned"]
        lines = json.dumps(await api.events(progress="reasoning"))
        planned = (await api.ok(path="/v1/plans"))["steps"][0]
        again = {name: planned[name] for name in ("worker", "subtask", "access", "needs")}
        body = await api.ok(plan=[again])
        record = await api.record(body["podium"]["workflow_id"])
        without = await api.ok(plan=[step("a", "")])
        plain = await api.record(without["podium"]["workflow_id"])
    assert event["needs"] == again["needs"] == record["steps"][0]["needs"] == "optics"
    assert "Step 1, a: answer the question (optics)" in lines
    assert "needs" not in plain["steps"][0]
    prompt = json.dumps([message["content"] for message in record["steps"][0]["prompt"]])
    assert "optics" not in prompt, "no worker is shown it"


async def test_progress_may_be_sent_as_reasoning_for_any_client():
    async with served(team()) as api, api.sdk as sdk:
        stream = await sdk.chat.completions.create(
            model="mini", messages=MESSAGES, stream=True, extra_body={"podium": {"progress": "reasoning"}}
        )
        deltas = [chunk.choices[0].delta async for chunk in stream]
    lines = "".join((delta.model_extra or {}).get("reasoning_content", "") for delta in deltas)
    assert "Step 1, a: Find a reason.\n" in lines
    assert "Step 2, b (reads 1): Conclude.\n" in lines
    assert "".join(delta.content or "" for delta in deltas) == ANSWER


async def test_the_role_is_sent_immediately_and_heartbeats_follow():
    settings = team(
        workers=[scripted("a", "Late.", delay_s=1.0)],
        workflows={},
        limits={"heartbeat_s": 0.1, "first_byte_s": 0.05},
    )
    loop = asyncio.get_running_loop()
    async with served(settings) as api:
        asked_s = loop.time()
        body = ASK | {"model": "a", "stream": True}
        async with api.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.aiter_lines()
            first = await anext(lines)
            role_s = loop.time() - asked_s
            rest = [line async for line in lines if line]
    assert '"role":"assistant"' in first
    assert role_s < 0.7
    beats = [line for line in rest if line.startswith(":")]
    assert 3 <= len(beats) <= 12
    assert rest.index(beats[-1]) < next(i for i, line in enumerate(rest) if "Late." in line)


async def test_heartbeats_are_sent_although_hidden_steps_run():
    chain = [step("a", f"Part {n}.", [n - 1] if n else []) for n in range(5)]
    settings = team(
        workers=[scripted("a", "Done.", delay_s=0.3)],
        workflows={},
        limits={"heartbeat_s": 0.2, "first_byte_s": 0},
    )
    async with served(settings) as api:
        body = ASK | {"stream": True, "podium": {"plan": chain}}
        async with api.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            beats = [line async for line in answer.aiter_lines() if line.startswith(":")]
    assert len(beats) >= 4, "1.5 s of nothing but inner steps, a beat for each 0.2 s"


async def test_the_sdk_ignores_heartbeats():
    settings = team(
        workers=[scripted("a", "Late.", delay_s=0.2)],
        workflows={},
        limits={"heartbeat_s": 0.02, "first_byte_s": 0},
    )
    async with served(settings) as api, api.sdk as sdk:
        stream = await sdk.chat.completions.create(model="a", messages=MESSAGES, stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "Late."


async def test_only_the_last_steps_output_is_streamed():
    async with served(team()) as api:
        assert answer_text(await api.events()) == ANSWER


async def test_a_workers_call_states_whether_its_output_is_streamed():
    async with served(team()) as api:
        await api.ok({"model": "duo"})
        assert [api.worker(name).calls[-1].coalesce for name in "ab"] == [True, True]
        await api.events({"model": "duo"})
        assert [api.worker(name).calls[-1].coalesce for name in "ab"] == [True, False]


async def test_an_empty_answer_is_a_complete_stream():
    async with served(team(workers=[scripted("a", "")], workflows={})) as api:
        events = await api.events({"model": "a"})
    assert (answer_text(events), events[-1]) == ("", "[DONE]")
    assert events[-2]["choices"][0]["finish_reason"] == "stop"


async def test_a_thousand_words_arrive_in_order():
    text = " ".join(str(number) for number in range(1000))
    async with served(team(workers=[scripted("a", text)], workflows={})) as api:
        assert answer_text(await api.events({"model": "a"})) == text


async def test_concurrent_streams_get_their_own_answers():
    async with served(team(workers=[scripted("a", "{question}", delay_s=0.02)], workflows={})) as api:
        bodies: list[Json] = [
            {"model": "a", "messages": [{"role": "user", "content": f"n{n}"}]} for n in range(30)
        ]
        answers = await asyncio.gather(*(api.events(body) for body in bodies))
    assert [answer_text(answer) for answer in answers] == [f"n{n}" for n in range(30)]


async def test_a_second_round_accepts_or_revises_the_answer():
    better = plan(step("c", "Say it better."))
    async with served(team(TWO, '{"accept": true}')) as api:
        accepted = await api.ok({"model": "ultra"})
    async with served(team(TWO, better)) as api:
        revised = await api.ok({"model": "ultra"})
    assert (accepted["podium"]["rounds"], revised["podium"]["rounds"]) == (2, 2)
    assert accepted["choices"][0]["message"]["content"] == ANSWER
    assert revised["choices"][0]["message"]["content"] == "c says so."


async def test_the_run_joins_the_callers_trace():
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    async with served(team()) as api:
        headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
        answer = await api.http.post("/v1/chat/completions", json=ASK, headers=headers)
        record = await api.newest()
    assert answer.json()["podium"]["trace_id"] == record["trace_id"] == trace_id


async def test_a_full_server_returns_429_with_retry_after():
    settings = team(
        workers=[scripted("a", {"text": "x y", "stall_after_tokens": 1})],
        workflows={},
        limits={"max_running": 1},
    )
    async with served(settings) as api:
        async with api.http.stream(
            "POST", "/v1/chat/completions", json=ASK | {"model": "a", "stream": True}
        ) as first:
            assert first.status_code == 200
            await until(lambda: api.service.running == 1)
            refused = await api.post()
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["error"]["code"] == "overloaded"
        await until(lambda: api.service.running == 0)
        assert (await api.post({"model": "conductor"})).status_code == 200
