"""Where a run is kept: its config, what it was made from, its curves, checkpoints and report. Written so that a cut leaves no half file."""

import hashlib
import json
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from safetensors import SafetensorError

from evaluation.errors import EvaluationError
from evaluation.spec import Spec
from serving.settings import SettingsError
from training.config import Config, load

PACKAGES = ("podium", "torch", "transformers", "trl", "peft", "datasets", "accelerate", "tokenizers")
FROM_FILES = ("jsonl", "recorded")
"""Question sets whose name has a path in it."""


@dataclass(frozen=True, slots=True)
class RunDir:
    """The folder of one run.

    Args:
        path: of it.
        leads: whether this process is the one that writes, of those that train together.
    """

    path: Path
    leads: bool = True

    @classmethod
    def begin(cls, path: Path, config: Config, *, resume: bool) -> "RunFolder":
        """Make the folder, or take up the one that is there. For the process that leads; others take `RunDir(path, leads=False)`.

        Raises:
            SettingsError: there is a run already and `resume` is not said; or it is one of another config, or one whose pool or
                questions have changed since; or a file of theirs cannot be read.
        """
        folder, inputs = cls(path), digests(config)
        if folder.config_file.exists():
            if not resume:
                raise SettingsError(
                    f"{path} holds a run already. Pass --resume to go on with it, or --out for another folder."
                )
            if load(folder.config_file) != config:
                raise SettingsError(
                    f"{path} holds a run of another config: {folder.config_file}. Give that one, or another --out."
                )
            for file, digest in (folder.noted("inputs") or {}).items():
                if inputs.get(file) != digest:
                    raise SettingsError(
                        f"{file} is not what it was when the run in {path} began (inputs.json has its digest). Put the old one back, "
                        "or give another --out."
                    )
            return folder
        path.mkdir(parents=True, exist_ok=True)
        folder.note("inputs", inputs)
        written(folder.pool_file, Path(config.pool.settings).read_text(encoding="utf-8"))
        folder.note(
            "versions", {name: version(name) for name in PACKAGES} | {"python": platform.python_version()}
        )
        written(
            folder.config_file, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
        )  # the last one: a folder that has it is whole
        return folder

    @property
    def config_file(self) -> Path:
        """The config as it was read, whole."""
        return self.path / "config.yaml"

    @property
    def pool_file(self) -> Path:
        """The pool's settings as they were when the run began."""
        return self.path / "pool.yaml"

    @property
    def curves(self) -> Path:
        """One JSON object a GRPO step."""
        return self.path / "curves.jsonl"

    @property
    def warm(self) -> Path:
        """The model after its warm start."""
        return self.path / "warm"

    @property
    def final(self) -> Path:
        """The model, or the adapter, at the end."""
        return self.path / "final"

    def checkpoint(self, stage: str) -> str | None:
        """The newest whole checkpoint of a stage: `checkpoints` or `warm_checkpoints`."""
        found = [
            each
            for each in (self.path / stage).glob("checkpoint-*")
            if (each / "trainer_state.json").exists()
        ]
        return str(max(found, key=lambda each: int(each.name.rpartition("-")[2]))) if found else None

    def note(self, name: str, value: Any) -> None:
        """Keep `value` as JSON under `name`, where this process leads."""
        if self.leads:
            written(self.path / f"{name}.json", json.dumps(value, indent=1, allow_nan=False) + "\n")

    def noted(self, name: str) -> Any:
        """What was kept under `name`; None where nothing was."""
        file = self.path / f"{name}.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def digests(config: Config) -> dict[str, str]:
    """SHA-256 of each file that a run is made from: the pool's settings and the questions.

    Raises:
        SettingsError: one cannot be read, or a question set has no such name.
    """
    try:
        sets = [Spec.read(name) for each in config.questions.also for name in (each.train, each.held_out)]
    except EvaluationError as exc:
        raise SettingsError(f"questions.also: {exc.message}") from exc
    files = [
        config.pool.settings,
        config.questions.path,
        config.questions.held_out_path,
        *(each.detail for each in sets if each.name in FROM_FILES),
    ]
    return {file: _digest(Path(file)) for file in files if file}


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as exc:
        raise SettingsError(f"{path} cannot be read: {exc.strerror}.") from exc


def written(path: Path, text: str) -> None:
    """Write `text` whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def full(exc: BaseException) -> str | None:
    """Why a file could not be written, where that is what `exc` is about; torch and safetensors do not say it with an OSError."""
    if isinstance(exc, OSError) and not isinstance(exc, ConnectionError | TimeoutError):
        return exc.strerror or str(exc)
    told = str(exc)
    if isinstance(exc, RuntimeError) and ("PytorchStreamWriter" in told or "inline_container" in told):
        return "the disk is full, or a file may not grow so large"
    return told if isinstance(exc, SafetensorError) and "I/O error" in told else None
