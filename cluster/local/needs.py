"""Print what a settings file needs on this machine in addition to the base packages, as JSON.

    python -m cluster.local.needs FILE [--model NAME] [--conductor NAME]

Set-up runs this inside `.venv` once the base packages are installed, and installs no more than it prints.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from serving import resolve_path
from serving.settings.overrides import check_conductor_key, settings_to_serve
from serving.settings.settings import Settings, SettingsError
from serving.settings.workers import VllmSettings


@dataclass(frozen=True, slots=True)
class Needs:
    """What set-up adds to the base packages.

    Args:
        engine: whether vLLM runs, with torch and transformers.
        models: the folders under `models/` that are served.
    """

    engine: bool
    models: tuple[str, ...]


def needs_of(settings: Settings) -> Needs:
    """Return what the settings need. Stand-ins, and workers that share a `deployment`, add nothing."""
    engines = [
        worker
        for worker in settings.workers
        if isinstance(worker, VllmSettings) and not worker.deployment and not worker.stand_in
    ]
    local = {worker.model for worker in engines if worker.model.startswith("models/")}
    return Needs(bool(engines), tuple(sorted(local)))


def main() -> int:
    """Print the needs and return the exit code. Errors go to standard error."""
    parser = argparse.ArgumentParser(
        prog="python -m cluster.local.needs", description="Print what settings need on this machine."
    )
    parser.add_argument("settings", type=Path)
    parser.add_argument("--model", default=None, help="model to serve instead of every local one")
    parser.add_argument("--conductor", default=None, help="the worker that writes the plans")
    options = parser.parse_args()
    try:
        settings = settings_to_serve(resolve_path(options.settings), options.model, options.conductor)
        if options.conductor:  # fail now, not after minutes of set-up
            check_conductor_key(settings, os.environ)
        needs = needs_of(settings)
    except SettingsError as error:
        print(error.message, file=sys.stderr)
        return 1
    print(json.dumps(asdict(needs)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
