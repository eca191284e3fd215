"""Where a run is kept: its config, inputs, curves, checkpoints and report. No write leaves half a file."""

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
from serving.settings.settings import SettingsError
from training.config import Config, load

PACKAGES = ("podium", "torch", "transformers", "trl", "peft", "datasets", "accelerate", "tokenizers")
FILE_SOURCES = ("jsonl", "recorded")
"""Question sets whose detail is a path."""


@dataclass(frozen=True, slots=True)
class RunDir:
    """The folder of one run.

    Args:
        path: of it.
        is_main: whether this process is the one that writes, of those that train together.
    """

    path: Path
    is_main: bool = True

    @classmethod
    def begin(cls, path: Path, config: Config, *, resume: bool) -> "RunDir":
        """Create the folder, or resume the run in it. For the main process alone.

        Raises:
            SettingsError: it holds a run and `resume` is false; the run has another config, or its pool or
                questions have changed since; or one of their files cannot be read.
        """
        run_dir, inputs = cls(path), digests(config)
        if run_dir.config_file.exists():
            run_dir._check_resumable(config, inputs, resume=resume)
            return run_dir
        path.mkdir(parents=True, exist_ok=True)
        versions = {name: version(name) for name in PACKAGES} | {"python": platform.python_version()}
        run_dir.save("inputs", inputs)
        write_atomically(path / "pool.yaml", Path(config.pool.settings).read_text(encoding="utf-8"))
        run_dir.save("versions", versions)
        # Last, so that a folder that has it is whole.
        text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
        write_atomically(run_dir.config_file, text)
        return run_dir

    def _check_resumable(self, config: Config, inputs: dict[str, str], *, resume: bool) -> None:
        if not resume:
            raise SettingsError(
                f"{self.path} holds a run already. "
                "Pass --resume to go on with it, or --out for another folder."
            )
        if load(self.config_file) != config:
            raise SettingsError(
                f"{self.path} holds a run of another config: {self.config_file}. "
                "Give that one, or another --out."
            )
        begun_with: dict[str, str] = self.load("inputs") or {}
        for file, digest in begun_with.items():
            if inputs.get(file) != digest:
                raise SettingsError(
                    f"{file} is not what it was when the run in {self.path} began "
                    "(inputs.json has its digest). Put the old one back, or give another --out."
                )

    @property
    def config_file(self) -> Path:
        """The whole config."""
        return self.path / "config.yaml"

    @property
    def curves(self) -> Path:
        """One JSON object a GRPO step."""
        return self.path / "curves.jsonl"

    @property
    def final(self) -> Path:
        """The model, or the adapter, at the end."""
        return self.path / "final"

    def checkpoint(self, stage: str) -> str | None:
        """The newest complete checkpoint of a stage: `checkpoints`, `warm_checkpoints` or `expected_checkpoints`."""
        paths = (path.parent for path in (self.path / stage).glob("checkpoint-*/trainer_state.json"))
        newest = max(paths, key=lambda path: int(path.name.rpartition("-")[2]), default=None)
        return None if newest is None else str(newest)

    def save(self, name: str, value: Any) -> None:
        """Write `value` to `NAME.json`, in the main process."""
        if self.is_main:
            text = json.dumps(value, indent=1, allow_nan=False) + "\n"
            write_atomically(self.path / f"{name}.json", text)

    def load(self, name: str) -> Any:
        """The value of `NAME.json`; None where there is none."""
        file = self.path / f"{name}.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def digests(config: Config) -> dict[str, str]:
    """SHA-256 of each file that a run is made from: the pool's settings and the questions.

    Raises:
        SettingsError: one cannot be read, or the name of a question set cannot be parsed.
    """
    try:
        sets = [Spec.parse(name) for each in config.questions.also for name in (each.train, each.held_out)]
    except EvaluationError as exc:
        raise SettingsError(f"questions.also: {exc.message}") from exc
    own = (config.pool.settings, config.questions.path, config.questions.held_out_path)
    files = (*own, *(each.detail for each in sets if each.name in FILE_SOURCES))
    return {file: _digest(Path(file)) for file in files if file}


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as exc:
        raise SettingsError(f"{path} cannot be read: {exc.strerror}.") from exc


def write_atomically(path: Path, text: str) -> None:
    """Write `text` whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def write_error(exc: BaseException) -> str | None:
    """Why a file could not be written, where `exc` says so; torch and safetensors raise no OSError."""
    message = str(exc)
    if isinstance(exc, OSError) and not isinstance(exc, ConnectionError | TimeoutError):
        return exc.strerror or message
    if isinstance(exc, RuntimeError) and ("PytorchStreamWriter" in message or "inline_container" in message):
        return "the disk is full, or a file may not grow so large"
    return message if isinstance(exc, SafetensorError) and "I/O error" in message else None
