"""Comparison of three schedulers plan by plan, with plans of each length."""

import json

import yaml

from loadtest.bench import schedulers as bench


def test_the_bench_runs_plans_of_every_length_with_workers_of_its_settings() -> None:
    plans = bench.sample_plans(bench.PLANS)
    assert bench.PLANS >= 200
    assert {len(plan) for plan in plans} == {1, 2, 3, 4, 5}
    settings = yaml.safe_load((bench.BUILD.parents[1] / "loadtest/bench/schedulers.yaml").read_text())
    workers = {worker["name"]: worker.get("delay_s") for worker in settings["workers"]}
    assert {each["worker"] for plan in plans for each in plan} == set(bench.DELAYS_S)
    assert {name: workers[name] for name in bench.DELAYS_S} == bench.DELAYS_S
    assert settings["models"][bench.MODEL]["max_steps"] >= max(map(len, plans))
    assert json.loads(json.dumps(plans)) == bench.sample_plans(bench.PLANS)


def test_in_sequence_every_step_also_reads_the_previous_one() -> None:
    plan = [{"worker": "a", "access": access} for access in ([], [], [0], [0, 1])]
    assert [each["access"] for each in bench.in_sequence(plan)] == [[], [0], [0, 1], [0, 1, 2]]


def test_the_ratios_are_calculated_per_plan() -> None:
    walls = [bench.Walls(1.0, 1.0, 1.0), bench.Walls(1.0, 1.25, 2.0), bench.Walls(2.0, 2.5, 4.0)]
    got = {each.name: each.value for each in bench.figures(walls)}
    assert got["wall_over_sequential_p50"] == 0.5
    assert got["wall_over_plan_then_run_p50"] == 0.8
    assert got["wall_over_sequential_p95"] == got["wall_over_plan_then_run_p95"] == 1
    assert got["wall_podium_p50_s"] == 1
