"""Fixtures of training: one thread of PyTorch, and a conductor after its warm start."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.training.tiny_models import config


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """Limit PyTorch to one thread: more threads take ten times as long if other tests use the cores."""
    import torch

    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # in other processes
        yield


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished warm start, which runs copy instead of training their own."""
    from training.run import TrainingRun
    from training.run_dir import RunDir

    path = tmp_path_factory.mktemp("warm")
    run_config = config(path, grpo={"steps": 0})
    TrainingRun(run_config, RunDir.begin(path / "run", run_config, resume=False)).run()
    return path / "run" / "warm"


@pytest.fixture
def warm_start(warm: Path, tmp_path: Path) -> None:
    """Let runs in these folders begin after the warm start."""
    for name in ("run", "cut"):
        shutil.copytree(warm, tmp_path / name / "warm")
