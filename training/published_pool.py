"""What a published adapter says of the pool that it was trained with: enough to read and to serve it, nothing private.

A pool's settings may hold keys in `options`, in a `base_url` or in a comment. So what is published is written again,
from the fields named here and no others.
"""

from pathlib import Path
from typing import Any

import yaml

from serving.pool import context_tokens_of
from serving.settings.settings import Settings, load
from serving.settings.workers import WorkerSettings

CONDUCTOR = {
    "worker",
    "format",
    "constrained",
    "max_plan_tokens",
    "subtask_chars",
    "fallback",
    "shuffle",
    "thought",
}
"""How plans are written."""
WORKER = {
    *("name", "kind", "model", "deployment", "factory", "serves", "in_pool"),
    *("card", "price", "tokens_per_s", "sees_images"),
}
"""Who the workers are, without which they would be no settings; and what the conductor is shown of them."""
MODEL = {"max_steps", "rounds", "depth", "workers"}
"""Whom a name's plans may ask, and how often."""
HEAD = "# What the conductor was trained with. Addresses, keys, options and comments were left out.\n\n"


def published_pool(path: Path) -> str:
    """The settings in `path` as they may be read by everybody; settings again.

    Raises:
        SettingsError: they cannot be read.
    """
    settings = load(path)
    conductor, prompts = settings.conductor, settings.prompts
    shown: dict[str, Any] = {
        "conductor": conductor and conductor.model_dump(mode="json", include=CONDUCTOR, exclude_unset=True),
        "prompts": prompts.model_dump(mode="json", exclude_unset=True, exclude_none=True),
        "workers": [_worker(each, settings) for each in settings.workers],
        "models": {
            name: each.model_dump(mode="json", include=MODEL, exclude_unset=True)
            for name, each in settings.models.items()
        },
    }
    kept = {name: value for name, value in shown.items() if value}
    return HEAD + yaml.safe_dump(kept, sort_keys=False, allow_unicode=True, width=120)


def _worker(worker: WorkerSettings, settings: Settings) -> dict[str, Any]:
    fields = worker.model_dump(mode="json", include=WORKER, exclude_unset=True, exclude_none=True)
    # An engine's options are left out, and the conductor was shown the context that they say.
    tokens = context_tokens_of(worker, settings)
    return fields | ({"context_tokens": tokens} if tokens else {})
