"""Values that a training config accepts, and messages about those it rejects."""

import random
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from conductor.model.worker import PoolMember
from evaluation.synthetic.skills import Skill
from serving.settings.settings import SettingsError
from tests.lazy import lazy
from tests.training.tiny_models import config
from training.config import Schedule, load, parse
from training.examples import check as check_shares
from training.examples import random_plan
from training.supervised_config import WarmStartConfig

arguments = lazy("training.grpo:arguments")
check = lazy("training.grpo:check")

CONFIGS = sorted(Path("training/configs").glob("*.yaml"))
OTHER_SCHEDULES = {
    "reduce_lr_on_plateau",
    "greedy",
    "cosine_with_min_lr",
    "cosine_warmup_with_min_lr",
    "warmup_stable_decay",
}
"""Schedules that need a loss to watch, or arguments."""


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_config_round_trips(path: Path):
    run_config = load(path)
    assert parse(yaml.safe_load(yaml.safe_dump(run_config.model_dump(mode="json")))) == run_config
    check(run_config, 2 if path.stem == "paper" else 1)


def test_a_config_with_a_base_changes_only_its_own_fields():
    third, fourth = (load(f"training/configs/{name}_lesson.yaml") for name in ("third", "fourth"))
    assert third.warm_start is not None
    assert fourth.warm_start == third.warm_start.model_copy(update={"examples": 2800})
    assert (fourth.pool, fourth.grpo) == (third.pool, third.grpo)
    assert (third.seed, fourth.seed) == (3, 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": -1}, "seed: Input should be greater than or equal to 0"),
        ({"seed": 2**32}, "seed: Input should be less than or equal to 4294967295"),
        ({"questions": {"seed": -1}}, "questions.seed: Input should be greater than or equal to 0"),
        ({"grpo": {"schedule": "nonsense"}}, "grpo.schedule: Input should be 'linear', 'cosine'"),
        (
            {"grpo": {"schedule": "polynomial", "learning_rate": 1e-7}},
            "grpo: learning_rate must be above 1e-07",
        ),
        ({"grpo": {"recursion": {}, "vllm": {}}}, "grpo: recursion and vllm cannot be used together"),
        (
            {"warm_start": {"step_shares": []}},
            "warm_start.step_shares: at least one share must be above 0, such as",
        ),
        (
            {"warm_start": {"step_shares": [0, 0]}},
            "warm_start.step_shares: at least one share must be above 0",
        ),
        (
            {"warm_start": {"step_shares": [1, -1]}},
            "warm_start.step_shares.1: Input should be greater than or equal to 0",
        ),
        (
            {"warm_start": {"step_shares": [float("inf")]}},
            "warm_start.step_shares.0: Input should be a finite number",
        ),
        ({"warm_start": {"step_shares": [float("nan")]}}, "warm_start.step_shares.0: Input should be"),
        (
            {"warm_start": {"fields": ["x", "subtask", "access"]}},
            "warm_start.fields: must be worker, subtask and access in any order, optionally after needs, but is x, subtask",
        ),
        ({"warm_start": {"fields": ["worker"] * 3}}, "optionally after needs, but is worker, worker, worker"),
        (
            {"warm_start": {"worker_shares": {"adder": 1.5}}},
            "warm_start.worker_shares.adder: Input should be less than",
        ),
        (
            {"warm_start": {"worker_shares": {"adder": float("nan")}}},
            "warm_start.worker_shares.adder: Input should be",
        ),
        (
            {"warm_start": {"worker_shares": {"adder": 0.8, "speller": 0.4}}},
            "worker_shares: the shares must sum to at most 1, but sum to 1.2",
        ),
        (
            {"model": {"scratch": {"hidden": 64, "heads": 5}}},
            "model.scratch: hidden must be a multiple of 10",
        ),
        (
            {"model": {"scratch": {"hidden": 18, "heads": 6}}},
            "must be a multiple of 12 (twice the number of heads), but is 18",
        ),
        (
            {"model": {"scratch": None, "path": "some/model", "lora": {"kept": 0.5}}},
            "model.lora: kept requires start. Set start to the folder of an adapter, or remove kept",
        ),
        ({"look_up": {"examples": 20}}, "look_up requires that `needs` is the first of warm_start.fields"),
        (
            {"warm_start": None, "expected_reward": {"examples": 20}},
            "expected_reward requires warm_start. Add warm_start, or remove expected_reward",
        ),
        *(
            ({"name": name}, "name: String should match pattern")
            for name in (".", "..", ".hidden", "-x", "a/b")
        ),
        (
            {"questions": {"also": [{"train": "a", "held_out": "b", "share": 0.6}] * 2}},
            "must sum to less than 1",
        ),
    ],
)
def test_an_unusable_config_is_rejected_with_its_field(tmp_path: Path, changes: dict[str, Any], message: str):
    with pytest.raises(SettingsError, match=re.escape(message)):
        config(tmp_path, **changes)


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        ({"settings": ""}, "pool.settings: String should have at least 1 character"),
        ({"teams": {"skills": []}}, "pool.teams.skills: Tuple should have at least 1 item"),
        (
            {"teams": {"skills": ["adder", "speller", "adder"]}},
            "pool.teams: skills lists the worker 'adder' twice. List each worker once",
        ),
    ],
)
def test_an_empty_pool_or_team_or_a_repeated_worker_is_rejected(
    tmp_path: Path, pool: dict[str, Any], message: str
):
    data = config(tmp_path).model_dump(mode="json")
    data["pool"] |= pool
    with pytest.raises(SettingsError, match=re.escape(message)):
        parse(data)


