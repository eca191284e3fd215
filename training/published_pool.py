"""Extract the public part of a pool for a published adapter: enough to serve the adapter, and nothing
private.

The settings of a pool may have secrets in `options`, in a `base_url` or in a comment. The published file is
therefore written only from the fields listed here.
"""

from pathlib import Path
from typing import Any

import yaml

from serving.pool import context_tokens_of
from serving.settings.settings import Settings, load
from serving.settings.workers import WorkerSettings

CONDUCTOR = {
    "worker", "format", "constrained", "max_plan_tokens", "subtask_chars", "fallback", "shuffle", "thought",
}  # fmt: skip
"""Public fields of the conductor, which say how plans are written."""
WORKER = {
    *("name", "kind", "model", "deployment", "factory", "serves", "in_pool"),
    *("card", "price", "tokens_per_s", "sees_images"),
}
"""Public fields of a worker: those that settings require, and those that the conductor is shown."""
MODEL = {"max_steps", "rounds", "depth", "workers"}
"""Public fields of a model: the workers of its plans, and its limits."""
HEAD = "# The pool that the conductor was trained with, without addresses, keys, options and comments.\n\n"


def dump_public_pool(path: Path) -> str:
    """Return the public part of the settings in `path`, as valid settings."""
    settings = load(path)
    conductor, prompts = settings.conductor, settings.prompts
    fields: dict[str, Any] = {
        "conductor": conductor and conductor.model_dump(mode="json", include=CONDUCTOR, exclude_unset=True),
        "prompts": prompts.model_dump(mode="json", exclude_unset=True, exclude_none=True),
        "workers": [_worker(each, settings) for each in settings.workers],
        "models": {
            name: each.model_dump(mode="json", include=MODEL, exclude_unset=True)
            for name, each in settings.models.items()
        },
    }
    present = {name: value for name, value in fields.items() if value}
    return HEAD + yaml.safe_dump(present, sort_keys=False, allow_unicode=True, width=120)


def _worker(worker: WorkerSettings, settings: Settings) -> dict[str, Any]:
    fields = worker.model_dump(mode="json", include=WORKER, exclude_unset=True, exclude_none=True)
    # The conductor was shown the context length, which is in the omitted engine options.
    tokens = context_tokens_of(worker, settings)
    return fields | ({"context_tokens": tokens} if tokens else {})
