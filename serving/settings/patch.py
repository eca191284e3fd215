"""Changes to the settings through Serve's `user_config` while replicas run: pool, prices, prompts and limits."""

from collections.abc import Mapping
from typing import Any, cast

from serving.settings.settings import Settings, SettingsError, parse
from serving.settings.workers import VllmSettings


def apply_patch(settings: Settings, patch: Mapping[str, Any]) -> Settings:
    """Return `settings` with the keys of `patch` replaced. Raise SettingsError if that is invalid.

    `workers` is a list of partial workers, merged by name. It may add API workers, and vllm workers on an
    existing engine, so an `adapter` can be changed. Engines and sizes cannot, because they need new replicas.
    """
    data = settings.model_dump(mode="json", exclude_unset=True)
    merged = {worker["name"]: worker for worker in data["workers"]}
    partial: Any = patch.get("workers", [])
    if not isinstance(partial, list) or not all(
        isinstance(each, dict) and isinstance(cast(dict[str, Any], each).get("name"), str)
        for each in cast(list[Any], partial)
    ):
        raise SettingsError(
            "`workers` in user_config must be a list of workers, each with at least its `name`."
        )
    for worker in cast(list[dict[str, Any]], partial):
        merged[worker.get("name")] = merged.get(worker.get("name"), {}) | worker
    changed = parse(data | dict(patch) | {"workers": list(merged.values())}, "user_config")
    check_same_deployments(settings, changed, "user_config")
    _check_room_for_adapters(settings, changed)
    return changed


def check_same_deployments(before: Settings, after: Settings, who: str) -> None:
    """Check that engines and sizes, which are fixed at deployment, are the same, or raise SettingsError."""
    if _deployment_of(before) != _deployment_of(after):
        raise SettingsError(
            f"{who} changes an engine or the size of a deployment, which cannot change while Podium runs. To change an engine, deploy the settings file again. "
            "To change the number of replicas, set `autoscaling_config` in the Serve config."
        )


def _check_room_for_adapters(settings: Settings, changed: Settings) -> None:
    for owner in changed.workers:
        if isinstance(owner, VllmSettings) and owner.deployment is None:
            started_for = owner.engine.get("enable_lora", bool(settings.adapters_of(owner.name)))
            if changed.adapters_of(owner.name) and not started_for and not owner.stand_in:
                raise SettingsError(
                    f"user_config adds an adapter to the engine of worker {owner.name!r}, which was started without LoRA support. "
                    "Set `engine: {enable_lora: true}` for this worker in the settings file and redeploy it."
                )


def _deployment_of(settings: Settings) -> object:
    """Return what is fixed at deployment: the engines with their sizes, and the size of the router."""
    engines = {
        w.name: (w.model, w.engine, w.scale, w.stand_in)
        for w in settings.workers
        if isinstance(w, VllmSettings) and w.deployment is None
    }
    return engines, settings.router.model_copy(update={"target_calls": 1.0})
