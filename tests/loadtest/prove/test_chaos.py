"""`make prove-chaos`: its settings, its verdict on a round, and one round."""

import subprocess
import sys
from collections import Counter

import pytest

from loadtest.prove.chaos import ENGINE, STAND_IN, Json, engine_settings, replicas_of, settings_with
from loadtest.prove.chaos_load import LOST, ChaosResult
from loadtest.prove.chaos_victims import kinds_of
from serving.settings.settings import Settings
from tests.conftest import ROOT


@pytest.mark.parametrize("worker", [STAND_IN, engine_settings()], ids=["stand-in", "real"])
def test_the_settings_of_the_chaos_proof_are_valid_and_have_an_engine(worker: Json) -> None:
    settings = Settings.model_validate(settings_with(worker))
    assert f"vllm-{settings.worker('engine').name}" == ENGINE
    assert replicas_of(settings_with(worker))[ENGINE] == (2 if worker is STAND_IN else 1)


def test_faults_are_available_only_for_existing_processes() -> None:
    assert {"engine", "manager", "head"} & set(kinds_of(has_haproxy=False, has_engine=False)) == set()
    assert {"engine", "manager", "node"} <= set(kinds_of(has_haproxy=True, has_engine=True))
    assert "head" in kinds_of(has_haproxy=True, has_engine=False, has_redis=True)


@pytest.mark.parametrize(
    ("result", "is_right"),
    [
        (ChaosResult(durable_runs={"finished": 3}, broken_connections=2, not_connected=1), True),
        (ChaosResult(wrongly_complete=1), False),
        (ChaosResult(given_up=1), False),
        (ChaosResult(still_running=1), False),
        (ChaosResult(durable_runs={"finished": 3, "lost": 1}), False),
        (ChaosResult(accepted_background_runs=Counter(finished=2)), True),
        (ChaosResult(accepted_background_runs=Counter({"finished": 2, "no record": 1})), False),
        (ChaosResult(broken_connections=2, records_of_broken_runs=Counter(lost=1, cancelled=1)), True),
        (ChaosResult(broken_connections=1, records_of_broken_runs=Counter({"no record": 1})), False),
    ],
)
def test_a_round_fails_if_an_incomplete_answer_or_background_run_is_missed(
    result: ChaosResult, is_right: bool
) -> None:
    assert result.is_right() == is_right


def test_runs_broken_with_their_router_are_lost_unless_the_client_left() -> None:
    assert ChaosResult(broken_connections=2, records_of_broken_runs=Counter(lost=1, finished=1)).is_right(
        LOST
    )
    assert not ChaosResult(
        broken_connections=2, records_of_broken_runs=Counter(lost=1, cancelled=1)
    ).is_right(LOST)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killing_a_router_during_200_workflows_loses_no_record() -> None:
    command = [sys.executable, "-m", "podium.cli", "prove", "chaos", "--rounds", "1", "--kinds", "router"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert process.returncode == 0, process.stdout + process.stderr
    assert process.stdout.startswith("router | 200 | "), process.stdout
