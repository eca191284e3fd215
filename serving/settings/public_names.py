"""Public names of workers' models, for conductors that know models by name.

Folders, Azure deployments, fine-tunes and models behind a `base_url` have private names, which may reveal too
much. Of these, only `like` is shown.
"""

import re
from pathlib import Path

from serving.settings.settings import Settings
from serving.settings.workers import API_SETTINGS, VllmSettings, WorkerSettings

_PROVIDERS = re.compile(r"[\w.-]+")
_HUBS = re.compile(r"[\w.-]+/([\w.-]+)")


def public_name(worker: WorkerSettings, settings: Settings) -> str:
    """Return the public name, or "" if the model has none or only a private one."""
    if isinstance(worker, VllmSettings):
        base = settings.worker(worker.deployment) if worker.deployment else worker
        assert isinstance(base, VllmSettings), "`Settings` checks this"
        hub = _HUBS.fullmatch(base.model or "")
        return base.like or (hub[1] if hub and not Path(base.model or "").exists() else "")
    if not isinstance(worker, API_SETTINGS):
        return ""
    is_providers = worker.base_url is None and worker.service is None and _PROVIDERS.fullmatch(worker.model)
    return worker.like or (worker.model if is_providers else "")
