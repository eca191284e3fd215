"""Where a run is kept: its config, what it ran on, its curves, checkpoints and report. Written so that a cut leaves no half file."""

import json
import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

from serving.settings import SettingsError
from training.config import Config, load

PACKAGES = ("podium", "torch", "transformers", "trl", "peft", "datasets", "accelerate", "tokenizers")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run."""

    path: Path

    @classmethod
    def begun(cls, path: Path, config: Config, *, resume: bool) -> "RunFolder":
        """Make the folder, or take up the one that is there.

        Raises:
            SettingsError: there is a run already and `resume` is not said; or it is one of another config.
        """
        folder = cls(path)
        if folder.config_file.exists():
            if not resume:
                raise SettingsError(
                    f"{path} holds a run already. Pass --resume to go on with it, or --out for another folder."
                )
            if load(folder.config_file) != config:
                raise SettingsError(
                    f"{path} holds a run of another config: {folder.config_file}. Give that one, or another --out."
                )
            return folder
        path.mkdir(parents=True, exist_ok=True)
        written(folder.config_file, yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False))
        folder.note(
            "versions", {name: version(name) for name in PACKAGES} | {"python": platform.python_version()}
        )
        return folder

    @property
    def config_file(self) -> Path:
        """The config as it was read, whole."""
        return self.path / "config.yaml"

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
        """Keep `value` as JSON under `name`."""
        written(self.path / f"{name}.json", json.dumps(value, indent=1) + "\n")

    def noted(self, name: str) -> Any:
        """What was kept under `name`; None where nothing was."""
        file = self.path / f"{name}.json"
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def written(path: Path, text: str) -> None:
    """Write `text` whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
