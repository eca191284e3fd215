"""What Serve's `user_config` may change of the settings while replicas run: pool, prices, prompts and
limits.
"""

from collections.abc import Mapping
from typing import Any, cast

from serving.settings.settings import Settings, SettingsError, parse
from serving.settings.workers import VllmSettings


def apply_patch(settings: Settings, patch: Mapping[str, Any]) -> Settings:
    """`settings` with the keys of `patch` in place: what Serve's `user_config` may change while replicas run.

    `workers` is a list of partial workers, merged by name; a new one may be added, an API worker or one
    more of an engine that is there; so a worker's `adapter` is changed. Everything else replaces its key.
    Engines and sizes cannot be changed this way: those take new replicas.

    Raises:
        SettingsError: the result is not settings, or an engine would have to change.
    """
    data = settings.model_dump(mode="json", exclude_unset=True)
    merged = {worker["name"]: worker for worker in data["workers"]}
    partial: Any = patch.get("workers", [])
    if not isinstance(partial, list) or not all(
        isinstance(each, dict) and isinstance(cast(dict[str, Any], each).get("name"), str)
        for each in cast(list[Any], partial)
    ):
        raise SettingsError("user_config: `workers` must be a list of (partial) workers, each with its name.")
    for worker in cast(list[dict[str, Any]], partial):
        merged[worker.get("name")] = merged.get(worker.get("name"), {}) | worker
    changed = parse(data | dict(patch) | {"workers": list(merged.values())}, "user_config")
    check_same_deployments(settings, changed, "user_config")
    _see_room_for_adapters(settings, changed)
    return changed


def check_same_deployments(before: Settings, after: Settings, who: str) -> None:
    """What is fixed when the application is deployed is the same.

    Raises:
        SettingsError: it is not.
    """
    if _deployment_of(before) != _deployment_of(after):
        raise SettingsError(
            f"{who} changes an engine or a size: an engine takes a redeploy of the settings file, replicas are counted by "
            "the Serve config's autoscaling_config."
        )


def _see_room_for_adapters(settings: Settings, changed: Settings) -> None:
    for owner in changed.workers:
        if isinstance(owner, VllmSettings) and owner.deployment is None:
            started_for = owner.engine.get("enable_lora", bool(settings.adapters_of(owner.name)))
            if changed.adapters_of(owner.name) and not started_for and not owner.stand_in:
                raise SettingsError(
                    f"user_config gives an adapter to the engine of {owner.name!r}, which was started without room for any. Write "
                    "`engine: {enable_lora: true}` for it in the settings file and deploy that once; adapters then come and go."
                )


def _deployment_of(settings: Settings) -> object:
    """What is fixed when the application is deployed: engines with their sizes, and the router's size."""
    engines = {
        w.name: (w.model, w.engine, w.scale, w.stand_in)
        for w in settings.workers
        if isinstance(w, VllmSettings) and w.deployment is None
    }
    return engines, settings.router.model_copy(update={"target_calls": 1.0})
