"""Figures of the bench from artificial measurements, without timing. The upstream is called over HTTP."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from loadtest.bench import (
    adapters,
    autoscaling,
    dag,
    disconnects,
    engine,
    first_call,
    metering,
    passthrough,
    peers,
    proxies,
    schedulers,
    slow_readers,
    steps,
    streams,
    tokens,
    tool_turns,
    two_engines,
    watching,
)
from loadtest.bench.cli import ISOLATED, PARTS, list_shared_parts, table
from loadtest.bench.figures import BLOCKS, CATALOGUE, Figure, FigureSpec, figure, p95, reading, to_json
from loadtest.rig.client import BenchClient
from loadtest.rig.fake_openai import FakeOpenAI

BENCH = Path(dag.__file__).parent
PROMISED = {
    "dag_wall_over_critical_path",
    "dag_speedup_over_sequential",
    "first_call_after_step_ms",
    "answer_token_added_p50_ms",
    "passthrough_over_bare_serve",
    "open_streams_lost",
    "disconnect_to_closed_p95_ms",
    "passthrough_rps_over_litellm",
    "added_p50_over_litellm",
    "streams_over_litellm",
}

OURS = proxies.ProxySide(p50_ms=3.0, first_token_ms=3.0, rps=500.0, streams_per_s=300.0)
A_ROUND = {
    "podium": OURS,
    "metered": OURS,
    "litellm": proxies.ProxySide(p50_ms=7.0, first_token_ms=8.0, rps=200.0, streams_per_s=60.0),
    "smg": proxies.ProxySide(p50_ms=1.0, first_token_ms=1.0, rps=2000.0, streams_per_s=900.0),
    "ingress": proxies.ProxySide(p50_ms=2.0, first_token_ms=0.0, rps=700.0, streams_per_s=0.0),
    "upstream": proxies.ProxySide(p50_ms=0.5, first_token_ms=0.5, rps=5000.0, streams_per_s=3000.0),
}


A_TO_B = adapters.Switch("a", "b", asked_s=10.0, done_s=12.0)
A_SWITCHED_RUN = [
    adapters.AdapterAnswer(1.0, 2.0, "a a a"),
    adapters.AdapterAnswer(11.0, 11.5, "b b"),
    adapters.AdapterAnswer(13.0, 13.5, "b"),
]


A_QUIET_SERVER = slow_readers.MemoryUse(router=100 * 2**20, haproxy=20 * 2**20, kernel=0)
A_FULL_SERVER = slow_readers.MemoryUse(router=200 * 2**20, haproxy=70 * 2**20, kernel=25 * 2**20)


def values(figures: list[Figure]) -> dict[str, float]:
    return {each.name: each.value for each in figures}


def a_conductors_record() -> dict[str, object]:
    """Return a plan that begins at 0.001 s. The last byte of its first step is the fourth token, which is due 60 ms
    later.
    """
    plan = {"started_s": 0.001, "ended_s": 0.401, "output": '{"worker": 0, "subtask": "x"}\n{"worker": 1}'}
    return {
        "plans": [plan],
        "steps": [{"planned_s": 0.062, "started_s": 0.065}, {"planned_s": 0.1, "started_s": 0.9}],
    }


def a_round(router: float, bare: float) -> engine.EngineRound:
    return engine.EngineRound(engine.EngineSide(router, (112.0,)), engine.EngineSide(bare, (100.0,)))


def first_tokens(*router_ms: float) -> list[engine.FirstTokens]:
    """Return first tokens: 100 ms for the bare engine, 110 ms for the empty ingress."""
    return [engine.FirstTokens(ms, 110.0, 100.0) for ms in router_ms]


def a_scaled_run(*words: int | None, replicas: tuple[int, ...] = (0, 1, 2, 3, 0)) -> autoscaling.ScalingRun:
    """Return a run with a snapshot every 10 s and open streams until 30 s."""
    looks = [autoscaling.Snapshot(10.0 * n, int(n <= 3), up, 0, 0) for n, up in enumerate(replicas)]
    return autoscaling.ScalingRun(4.0, list(words), looks)


def everything() -> list[Figure]:
    pairs = [dag.Pair({"wall_s": 0.63, "critical_path_s": 0.6}, 0.64, 1.28)]
    calls = [disconnects.Disconnect(stage, 10.0, 0) for stage in disconnects.STAGES]
    return [
        *dag.figures(pairs),
        *schedulers.figures([schedulers.Walls(0.7, 0.8, 1.0)]),
        *first_call.figures([a_conductors_record()]),
        *tokens.figures([4.0], [114.0], [8.0]),
        *engine.figures({at_once: [a_round(90.0, 100.0)] for at_once in engine.LINES}, first_tokens(112.0)),
        *metering.figures(
            {
                "plain": metering.Side([[1.0, 1.0, 1.0]], [1000.0]),
                "sqlite": metering.Side([[2.0, 3.0, 9.0]], [800.0]),
                "postgresql": metering.Side([[3.0, 3.0, 3.0]], [500.0]),
            }
        ),
        *tool_turns.figures(
            {
                name: tool_turns.Turns([4.0, 6.0], [2.0, 2.0], [4.0, 6.0])
                for name in ("plain", "sqlite", "postgresql")
            }
        ),
        *watching.figures({n: [watching.WatchedRun(20.0 + n, 900.0 + n)] for n in watching.WATCHERS}),
        *autoscaling.figures(a_scaled_run()),
        *two_engines.figures([True], 30.0, {1: 6.0, 2: 4.0}),
        *adapters.figures(A_SWITCHED_RUN, [A_TO_B]),
        *passthrough.figures([(150.0, 200.0)]),
        *disconnects.figures(calls, 0),
        *streams.figures([streams.TEXT], 1, 0, 2**20),
        *slow_readers.figures(A_QUIET_SERVER, A_FULL_SERVER, 500, 0),
        *peers.litellm_figures([A_ROUND]),
        *peers.smg_figures([A_ROUND]),
        *steps.figures([(2.0, 5.0, 11.0)]),
    ]


def test_all_parts_together_report_every_figure_of_the_catalogue_once() -> None:
    figures = json.loads(json.dumps(to_json(everything())))
    assert figures.keys() == CATALOGUE.keys()
    assert all(isinstance(value, int | float) for value in figures.values())
    assert {name for name in PROMISED if CATALOGUE[name].target is not None} == PROMISED


def test_a_tool_round_trip_is_reported_in_milliseconds_and_requests() -> None:
    figures = values(everything())
    assert (figures["tool_turn_p50_ms_sqlite"], figures["tool_turn_over_request_sqlite"]) == (5.0, 2.5)


def test_the_cost_of_metering_is_the_difference_to_the_same_router_without_it() -> None:
    figures = values(everything())
    measured = [figures[f"metering_{name}_sqlite"] for name in ("added_p50_ms", "rps_over_plain")]
    assert measured == [2.0, 0.8]
    assert figures["metering_added_p99_ms_sqlite"] > 7


def test_an_unknown_or_repeated_figure_is_rejected() -> None:
    with pytest.raises(ValueError, match="speed"):
        to_json([reading("speed", 1)])
    with pytest.raises(ValueError, match="twice"):
        to_json([reading("disconnects", 1), reading("disconnects", 2)])


def test_a_plans_ratios_are_calculated_per_pair() -> None:
    slow = dag.Pair({"wall_s": 1.2, "critical_path_s": 0.6}, 1.5, 1.5)
    good = dag.Pair({"wall_s": 0.63, "critical_path_s": 0.6}, 0.66, 1.32)
    assert values(dag.figures([good, slow, good])) == pytest.approx(
        {
            "dag_wall_over_critical_path": 1.05,
            "dag_client_wall_over_critical_path": 1.1,
            "dag_speedup_over_sequential": 2.0,
        }
    )


def test_the_plans_differ_only_in_their_access_lists() -> None:
    workers = [step["worker"] for step in dag.PARALLEL]
    assert workers == [step["worker"] for step in dag.SEQUENTIAL]
    assert [step["access"] for step in dag.PARALLEL] == [[], [], [], [0, 1, 2]]
    assert [step["access"] for step in dag.SEQUENTIAL] == [[], [0], [1], [2]]


def test_the_first_call_is_timed_from_its_steps_last_byte_to_the_plans_end() -> None:
    assert values(first_call.figures([a_conductors_record()])) == pytest.approx(
        {
            "first_call_after_step_ms": 3,
            "first_call_after_scheduled_byte_ms": 4,
            "first_call_saved_ms": 336,
        }
    )


def test_a_workers_own_delay_is_subtracted_only_from_the_round_trip() -> None:
    got = values(tokens.figures([4.0, 5.0, 60.0], [110.0, 114.0, 160.0], [8.0, 9.0, 10.0]))
    assert got["answer_token_added_p50_ms"] == 5
    assert got["answer_token_added_p95_ms"] == 60
    assert got["round_trip_added_p50_ms"] == pytest.approx(14)
    assert got["bare_serve_p50_ms"] == 9


def test_figures_are_ratios_within_a_round() -> None:
    busy_later = [(150.0, 200.0), (60.0, 80.0), (30.0, 40.0)]
    compared = passthrough.figures(busy_later)[0]
    assert (compared.low, compared.value, compared.high) == (0.75, 0.75, 0.75)


def test_both_sides_of_the_engine_are_compared_per_round() -> None:
    rounds = [a_round(95.0, 100.0), a_round(45.0, 50.0), a_round(19.0, 20.0)]
    got = values(engine.figures({1: rounds, 32: rounds[1:2]}, first_tokens(112.0, 130.0, 114.0)))
    assert got["vllm_tokens_over_bare_1"] == pytest.approx(0.95)
    assert got["vllm_tokens_over_bare_32"] == pytest.approx(0.9)
    assert got["vllm_ttft_added_ms"] == pytest.approx(14)
    assert (got["vllm_ingress_ttft_added_ms"], got["vllm_ttft_over_ingress"]) == pytest.approx((10, 1.4))
    assert (got["vllm_tokens_per_s_32"], got["vllm_bare_tokens_per_s_32"]) == (45, 50)


def test_no_question_is_repeated() -> None:
    questions = [question for _ in range(2) for line in engine.questions(8, 3) for question in line]
    assert len(set(questions)) == len(questions) == 48


def test_the_target_number_of_streams_follows_the_load() -> None:
    assert [
        autoscaling.target_streams(at_s) for at_s in (0, 14.9, 15.1, 29, 37.5, 50, 69, 78, 200)
    ] == pytest.approx([1, 1, 8, 8, 12, 16, 8, 0, 0])


def test_a_stream_interrupted_by_scaling_is_lost() -> None:
    whole = autoscaling.WORDS
    got = values(autoscaling.figures(a_scaled_run(whole, None, whole - 1, whole)))
    assert (got["autoscaling_lost"], got["autoscaling_streams"]) == (2, 4)
    assert (got["autoscaling_replicas_peak"], got["autoscaling_cold_start_s"]) == (3, 4)
    assert got["autoscaling_up_s"] == 20 - autoscaling.STEP_S
    assert got["autoscaling_to_zero_s"] == 10


@pytest.mark.parametrize("replicas", [(0, 1, 1, 0), (0, 1, 2, 1)])
def test_a_run_that_does_not_scale_up_and_down_gives_no_figures(replicas: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="did not scale up and down"):
        autoscaling.figures(a_scaled_run(replicas=replicas))


def test_streams_and_replicas_are_plotted(tmp_path: Path) -> None:
    for name in ("seen.svg", "seen.png"):
        autoscaling.draw(a_scaled_run().snapshots, tmp_path / name)
    assert "replicas up" in (tmp_path / "seen.svg").read_text()
    assert (tmp_path / "seen.png").read_bytes().startswith(b"\x89PNG")


def test_the_less_busy_engine_is_found_by_its_cpu_time() -> None:
    got = values(two_engines.figures([True, False, True], 31.5, {71: 3.0, 72: 9.0}))
    assert (got["two_engines_lesser_share"], got["two_engines_lost"]) == (0.25, 1)
    with pytest.raises(ValueError, match="two engines"):
        two_engines.figures([True], 1.0, {71: 3.0})


def test_a_stream_with_missing_or_wrong_text_is_lost() -> None:
    got = values(streams.figures([streams.TEXT, None, "one two", streams.TEXT], 4, 100 * 2**20, 102 * 2**20))
    assert got == {"open_streams_lost": 2, "open_streams_peak": 4, "router_mb_per_open_stream": 0.5}


def test_a_slow_readers_memory_is_the_increase_divided_by_the_readers() -> None:
    assert values(slow_readers.figures(A_QUIET_SERVER, A_FULL_SERVER, 250, 3)) == {
        "slow_readers": 250,
        "slow_reader_router_mb": 0.4,
        "slow_reader_haproxy_mb": 0.2,
        "slow_reader_kernel_mb": 0.1,
        "slow_readers_left": 3,
    }


def test_a_call_that_stays_open_counts_as_slow_and_not_closed() -> None:
    calls = [disconnects.Disconnect(stage, 5.0, 0) for stage in disconnects.STAGES]
    got = values(disconnects.figures([*calls, disconnects.Disconnect("inner", 5000.0, 2)], runs_left=1))
    assert got["disconnect_to_closed_p95_ms"] == 5000
    assert got["disconnect_planning_p95_ms"] == 5
    assert (got["disconnects"], got["disconnect_calls_left"]) == (4, 3)


def test_the_noise_is_the_range_over_fifths_of_the_repeats() -> None:
    samples = [float(number) for number in range(100)]
    assert p95(samples) == 94
    noisy = figure("disconnect_to_closed_p95_ms", samples, p95)
    assert (noisy.low, noisy.value, noisy.high) == (90, 94, 94)
    assert BLOCKS == 5
    assert p95([7.0]) == 7
    with pytest.raises(ValueError, match="no samples were measured"):
        figure("disconnects", [])


def test_a_target_is_met_at_its_bound_and_missed_beyond() -> None:
    assert FigureSpec("", 15).meets_target(15) is True
    assert FigureSpec("", 15).meets_target(15.1) is False
    assert FigureSpec("", 0.5, "at least").meets_target(0.49) is False
    assert FigureSpec("").meets_target(1e9) is None


def test_the_table_shows_every_figure() -> None:
    assert table(everything()).row_count == len(CATALOGUE)


def test_the_parts_are_those_of_the_command_line() -> None:
    none: Any = None
    shared = list_shared_parts(BenchClient(none, "http://127.0.0.1:9"), none, none, print)
    assert tuple(part.name for part in [*shared, *ISOLATED]) == PARTS


def test_the_settings_match_the_constants_of_the_measurements() -> None:
    settings = yaml.safe_load((BENCH / "settings.yaml").read_text())
    workers = {worker["name"]: worker for worker in settings["workers"]}
    assert [workers[name]["delay_s"] for name in "abc"] == [0.3] * 3
    assert workers["conductor"]["tokens_per_s"] == first_call.TOKENS_PER_S
    assert len(workers["conductor"]["replies"][0].splitlines()) == 3
    assert workers["prompt"]["delay_s"] == tokens.DELAY_S
    assert workers["patient"]["replies"] == [streams.TEXT]
    assert workers["patient"]["delay_s"] > 2 * streams.STREAMS * streams.GAP_S
    served = yaml.safe_load((BENCH / "upstream.yaml").read_text())["workers"]
    assert {worker["model"] for worker in served} == disconnects.SCRIPTS.keys()


async def test_the_upstream_records_when_a_call_answered_and_was_closed() -> None:
    ask = {"model": "answer", "messages": [{"role": "user", "content": "run-x1- what is it?"}]}
    up = FakeOpenAI(disconnects.script_of)
    async with up.running(), aiohttp.ClientSession() as session:
        response = await session.post(f"{up.url}/chat/completions", json=ask)
        await up.wait_until_called("run-x1-", "answer")
        while b"word" not in await response.content.readline():
            pass
        (call,) = up.open_calls("run-x1-")
        assert call.spoke_s is not None
        response.close()
        async with asyncio.timeout(10):
            await up.wait_until_idle("run-x1-")
        assert call.closed_s is not None
        assert call.closed_s >= call.spoke_s
        assert up.calls_of("run-other-") == []


@pytest.mark.parametrize(
    ("asked_s", "first_s", "text", "is_wrong"),
    [
        (1.0, 2.0, " a a a", False),
        (1.0, 2.0, " b b b", True),
        (9.0, 11.0, " b b", False),
        (11.0, 15.0, " a a", False),
        (12.5, 13.0, " a a", True),
        (12.5, 13.0, " b b", False),
        (12.5, 13.0, " b a", True),
        (11.0, 11.5, " c", True),
        (12.5, 13.0, "", True),
        (31.0, 32.0, " b", True),
        (31.0, 32.0, " a", False),
        (12.5, 13.0, None, False),
    ],
)
def test_an_answer_of_an_unused_adapter_or_of_two_is_wrong(
    asked_s: float, first_s: float, text: str | None, is_wrong: bool
) -> None:
    answer = adapters.AdapterAnswer(asked_s, first_s, text)
    switches = [A_TO_B, adapters.Switch("b", "a", asked_s=20.0, done_s=30.0)]
    assert bool(adapters.wrong([answer], switches)) == is_wrong


def test_answers_broken_during_an_adapter_switch_count_as_lost() -> None:
    got = values(adapters.figures([*A_SWITCHED_RUN, adapters.AdapterAnswer(14.0, 15.0, None)], [A_TO_B]))
    assert (got["adapters_lost"], got["adapters_wrong"], got["adapters_answers"]) == (1, 0, 4)
    assert (got["adapters_switch_s"], got["adapters_first_word_switching_ms"]) == (2.0, 500.0)
