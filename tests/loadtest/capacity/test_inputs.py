"""Inputs of the simulation: rejected with field and reason, and traffic of each kind."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from loadtest.capacity.arrivals import burst, diurnal, from_csv, poisson, traffic
from loadtest.capacity.cli import main
from loadtest.capacity.deployed import ROOT
from loadtest.capacity.inputs import INPUTS, Inputs, InputsError, load


def write_inputs(tmp_path: Path, **changes: Any) -> Path:
    """Write the shipped inputs, with `a__b=value` replacing a.b."""
    content = yaml.safe_load(INPUTS.read_text())
    for where, value in changes.items():
        *path, last = where.split("__")
        at = content
        for name in path:
            at = at[name]
        at[last] = value
    file = tmp_path / "inputs.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"conductor": "gpt-9"}, "`conductor` names 'gpt-9', which does not exist"),
        ({"router__machine": "abacus"}, "`router.machine` names 'abacus', which does not exist"),
        ({"plans__steps": {1: 0.5, 2: 0.4}}, "the shares of `steps` must sum to 1, not 0.9"),
        ({"plans__shapes": {"chain": 0.5, "ring": 0.5}}, "plans.shapes"),
        ({"router__cpu_ms_per_request": -1}, "router.cpu_ms_per_request"),
        ({"router__source": ""}, "router.source"),
        ({"sizing__engine_utilisation": 1}, "sizing.engine_utilisation"),
        ({"workers__gpt-5": {"share": 0.15, "api": "gpt-5", "engine": "32b"}}, "either `engine` or `api`"),
        ({"workers__gpt-5": {"share": 0.5, "api": "gpt-5"}}, "shares of `workers`"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_invalid_inputs_are_rejected_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputsError, match=re.escape(message)):
        load(write_inputs(tmp_path, **changes))


def test_the_numbers_for_autoscaling_in_older_inputs_are_ignored(tmp_path: Path) -> None:
    assert (
        load(write_inputs(tmp_path, autoscaling={"interval_s": 10}, engines__32b__cold_start_s=390)) == load()
    )


def test_a_batch_larger_than_the_table_is_rejected(tmp_path: Path) -> None:
    engine = yaml.safe_load(INPUTS.read_text())["engines"]["32b"] | {
        "max_num_seqs": 4096,
        "memory_seqs": 4096,
    }
    with pytest.raises(InputsError, match="step_ms"):
        load(write_inputs(tmp_path, engines__32b=engine))


def test_a_missing_file_and_invalid_yaml_have_different_errors(tmp_path: Path) -> None:
    with pytest.raises(InputsError, match="cannot be read"):
        load(tmp_path / "none.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("plans: [")
    with pytest.raises(InputsError, match="not YAML"):
        load(broken)


def test_every_section_with_numbers_has_a_source_and_a_date() -> None:
    inputs = load()
    sections = [inputs.plans, inputs.router, inputs.sizing, inputs.checked]
    sections += [
        *inputs.engines.values(),
        *inputs.apis.values(),
        *inputs.machines.values(),
        *inputs.ceilings.values(),
    ]
    assert all(section is not None and section.source and section.date for section in sections)
    assert set(Inputs.model_fields) == set(yaml.safe_load(INPUTS.read_text()))


def test_batches_targets_and_prices_come_from_the_cluster_files() -> None:
    inputs = load()
    prices = yaml.safe_load((ROOT / inputs.deployed.prices).read_text())["instances"]
    for name, machine in inputs.machines.items():
        assert machine.usd_per_hour == prices[name][f"{machine.bought}_usd_per_h"]
    workers = yaml.safe_load((ROOT / inputs.deployed.settings).read_text())["workers"]
    batches = {each["name"]: each["engine"]["max_num_seqs"] for each in workers if "engine" in each}
    for engine in inputs.engines.values():
        assert {batches[name] for name in engine.workers} == {engine.max_num_seqs}
    document = yaml.safe_load(INPUTS.read_text())
    assert not any("max_num_seqs" in each or "max_replicas" in each for each in document["engines"].values())
    assert not any("usd_per_hour" in each for each in document["machines"].values())


def test_a_number_in_the_inputs_overrides_the_cluster_files(tmp_path: Path) -> None:
    inputs = load(write_inputs(tmp_path, router__replicas=5, engines__32b__max_num_seqs=12))
    assert (inputs.router.replicas, inputs.engines["32b"].max_num_seqs) == (5, 12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engines__32b__workers": ["qwen9"]}, "'vllm-qwen9' is not one of the deployments of `serve`"),
        (
            {"engines__32b__workers": ["conductor", "qwen3-32b"]},
            "max_num_seqs of engine '32b' has different values in the cluster files: 128, 64",
        ),
        ({"machines__abacus": {"bought": "spot"}}, "'abacus' is not one of the prices under `prices`"),
        ({"deployed__serve": "cluster/none.yaml"}, "cluster/none.yaml cannot be read"),
    ],
)
def test_a_value_missing_in_the_cluster_files_is_an_error(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputsError, match=re.escape(message)):
        load(write_inputs(tmp_path, **changes))


def test_the_command_rejects_invalid_inputs_and_rates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--inputs", str(write_inputs(tmp_path, conductor="gpt-9"))]) == 2
    assert "gpt-9" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--rates", "10,many"])
    assert "'many'" in capsys.readouterr().err


def test_an_unwritable_folder_is_reported_before_the_simulations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a file").touch()
    assert main(["--out", str(tmp_path / "a file")]) == 2
    assert "--out: cannot write to" in capsys.readouterr().err


def test_poisson_traffic_has_its_rate_and_exponential_gaps() -> None:
    times = poisson(50, 400, np.random.default_rng(0))
    gaps = np.diff(times)
    assert len(times) == pytest.approx(20_000, rel=0.03)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)


def test_daily_traffic_has_a_low_at_night_and_a_burst_a_peak() -> None:
    rng = np.random.default_rng(0)
    night, noon = np.histogram(diurnal(50, 1000, rng), bins=[0, 100, 450, 550])[0][[0, 2]]
    assert noon == pytest.approx(50 * 100, rel=0.1)
    assert noon > 4 * night
    before, middle = np.histogram(burst(30, 1500, rng), bins=[0, 200, 650, 850])[0][[0, 2]]
    assert middle == pytest.approx(3 * before, rel=0.1)


def test_a_trace_is_sorted_and_an_invalid_one_rejected(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("arrival_s,who\n3.5,a\n1,b\n")
    assert traffic(str(trace), 1, 1, np.random.default_rng(0)).tolist() == [1.0, 3.5]
    for content in ("at\n1\n", "arrival_s\nsoon\n", "arrival_s\n-1\n", "arrival_s\n"):
        trace.write_text(content)
        with pytest.raises(InputsError, match="arrival_s"):
            from_csv(trace)
    with pytest.raises(InputsError, match="unknown traffic 'tides'"):
        traffic("tides", 1, 1, np.random.default_rng(0))
