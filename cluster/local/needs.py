"""Print what a settings file needs on this machine in addition to the base packages, as JSON.

    python -m cluster.local.needs FILE [--model NAME] [--conductor NAME]

Set-up runs this inside `.venv` once the base packages are installed, and installs no more than it prints.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from podium.command_line.program import CommandError, Program
from serving import resolve_path
from serving.settings.overrides import check_conductor_key, settings_to_serve
from serving.settings.settings import Settings, SettingsError
from serving.settings.workers import VllmSettings


@dataclass(frozen=True, slots=True)
class Needs:
    """What settings need in addition to the base packages: vLLM, and folders under `models/`."""

    engine: bool
    models: tuple[str, ...]


def needs_of(settings: Settings) -> Needs:
    """Return what the settings need. Scripted workers, and those that share a `deployment`, need nothing
    more.
    """
    engines = [
        worker
        for worker in settings.workers
        if isinstance(worker, VllmSettings) and not worker.deployment and not worker.stand_in
    ]
    local = {worker.model for worker in engines if worker.model.startswith("models/")}
    return Needs(bool(engines), tuple(sorted(local)))


main = Program("python -m cluster.local.needs")


@main.command()
def print_needs(
    settings: Path,
    model: Annotated[str | None, Option(help="model to serve instead of every local one")] = None,
    conductor: Annotated[str | None, Option(help="worker that writes the plans")] = None,
) -> int:
    """Print what settings need on this machine."""
    try:
        served = settings_to_serve(resolve_path(settings), model, conductor)
        if conductor:  # fail now, not after minutes of set-up
            check_conductor_key(served, os.environ)
        needs = needs_of(served)
    except SettingsError as error:
        raise CommandError(error.message) from error
    print(json.dumps(asdict(needs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
