"""Simulation: it follows queueing theory, and a seed reproduces a run."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import simpy
import yaml

from loadtest import percentile
from loadtest.capacity import inputs
from loadtest.capacity.arrivals import poisson
from loadtest.capacity.cluster import SimulatedRun, Sizes, chunk_ends, simulate
from loadtest.capacity.deployed import ROOT
from loadtest.capacity.plans import SimulatedPlan, SimulatedStep, samples
from loadtest.capacity.sizing import engine_s, loads, router_s, size, slice_of
from loadtest.capacity.stations import ApiStation, Cores, EngineReplica, Process
from loadtest.capacity.validation import compare_cpu, compare_rate
from loadtest.capacity.whatif import requirements_by_change

INPUTS = inputs.load()
SIZES = size(INPUTS, 4, samples(INPUTS, 3000, 0)).sizes


def an_engine(**changes: object) -> inputs.EngineSpec:
    """Return an engine of 10 ms per step for one sequence and 20 ms for ten, with immediate prefill."""
    base = INPUTS.engines["32b"].model_dump() | {
        "max_num_seqs": 10,
        "memory_seqs": 1000,
        "step_ms": {1: 10, 10: 20},
        "prefill_tokens_per_s": 1e9,
    }
    return inputs.EngineSpec.model_validate(base | changes)


def run_simulation(
    rate_rps: float = 4, *, lasts_s: float = 200, sizes: Sizes = SIZES, seed: int = 0, **more: object
) -> SimulatedRun:
    times = poisson(rate_rps, lasts_s, np.random.default_rng(seed))
    plans = samples(INPUTS, len(times), seed + 1)
    return simulate(INPUTS, sizes, times, plans, seed=seed, **more)  # type: ignore[arg-type]


def ends_s(run: SimulatedRun) -> list[float]:
    return [each.end_s - each.arrived_s for each in run.requests]


def open_queue(station: Cores, arrivals: list[float], service_s: Callable[[], float]) -> list[float]:
    """Return how long each arrival waited and was served."""
    took_s: list[float] = []

    def one() -> Process:
        began_s = station.env.now
        yield from station.work(service_s())
        took_s.append(station.env.now - began_s)

    def come() -> Process:
        for at_s in arrivals:
            yield station.env.timeout(at_s - station.env.now)
            station.env.process(one())

    station.env.process(come())
    station.env.run()
    return took_s


def erlang_c(servers: int, offered: float) -> float:
    """Return the probability of waiting in M/M/c (Erlang, 1917)."""
    full = offered**servers / math.factorial(servers) * servers / (servers - offered)
    return full / (sum(offered**k / math.factorial(k) for k in range(servers)) + full)


@pytest.mark.parametrize("servers", [1, 4])
def test_core_waiting_times_follow_erlang_and_the_utilisation_law(servers: int) -> None:
    rng, rate, mean_s = np.random.default_rng(5), 0.7 * servers, 1.0
    arrivals = poisson(rate, 40_000 / servers, rng)
    cores = Cores(simpy.Environment(), servers)
    took_s = open_queue(cores, arrivals.tolist(), lambda: float(rng.exponential(mean_s)))
    expected_s = mean_s + erlang_c(servers, rate * mean_s) * mean_s / (servers - rate * mean_s)
    assert np.mean(took_s) == pytest.approx(expected_s, rel=0.06)
    assert cores.busy_s / cores.env.now / servers == pytest.approx(0.7, rel=0.03)


def test_a_single_call_takes_its_prompt_time_and_one_step_per_token() -> None:
    env = simpy.Environment()
    engine = EngineReplica(env, an_engine(prefill_tokens_per_s=1000, chunk_tokens=100))
    first, last = engine.call(500, [1, 100])
    env.run(first)
    assert env.now == pytest.approx(0.5 + 0.01)
    env.run(last)
    assert env.now == pytest.approx(0.5 + 1.0)
    assert engine.ongoing == 0


def test_ten_calls_share_the_batch_and_an_eleventh_waits() -> None:
    env = simpy.Environment()
    engine = EngineReplica(env, an_engine())
    calls = [engine.call(1, [100])[0] for _ in range(11)]
    env.run(env.all_of(calls[:10]))
    assert env.now == pytest.approx(2.0, rel=1e-3)
    assert engine.ongoing == 1
    env.run(calls[10])
    assert env.now == pytest.approx(3.0, rel=1e-3)


def test_a_prompts_prefill_slows_concurrent_decoding() -> None:
    def took_s(prompt_tokens: int) -> float:
        env = simpy.Environment()
        engine = EngineReplica(env, an_engine(prefill_tokens_per_s=10_000, chunk_tokens=500))
        last = engine.call(1, [200])[0]
        if prompt_tokens:
            engine.call(prompt_tokens, [1])
        env.run(last)
        return env.now

    assert took_s(0) < took_s(2000) < took_s(8000)


def test_an_api_over_its_quota_starts_calls_at_the_quotas_rate() -> None:
    env = simpy.Environment()
    spec = INPUTS.apis["gpt-5"].model_copy(
        update={"requests_per_minute": 60.0, "tokens_per_minute": None, "first_token_sigma": 0.0}
    )
    api = ApiStation(env, spec, np.random.default_rng(0))
    calls = [api.call(10, [1])[0] for _ in range(180)]
    env.run(env.all_of(calls))
    assert env.now == pytest.approx(120 + spec.first_token_s, abs=1.1)
    assert api.ongoing == 0


def test_equal_seeds_give_equal_runs_and_others_do_not() -> None:
    one, again, other = (run_simulation(seed=seed, lasts_s=30) for seed in (1, 1, 2))
    assert one.requests == again.requests
    assert ends_s(one) != ends_s(other)


def test_twice_the_replicas_increase_neither_the_mean_nor_the_p95_wait() -> None:
    tight = Sizes(
        SIZES.routers, {name: max(1, count // 2) for name, count in SIZES.engines.items()}, SIZES.quotas
    )
    twice = Sizes(2 * tight.routers, {name: 2 * count for name, count in tight.engines.items()}, SIZES.quotas)
    slower, faster = ends_s(run_simulation(sizes=tight)), ends_s(run_simulation(sizes=twice))
    assert np.mean(faster) < np.mean(slower)
    assert percentile(faster, 95) <= 1.02 * percentile(slower, 95)


def test_engine_and_router_utilisation_follows_the_utilisation_law() -> None:
    times = poisson(4, 900, np.random.default_rng(0))
    plans = samples(INPUTS, len(times), 1)
    busy = simulate(INPUTS, SIZES, times, plans, since_s=300).busy
    work = loads(INPUTS, plans)
    for name, engine in INPUTS.engines.items():
        assert busy[name] == pytest.approx(
            4 * engine_s(engine, work[name]) / SIZES.engines[name], rel=0.12
        ), name
    assert busy["router"] == pytest.approx(4 * router_s(INPUTS, plans) / SIZES.routers, rel=0.12)


def test_first_tokens_arrive_after_the_plan_and_before_the_end() -> None:
    for each in run_simulation(lasts_s=60).requests:
        assert each.arrived_s < each.planned_s <= each.first_token_s <= each.end_s


def test_a_higher_rate_needs_more_machines_in_the_same_proportions() -> None:
    plans = samples(INPUTS, 3000, 0)
    small, large = size(INPUTS, 10, plans), size(INPUTS, 1000, plans)
    assert small.gpus < large.gpus
    assert small.machines_usd_per_hour < large.machines_usd_per_hour
    assert large.apis_usd_per_hour == pytest.approx(100 * small.apis_usd_per_hour)
    assert [need.ratio for need in large.needs] == sorted((need.ratio for need in large.needs), reverse=True)
    part = slice_of(large, 10)
    assert part.engines["32b"] == pytest.approx(large.sizes.engines["32b"] / 100, abs=0.5)


def test_steps_that_the_last_step_does_not_need_are_unused() -> None:
    def a_plan(*reads: tuple[int, ...]) -> SimulatedPlan:
        return SimulatedPlan(tuple(SimulatedStep("a", read, 1, 1, 1) for read in reads), 1)

    assert a_plan((), (0,), (0,)).reachable == {0, 2}
    assert a_plan((), (0,), (1,)).reachable == {0, 1, 2}
    assert a_plan((), ()).reachable == {1}


def test_the_mix_has_the_configured_lengths_and_sizes() -> None:
    plans = samples(INPUTS, 4000, 0)
    lengths = [len(plan.steps) for plan in plans]
    outputs = [step.output_tokens for plan in plans for step in plan.steps]
    assert np.mean(lengths) == pytest.approx(
        sum(n * share for n, share in INPUTS.plans.steps.items()), rel=0.03
    )
    assert np.mean(outputs) == pytest.approx(INPUTS.plans.step_output_tokens.mean, rel=0.05)
    assert samples(INPUTS, 5, 1) == samples(INPUTS, 5, 1) != samples(INPUTS, 5, 2)


def test_a_long_answer_is_streamed_in_chunks() -> None:
    assert chunk_ends(1, 64) == [1]
    assert chunk_ends(64, 64) == [1, 64]
    assert chunk_ends(150, 64) == [1, 64, 128, 150]


def test_the_simulation_matches_the_measured_latency_below_saturation() -> None:
    assert INPUTS.checked is not None
    rows = [compare_rate(INPUTS, INPUTS.checked, at) for at in INPUTS.checked.rates]
    room = [row for row in rows if row["rate_rps"] * row["real_router_cpu_ms"] / 1000 < 0.7]
    assert {row["streamed"] for row in room} == {True, False}
    assert len(room) >= 4
    for row in room:
        assert abs(row["error_p50_ms"]) < 0.05, row
        assert abs(row["error_p95_ms"]) < 0.1, row
        assert abs(row["error_done_rps"]) < 0.05, row
        assert -0.1 < row["error_router_cpu_ms"] < 0.45, (
            row
        )  # at most slightly too cheap; a busy router reads more per wake-up


def test_the_routers_cpu_is_predicted_for_requests_not_used_in_the_fit() -> None:
    assert INPUTS.checked is not None
    rows = compare_cpu(INPUTS, INPUTS.checked)
    assert {row["streamed"] for row in rows} == {True, False}
    for row in rows:
        assert abs(row["error"]) < 0.6, row  # a nearly idle router reads fewer tokens per wake-up


def test_the_available_replicas_are_those_of_the_serve_config() -> None:
    needs = size(INPUTS, 1000, samples(INPUTS, 3000, 0)).needs
    there = {need.name: need.available for need in needs if need.setting}
    serve = yaml.safe_load((ROOT / INPUTS.deployed.serve).read_text())
    deployments = {each["name"]: each for each in serve["applications"][0]["deployments"]}
    assert there["router"] == deployments["router"]["num_replicas"]
    of_32b = [
        deployments[f"vllm-{name}"]["autoscaling_config"]["max_replicas"]
        for name in INPUTS.engines["32b"].workers
    ]
    assert there["32b"] == sum(of_32b)


def test_a_second_look_adds_a_conductor_call_and_delays_the_answer() -> None:
    def looking(share: float) -> inputs.Inputs:
        look = INPUTS.plans.second_look.model_copy(update={"share": share})
        return INPUTS.model_copy(update={"plans": INPUTS.plans.model_copy(update={"second_look": look})})

    never, always = looking(0.0), looking(1.0)
    plans = {
        each: samples(case_inputs, 300, 0) for each, case_inputs in (("never", never), ("always", always))
    }
    calls = [
        loads(never, plans["never"])["qwen2.5-7b"].calls,
        loads(always, plans["always"])["qwen2.5-7b"].calls,
    ]
    assert calls == [1, 2]
    assert router_s(always, plans["always"]) < router_s(never, plans["never"]) * 1.5
    times = poisson(2, 30, np.random.default_rng(0))
    kept_back = simulate(always, SIZES, times, samples(always, len(times), 1)).requests
    at_once = simulate(never, SIZES, times, samples(never, len(times), 1)).requests
    assert all(each.first_token_s == pytest.approx(each.end_s, abs=0.2) for each in kept_back)
    assert np.median([e.first_token_s - e.arrived_s for e in kept_back]) > np.median(
        [e.first_token_s - e.arrived_s for e in at_once]
    )


def test_a_batch_is_limited_by_the_engines_memory_and_its_setting() -> None:
    assert an_engine(max_num_seqs=8).batch == 8
    assert an_engine(memory_seqs=6).batch == 6


def test_serves_own_proxy_needs_more_routers_and_a_second_round_more_conductors() -> None:
    requirements = requirements_by_change(INPUTS, 1000, plans=2000)
    now = requirements["no change"].sizes
    assert requirements["Serve's own proxy in place of HAProxy"].sizes.routers > 2 * now.routers
    assert (
        requirements["a second round for every request"].sizes.engines["qwen2.5-7b"]
        > now.engines["qwen2.5-7b"]
    )
