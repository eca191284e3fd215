"""`podium adapter publish` publishes a valid adapter, and rejects an invalid one with the reason."""

import subprocess
from pathlib import Path

import pytest

from serving.lora.adapters import digest, verify
from tests.conftest import PODIUM, ROOT
from tests.serving.adapter_files import adapter, lora, safetensors


def published(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [PODIUM, "adapter", "publish", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_the_command_prints_the_path_of_the_published_adapter(tmp_path: Path) -> None:
    source = adapter(tmp_path / "made")
    result = published(source, "--to", tmp_path / "store", "--label", "mine")
    where = Path(result.stdout.strip())
    assert (result.returncode, where) == (0, tmp_path / "store" / f"mine@{digest(source)}")
    verify(where, where.name)


@pytest.mark.parametrize(("hidden", "config", "why"), [(4, {}, "a different model"), (8, {"use_dora": True}, "DoRA")])  # fmt: skip
def test_an_adapter_that_no_engine_can_serve_is_not_published(
    tmp_path: Path, hidden: int, config: dict[str, bool], why: str
) -> None:
    source, model = adapter(tmp_path / "made", lora(hidden=hidden), **config), tmp_path / "model"
    model.mkdir()
    weights = safetensors({"model.layers.0.self_attn.q_proj.weight": (8, 8)})
    (model / "model.safetensors").write_bytes(weights)
    result = published(source, "--to", tmp_path / "store", "--model", model)
    assert (result.returncode, why in result.stderr, result.stdout) == (1, True, "")
    assert not (tmp_path / "store").exists()
