"""A run's folder: config, inputs, curves, checkpoints and report. Files are written atomically."""

import hashlib
import json
import os
import platform
import stat
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from safetensors import SafetensorError

from evaluation import EvaluationError
from evaluation.spec import Spec
from serving.lora.adapters import FILES as ADAPTER_FILES
from serving.settings.settings import SettingsError
from training.config import Config, load

PACKAGES = ("podium", "torch", "transformers", "trl", "peft", "datasets", "accelerate", "tokenizers")
FILE_SOURCES = ("jsonl", "recorded")
"""Question sets whose detail is the path of a file."""


@dataclass(frozen=True, slots=True)
class RunDir:
    """Folder of one run. Only the main one of its processes writes."""

    path: Path
    is_main: bool = True

    @classmethod
    def begin(cls, path: Path, config: Config, *, resume: bool) -> "RunDir":
        """Create the folder, or check in the main process that its unchanged run can be resumed."""
        run_dir, inputs = cls(path), digests(config)
        if run_dir.config_file.exists():
            run_dir._check_resumable(config, inputs, resume=resume)
            return run_dir
        path.mkdir(parents=True, exist_ok=True)
        versions = {name: version(name) for name in PACKAGES} | {"python": platform.python_version()}
        run_dir.save("inputs", inputs)
        _copy_privately(Path(config.pool.settings), path / "pool.yaml")
        run_dir.save("versions", versions)
        # Written last: a folder with this file is complete.
        text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
        write_atomically(run_dir.config_file, text)
        return run_dir

    def _check_resumable(self, config: Config, inputs: dict[str, str], *, resume: bool) -> None:
        if not resume:
            raise SettingsError(
                f"{self.path} already contains a run. "
                "Pass --resume to continue it, or choose another folder with --out."
            )
        if load(self.config_file) != config:
            raise SettingsError(
                f"{self.path} contains a run with another config ({self.config_file}). "
                "Use that config, or choose another folder with --out."
            )
        original: dict[str, str] = self.load("inputs") or {}
        for file, digest in original.items():
            if inputs.get(file) != digest:
                raise SettingsError(
                    f"{file} has changed since the run in {self.path} started "
                    "(see the digests in inputs.json). Restore it, or choose another folder with --out."
                )

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    @property
    def curves(self) -> Path:
        """File of the curves, with one JSON object per GRPO step."""
        return self.path / "curves.jsonl"

    @property
    def final(self) -> Path:
        return self.path / "final"

    def checkpoint(self, stage: str) -> str | None:
        """Return the newest complete checkpoint in a stage's folder, such as `warm_checkpoints`."""
        paths = (path.parent for path in (self.path / stage).glob("checkpoint-*/trainer_state.json"))
        newest = max(paths, key=lambda path: int(path.name.rpartition("-")[2]), default=None)
        return None if newest is None else str(newest)

    def save(self, name: str, value: Any) -> None:
        """Write `value` to `NAME.json`. Only the main process writes."""
        if self.is_main:
            text = json.dumps(value, indent=1, allow_nan=False) + "\n"
            write_atomically(self.path / f"{name}.json", text)

    def load(self, name: str) -> Any:
        """Return the value in `NAME.json`, or None if there is no such file."""
        file = self.path / f"{name}.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def digests(config: Config) -> dict[str, str]:
    """Return the SHA-256 of each input: pool, questions, sets for cards, and start adapter."""
    questions, lora = config.questions, config.model.lora
    fields = {
        "pool.settings": [config.pool.settings],
        "questions.path": [questions.path],
        "questions.held_out_path": [questions.held_out_path],
        "questions.also": [
            _file_of("questions.also", name)
            for each in questions.also
            for name in (each.train, each.held_out)
        ],
        "pool.cards": [_file_of(f"pool.cards.{source}", name) for source, name in config.pool.cards.items()],
        "model.lora.start": [str(Path(lora.start) / name) for name in ADAPTER_FILES]
        if lora and lora.start
        else [],
    }
    return {file: _digest(field, file) for field, files in fields.items() for file in files if file}


def _file_of(field: str, name: str) -> str | None:
    """Return the path of the file that a question set reads, or None if it reads none."""
    try:
        spec = Spec.parse(name)
    except EvaluationError as exc:
        raise SettingsError(f"{field}: {exc.message}") from exc
    return spec.detail if spec.name in FILE_SOURCES else None


def _digest(field: str, file: str) -> str:
    try:
        with Path(file).open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as exc:
        raise SettingsError(f"{field}: {file} cannot be read: {exc.strerror}.") from exc


def _copy_privately(source: Path, target: Path) -> None:
    """Copy a file with secrets. Its copy has the same permissions at all times, or fewer."""
    partial = target.with_name(target.name + ".partial")
    partial.unlink(missing_ok=True)
    partial.touch(mode=0o600)
    partial.write_bytes(source.read_bytes())
    partial.chmod(stat.S_IMODE(source.stat().st_mode))
    partial.replace(target)


def write_atomically(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def write_error(exc: BaseException) -> str | None:
    """Return why a file could not be written, or None. Some libraries do not raise OSError for this."""
    message = str(exc)
    if isinstance(exc, OSError) and not isinstance(exc, ConnectionError | TimeoutError):
        return exc.strerror or message
    if isinstance(exc, RuntimeError) and ("PytorchStreamWriter" in message or "inline_container" in message):
        return "the disk is full, or the limit on file sizes is reached"
    return message if isinstance(exc, SafetensorError) and "I/O error" in message else None


def world_size() -> int:
    """Return the number of processes that train together, one per device."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_main_process() -> bool:
    """Return whether this is the first process, the only one that writes."""
    return os.environ.get("RANK", "0") == "0"
