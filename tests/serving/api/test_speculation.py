"""A guess as clients and operators see it: in answers, records, events, metrics, spans, and by what is left of it."""

import asyncio
from typing import Any

import pytest

from serving.telemetry import metrics, spans
from tests.serving.api.served import ASK, Json, Served, plan, said, scripted, served, step, team
from tests.serving.spans import SPANS
from tests.serving.test_metrics import metered
from tests.states import until

RIGHT, WRONG = plan(step("a", "")), plan(step("b", ""))
N = 3


def guessing(*plans: str, **worker: Any) -> Json:
    """Settings: three plans that ask a are enough, whose conductor is slow."""
    workers = [scripted("a", "It is light.", max_concurrency=8, **worker), scripted("b", "Something else.")]
    made = team(*[RIGHT] * N, *plans, workers=workers, workflows={})
    made["workers"][0] |= {"tokens_per_s": 100}
    made["conductor"] |= {"speculation": {"min_plans": N}}
    return made


def failing_over() -> Json:
    """As `guessing`, whose plan does not ask the worker that was asked early, and that is gone by then."""
    workers = [
        scripted(
            "a",
            *["It is light."] * N,
            {"error": "unavailable"},
            max_concurrency=8,
            fallbacks=["b"],
            retry={"attempts": 1},
        ),
        scripted("b", "Something else."),
        scripted("c", "The answer."),
    ]
    made = guessing(plan(step("c", "")))
    return made | {"workers": [made["workers"][0], *workers]}


async def learn(api: Served) -> None:
    for _ in range(N):
        await api.ok()
    await api.quiet()


def of_guess(record: Json) -> Json:
    return record["plans"][0].get("guess", {})


@pytest.mark.parametrize("next_plan", [RIGHT, WRONG])
async def test_a_guess_is_kept_or_lost_and_the_record_metrics_and_spans_say_so(next_plan: str) -> None:
    async with served(guessing(next_plan)) as api:
        await learn(api)
        assert of_guess(await api.newest()) == {}, "nothing was known yet"
        kept, calls = metered(api), len(api.worker("a").calls)
        well = api.service.pool.health["a"].successes
        events = await api.events(progress="events")
        await api.quiet()
        await until(lambda: kept.taken, "the run is measured")
        record, is_right = await api.newest(), next_plan == RIGHT
        guess = of_guess(record)
        outcome = "kept" if is_right else "lost"
        assert said(events) == record["answer"] == ("It is light." if is_right else "Something else.")
        assert (guess["worker"], guess["outcome"], guess["attempt"] is None) == ("a", outcome, is_right)
        assert len(api.worker("a").calls) == calls + 1
        assert api.service.pool.health["a"].successes == well + 1, "a whole answer, whoever has it"
        assert kept.sums(metrics.GUESSES) == {("a", outcome): 1}
        told = [
            shown.get("type")
            for event in events
            if isinstance(event, dict) and (shown := event.get("podium"))
        ]
        assert told.index("guess_began") < told.index("step_planned") < told.index("guess_ended")
        whole = [span for span in SPANS.ended if span.name == "invoke_workflow mini"][-1]
        assert (whole.attributes or {})[spans.GUESS] == outcome
        calls_guessed = [span for span in SPANS.ended if (span.attributes or {}).get(spans.GUESS) is True]
        assert [(span.attributes or {})[spans.WORKER] for span in calls_guessed] == ["a"]
        answer = [span for span in SPANS.ended if span.name.startswith("chat ")][-1]
        assert answer.parent is not None


async def test_a_client_that_leaves_while_a_guess_is_open_leaves_nothing() -> None:
    async with served(guessing({"text": "never", "stall_after_tokens": 0}, delay_s=0.01)) as api:  # type: ignore[arg-type]
        await learn(api)
        calls = len(api.worker("a").calls)
        asking = asyncio.create_task(api.post())
        await until(lambda: len(api.worker("a").calls) == calls + 1, "the guess is made")
        asking.cancel()
        await asyncio.wait([asking])
        await api.quiet()
        record = await api.newest()
        assert (record["status"], of_guess(record)["outcome"]) == ("cancelled", "cut")
        assert (api.service.guesses._under_way["a"], record["unmetered_calls"] > 0) == (0, True)


async def test_who_was_asked_in_place_of_a_worker_that_failed_is_on_record_and_found_and_counted() -> None:
    async with served(failing_over()) as api:
        await learn(api)
        kept = metered(api)
        assert (await api.ok())["choices"][0]["message"]["content"] == "The answer."
        await api.quiet()
        await until(lambda: kept.taken, "the run is measured")
        guess = of_guess(await api.newest())
        assert (guess["outcome"], guess["attempt"]["worker"]) == ("lost", "b")
        assert [(each["worker"], each["error"]) for each in guess["attempts"]] == [("a", "WorkerUnavailable")]
        listed = await api.http.get("/v1/workflows", params={"worker": "b"})
        assert [run["id"] for run in listed.json()["data"]] == [(await api.newest())["id"]]
        assert kept.sums(metrics.WORKER_ERRORS) == {("a", "WorkerUnavailable", "failed_over"): 1}


async def test_runs_that_are_cancelled_do_not_stop_the_guesses_of_others() -> None:
    never = {"text": "never", "stall_after_tokens": 0}
    async with served(guessing(*[never] * 12, RIGHT)) as api:  # type: ignore[arg-type]
        await learn(api)
        for _ in range(12):
            calls = len(api.worker("a").calls)
            asking = asyncio.create_task(api.post())
            await until(lambda calls=calls: len(api.worker("a").calls) == calls + 1, "the guess is made")
            asking.cancel()
            await asyncio.wait([asking])
            await api.quiet()
        await api.ok()
        await api.quiet()
        assert of_guess(await api.newest())["outcome"] == "kept"


async def test_what_a_request_says_of_its_answer_its_workers_or_its_tokens_keeps_guesses_away() -> None:
    async with served(guessing(RIGHT)) as api:
        await learn(api)
        for body in ({"stop": ["x"]}, {"response_format": {"type": "json_object"}}):
            await api.post(ASK | body)
        await api.ok(max_tokens=100_000)
        await api.ok(workers=["a"])
        listed = (await api.http.get("/v1/workflows?limit=4")).json()["data"]
        assert [of_guess(await api.record(run["id"])) for run in listed] == [{}, {}, {}, {}]


async def test_new_settings_begin_to_learn_again() -> None:
    async with served(guessing(RIGHT)) as api:
        await learn(api)
        await api.service.swap(api.service.pool)
        await api.ok()
        await api.quiet()
        assert of_guess(await api.newest()) == {}
