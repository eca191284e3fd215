"""What a worker's model is called in public: for conductors that know models by name.

Folders, Azure deployments, fine-tunes and whatever stands behind a `base_url` have names of their owner's, which may say more than
they should; of these only `like` is told.
"""

import re
from pathlib import Path

from serving.settings.settings import Settings
from serving.settings.workers import API_SETTINGS, VllmSettings, WorkerSettings

_PROVIDERS = re.compile(r"[\w.-]+")
_HUBS = re.compile(r"[\w.-]+/([\w.-]+)")


def public_name(worker: WorkerSettings, settings: Settings) -> str:
    """The name; empty where there is none, or it is its owner's."""
    if isinstance(worker, VllmSettings):
        base = settings.worker(worker.deployment) if worker.deployment else worker
        assert isinstance(base, VllmSettings), "settings are checked for it"
        hub = _HUBS.fullmatch(base.model or "")
        return base.like or (hub[1] if hub and not Path(base.model or "").exists() else "")
    if not isinstance(worker, API_SETTINGS):
        return ""
    is_providers = worker.base_url is None and worker.service is None and _PROVIDERS.fullmatch(worker.model)
    return worker.like or (worker.model if is_providers else "")
