"""Changes to the settings from the command line: the local model (`MODEL=`) and the conductor (`CONDUCTOR=`)."""

from collections.abc import Mapping
from pathlib import Path

from serving.settings.keys import KeyFileError, read_key
from serving.settings.model_access import Effort
from serving.settings.sections import ConductorSettings, PromptSettings
from serving.settings.settings import Settings, SettingsError, load, parse
from serving.settings.worker_profile import accepts_of
from serving.settings.workers import API_SETTINGS, PythonSettings, VllmSettings, WorkerSettings

PLAN_EFFORT: Effort = "low"
"""Default effort for plans of a model that thinks by default. A plan is only a few lines long."""


def settings_to_serve(path: str | Path, model: str | None = None, conductor: str | None = None) -> Settings:
    """Read a settings file and apply the command line: `model` replaces that of local workers, `conductor`
    names the conductor. Raise SettingsError.
    """
    settings = load(path)
    if conductor:
        settings = with_conductor(settings, conductor)
    return with_model(settings, model) if model else settings


def with_model(settings: Settings, model: str) -> Settings:
    """Return `settings` with `model` in every engine, and for its conductor the built-in prompts. Raise
    SettingsError without an engine.
    """
    if not any(_has_engine(worker) for worker in settings.workers):
        raise SettingsError(
            f"MODEL={model} cannot be applied, because the settings have no vllm worker with its own engine. Omit MODEL."
        )
    workers = tuple(
        worker.model_copy(update={"model": model, "like": None}) if _has_engine(worker) else worker
        for worker in settings.workers
    )
    prompts = PromptSettings() if _is_led_locally(settings) else settings.prompts
    return settings.model_copy(update={"workers": workers, "prompts": prompts})


def with_conductor(settings: Settings, name: str) -> Settings:
    """Return `settings` with the worker `name` as the conductor, in the pool and with a required key.

    Settings for a local conductor are dropped: its prompts, plan size and format, and the worker itself if it
    only planned. The SettingsError lists the workers that can be the conductor.
    """
    before = settings.conductor
    if before and before.worker == name:
        leader = settings.worker(name)
        # A local conductor may be trained for plans only.
        joins = {"in_pool": True} if isinstance(leader, API_SETTINGS) else {}
        return _with_worker(settings, leader.model_copy(update={"optional": False, **joins}))
    leader = _leader(settings, name)
    fallback = before.fallback if before else None
    stays = fallback is not None and not isinstance(settings.worker(fallback), VllmSettings)
    conductor = ConductorSettings(
        worker=name,
        fallback=fallback if stays else name,
        shuffle=before is not None and before.shuffle,
        effort=_plan_effort(leader),
    )
    prompts = PromptSettings() if _is_led_locally(settings) else settings.prompts
    led = _with_worker(settings, leader.model_copy(update={"optional": False, "in_pool": True}))
    led = led.model_copy(update={"conductor": conductor, "prompts": prompts})
    if before:
        led = _without_idle(led, before.worker)
    return parse(led.model_dump(mode="json", exclude_unset=True), f"The settings with the conductor {name!r}")


def check_conductor_key(settings: Settings, environment: Mapping[str, str]) -> None:
    """Check that the conductor has its API key. The SettingsError says where, and who else can be one."""
    leader = settings.worker(settings.conductor.worker) if settings.conductor else None
    if not isinstance(leader, API_SETTINGS) or not _key_of(leader):
        return
    try:
        key = read_key(leader, environment)
    except KeyFileError as exc:
        raise SettingsError(str(exc)) from exc
    if not key:
        raise SettingsError(
            f"Worker {leader.name!r} cannot be the conductor, because its API key is not set. Set {_key_of(leader)}. {_who_can(settings)}"
        )


def _leader(settings: Settings, name: str) -> WorkerSettings:
    """Return the worker that becomes the conductor, or raise SettingsError if it cannot."""
    refusal = f"{name!r} cannot be the conductor"
    if not settings.models:
        raise SettingsError(
            f"{refusal}, because the settings have no `models`, which are the model names that a conductor serves. "
            "Add `models: {podium-mini: {}}` to the settings file."
        )
    leader = next((worker for worker in settings.workers if worker.name == name), None)
    if leader is None:
        fault = "Name exactly one worker" if set(name) & set(", ") else "No worker has this name"
        raise SettingsError(f"{refusal}. {fault}. {_who_can(settings)}")
    if isinstance(leader, PythonSettings):
        raise SettingsError(
            f"{refusal}, because workers of kind `python` usually write no plans. {_who_can(settings)} "
            "If this worker can write plans, set `conductor.worker` to it in the settings file."
        )
    return leader


def _who_can(settings: Settings) -> str:
    leaders = [
        f"{worker.name} (API key: {_key_of(worker)})" if _key_of(worker) else worker.name
        for worker in settings.workers
        if not isinstance(worker, PythonSettings)
    ]
    return f"These workers can be the conductor: {', '.join(leaders)}."


def _key_of(worker: WorkerSettings) -> str | None:
    """Return the variable or file of the worker's key, or None if it needs none."""
    return (worker.api_key_env or worker.api_key_file) if isinstance(worker, API_SETTINGS) else None


def _plan_effort(leader: WorkerSettings) -> Effort | None:
    """Return the effort for plans of a model that thinks by default and sets no `effort`, or None for others."""
    thinks = isinstance(leader, API_SETTINGS) and leader.effort is None and accepts_of(leader).thinks(None)
    return PLAN_EFFORT if thinks else None


def _has_engine(worker: WorkerSettings) -> bool:
    return isinstance(worker, VllmSettings) and not worker.deployment


def _is_led_locally(settings: Settings) -> bool:
    conductor = settings.conductor
    return conductor is not None and isinstance(settings.worker(conductor.worker), VllmSettings)


def _with_worker(settings: Settings, changed: WorkerSettings) -> Settings:
    workers = tuple(changed if worker.name == changed.name else worker for worker in settings.workers)
    return settings.model_copy(update={"workers": workers})


def _without_idle(settings: Settings, name: str) -> Settings:
    """Return `settings` without the worker `name`, if no plan may use it and nothing names it."""
    if settings.worker(name).in_pool or name in {mentioned for _, mentioned in settings.mentions()}:
        return settings
    workers = tuple(worker for worker in settings.workers if worker.name != name)
    return settings.model_copy(update={"workers": workers})
