"""Three schedulers, one plan: ours is never later than plan-then-run, nor that than the sequence."""

import json

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from loadtest.bench import schedulers as bench
from loadtest.capacity import inputs, report
from loadtest.capacity.plans import SimulatedPlan, SimulatedStep, samples
from loadtest.capacity.schedulers import SCHEDULERS, StepTimes, timeline

GIVEN = inputs.load()


@st.composite
def plans_with_times(draw: st.DrawFn) -> list[StepTimes]:
    """Up to six steps, written one after the other, with any reads."""
    seconds = st.floats(0.01, 20)
    steps: list[StepTimes] = []
    for index in range(draw(st.integers(1, 6))):
        lasts_s = draw(seconds)
        reads = draw(st.sets(st.integers(0, index - 1))) if index else set()
        written_s = (steps[-1].written_s if steps else 0) + draw(seconds)
        steps.append(StepTimes(written_s, tuple(sorted(reads)), draw(st.floats(0, lasts_s)), lasts_s))
    return steps


@given(plans_with_times())
def test_no_plan_is_later_with_us_than_with_plan_then_run_or_in_sequence(steps: list[StepTimes]) -> None:
    ours, then_run, sequence = (
        timeline(steps, steps[-1].written_s, name) for name in ("podium", "plan_then_run", "sequential")
    )
    assert ours.end_s <= then_run.end_s <= sequence.end_s
    assert ours.first_token_s <= then_run.first_token_s <= sequence.first_token_s


def test_a_tree_runs_side_by_side_and_while_it_is_written() -> None:
    steps = [StepTimes(1, (), 1, 4), StepTimes(2, (), 1, 4), StepTimes(3, (0, 1), 1, 4)]
    ends_s = {name: timeline(steps, 3, name).end_s for name in SCHEDULERS}
    assert ends_s == {"sequential": 15, "plan_then_run": 11, "podium": 10}
    assert timeline(steps, 3, "podium").starts_s == (1, 2, 6)


def test_one_step_takes_the_same_under_all_three_and_its_answer_waits_for_the_plans_end() -> None:
    assert {timeline([StepTimes(2, (), 1, 3)], 2, name).end_s for name in SCHEDULERS} == {5}
    early = timeline([StepTimes(1, (), 0.5, 1)], 4, "podium")
    assert (early.first_token_s, early.end_s) == (4, 4)


def test_the_sampled_plans_come_in_the_same_order_too_and_steps_are_saved() -> None:
    ends_s = report.scheduler_ends(GIVEN, 200)
    for ours, then_run, sequence in zip(
        *(ends_s[n] for n in ("podium", "plan_then_run", "sequential")), strict=True
    ):
        assert ours <= then_run <= sequence
    assert np.median(ends_s["podium"]) < 0.9 * np.median(ends_s["sequential"])


def test_steps_that_the_last_cannot_reach_are_dead() -> None:
    def a_plan(*reads: tuple[int, ...]) -> SimulatedPlan:
        return SimulatedPlan(tuple(SimulatedStep("a", read, 1, 1, 1) for read in reads), 1)

    assert a_plan((), (0,), (0,)).reachable == {0, 2}
    assert a_plan((), (0,), (1,)).reachable == {0, 1, 2}
    assert a_plan((), ()).reachable == {1}


def test_the_mix_has_the_lengths_and_sizes_that_it_says() -> None:
    plans = samples(GIVEN, 4000, 0)
    lengths = [len(plan.steps) for plan in plans]
    outputs = [step.output_tokens for plan in plans for step in plan.steps]
    assert np.mean(lengths) == pytest.approx(
        sum(n * share for n, share in GIVEN.plans.steps.items()), rel=0.03
    )
    assert np.mean(outputs) == pytest.approx(GIVEN.plans.step_output_tokens.mean, rel=0.05)
    assert samples(GIVEN, 5, 1) == samples(GIVEN, 5, 1) != samples(GIVEN, 5, 2)


def test_the_bench_runs_plans_of_every_length_and_shape_with_workers_that_its_settings_have() -> None:
    plans = bench.sample_plans(bench.PLANS)
    assert bench.PLANS >= 200
    assert {len(plan) for plan in plans} == {1, 2, 3, 4, 5}
    settings = yaml.safe_load((bench.BUILD.parents[1] / "loadtest/bench/schedulers.yaml").read_text())
    workers = {worker["name"]: worker.get("delay_s") for worker in settings["workers"]}
    assert {each["worker"] for plan in plans for each in plan} == set(bench.DELAYS_S)
    assert {name: workers[name] for name in bench.DELAYS_S} == bench.DELAYS_S
    assert settings["models"][bench.MODEL]["max_steps"] >= max(map(len, plans))
    assert json.loads(json.dumps(plans)) == bench.sample_plans(bench.PLANS)


def test_in_sequence_every_step_also_reads_the_one_before() -> None:
    plan = [{"worker": "a", "access": access} for access in ([], [], [0], [0, 1])]
    assert [each["access"] for each in bench.in_sequence(plan)] == [[], [0], [0, 1], [0, 1, 2]]


def test_the_ratios_are_taken_plan_by_plan() -> None:
    walls = [bench.Walls(1.0, 1.0, 1.0), bench.Walls(1.0, 1.25, 2.0), bench.Walls(2.0, 2.5, 4.0)]
    got = {each.name: each.value for each in bench.figures(walls)}
    assert got["wall_over_sequential_p50"] == 0.5
    assert got["wall_over_plan_then_run_p50"] == 0.8
    assert got["wall_over_sequential_p95"] == got["wall_over_plan_then_run_p95"] == 1
    assert got["wall_podium_p50_s"] == 1