def test_shares_may_sum_to_one_within_rounding(tmp_path: Path):
    shares = {"a": 0.7, "b": 0.2, "c": 0.1}
    assert config(tmp_path, warm_start={"worker_shares": shares}).warm_start is not None


def test_a_missing_or_invalid_config_file_is_an_error(tmp_path: Path):
    path = tmp_path / "c.yaml"
    with pytest.raises(SettingsError, match=r"c.yaml cannot be read: No such file"):
        load(path)
    path.write_bytes("name: größer".encode("latin-1"))
    with pytest.raises(SettingsError, match=r"c.yaml is not UTF-8: .* Save it as UTF-8"):
        load(path)
    path.write_text("name: [", "utf-8")
    with pytest.raises(SettingsError, match=r"c.yaml is not valid YAML"):
        load(path)


@pytest.mark.parametrize("base", ["base: third_lesson.yaml", "[]"])
def test_a_base_with_a_base_or_without_fields_is_an_error(tmp_path: Path, base: str):
    (tmp_path / "base.yaml").write_text(base)
    (tmp_path / "c.yaml").write_text("base: base.yaml")
    with pytest.raises(SettingsError, match=r"base.yaml cannot be the base of .*c.yaml. A base must be"):
        load(tmp_path / "c.yaml")


def test_the_schedules_are_the_transformers_ones_without_extra_arguments():
    import torch
    from transformers import SchedulerType, get_scheduler

    assert set(get_args(Schedule)) == {each.value for each in SchedulerType} - OTHER_SCHEDULES
    for name in get_args(Schedule):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
        get_scheduler(name, optimizer, num_warmup_steps=2, num_training_steps=10)


@pytest.mark.parametrize(
    ("grpo", "processes", "message"),
    [
        (
            {"micro_batch": 3},
            1,
            r"8 completions of a step \(questions x completions\) .* 1 x micro_batch 3\. Set grpo.micro_batch to 2",
        ),
        (
            {"micro_batch": 3, "recursion": {}},
            1,
            r"16 completions of a step \(questions x completions x 2 rounds\) .*\. Set grpo.micro_batch to 2",
        ),
        ({}, 3, r"8 completions .* a multiple of 3, or change the number of processes"),
        ({}, 9, r"8 completions .* a multiple of 9, or change the number of processes"),
        ({"recursion": {}}, 2, r"grpo.recursion works with only one process, but there are 2"),
    ],
)
def test_a_step_must_be_divisible_among_the_processes(
    tmp_path: Path, grpo: dict[str, Any], processes: int, message: str
):
    run_config = config(tmp_path, grpo=grpo)
    with pytest.raises(SettingsError, match=message):
        check(run_config, processes)
    with pytest.raises(SettingsError, match=message):
        arguments(run_config, tmp_path, processes)


def test_a_micro_batch_is_at_most_a_processs_share_of_the_batch(tmp_path: Path):
    run_config = config(tmp_path, grpo={"micro_batch": 6})
    check(run_config, 2)
    assert arguments(run_config, tmp_path, 2).per_device_train_batch_size == 4


def test_shares_of_unknown_workers_are_rejected():
    pool = ["adder", "speller"]
    check_shares(WarmStartConfig(worker_shares={"adder": 0.5}), pool, 2)
    with pytest.raises(
        SettingsError, match=r"warm_start.worker_shares: unknown worker 'adde'. Choose from: adder, speller"
    ):
        check_shares(WarmStartConfig(worker_shares={"adde": 0.5}), pool, 2)
    with pytest.raises(
        SettingsError,
        match=r"step_shares only has shares for plans with more than 2 steps, which is the pool's max_steps",
    ):
        check_shares(WarmStartConfig(step_shares=(0, 0, 1)), pool, 2)


def test_workers_without_a_share_are_drawn_uniformly():
    team = [PoolMember(name, Skill(name, None), "") for name in ("b", "c")]
    run_config = WarmStartConfig(step_shares=(1.0,), names=True)
    texts = {
        random_plan(random.Random(seed), run_config, team, 1, "steps", shares={"a": 1.0})
        for seed in range(20)
    }
    assert len(texts) == 2
