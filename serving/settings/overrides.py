"""What a start may change of a settings file without an edit: its local model (`MODEL=`) and its conductor
(`CONDUCTOR=`).
"""

from collections.abc import Mapping
from pathlib import Path

from serving.settings.access import Effort
from serving.settings.keys import KeyFileError, read_key
from serving.settings.known_models import accepts_of
from serving.settings.sections import ConductorSettings, PromptSettings
from serving.settings.settings import Settings, SettingsError, load, parse
from serving.settings.workers import API_SETTINGS, PythonSettings, VllmSettings, WorkerSettings

PLAN_EFFORT: Effort = "low"
"""How long a model thinks before a plan that it was not told to think longer for: a plan is a few lines."""


def settings_to_serve(path: str | Path, model: str | None = None, conductor: str | None = None) -> Settings:
    """Read a settings file, with what the command line says in its place.

    Args:
        path: of the YAML.
        model: served in place of every local one: a folder, or a hub's name.
        conductor: the worker that leads, in place of the file's conductor.

    Raises:
        SettingsError: the file cannot be used, the worker cannot lead, or no local engine is left for
            `model`.
    """
    settings = load(path)
    if conductor:
        settings = with_conductor(settings, conductor)
    return with_model(settings, model) if model else settings


def with_model(settings: Settings, model: str) -> Settings:
    """`settings` with `model` in every vllm worker that has an engine; prompts written for such a conductor
    give way to the built-in ones.

    Raises:
        SettingsError: there is no such worker.
    """
    if not any(_has_engine(worker) for worker in settings.workers):
        raise SettingsError(
            f"MODEL={model} takes the place of local models, and no engine for one is left in these settings. Leave MODEL out."
        )
    workers = tuple(
        worker.model_copy(update={"model": model, "like": None}) if _has_engine(worker) else worker
        for worker in settings.workers
    )
    prompts = PromptSettings() if _is_led_locally(settings) else settings.prompts
    return settings.model_copy(update={"workers": workers, "prompts": prompts})


def with_conductor(settings: Settings, name: str) -> Settings:
    """`settings` led by the worker `name`, which joins the pool and needs its key.

    What was written for a local conductor goes with it: its prompts, the size of its plans, its format. So
    does the conductor itself, with its engine, where only planning had use for it.

    Raises:
        SettingsError: there is no such worker, or it cannot lead; the message lists those that can.
    """
    before = settings.conductor
    if before and before.worker == name:
        leader = settings.worker(name)
        joins = (
            {"in_pool": True} if isinstance(leader, API_SETTINGS) else {}
        )  # a local conductor may know plans alone
        return _with_worker(settings, leader.model_copy(update={"optional": False, **joins}))
    leader = _leader(settings, name)
    kept = before.fallback if before else None
    is_kept = kept is not None and not isinstance(settings.worker(kept), VllmSettings)
    conductor = ConductorSettings(
        worker=name,
        fallback=kept if is_kept else name,
        shuffle=before is not None and before.shuffle,
        effort=_plan_effort(leader),
    )
    prompts = PromptSettings() if _is_led_locally(settings) else settings.prompts
    led = _with_worker(settings, leader.model_copy(update={"optional": False, "in_pool": True}))
    led = led.model_copy(update={"conductor": conductor, "prompts": prompts})
    if before:
        led = _without_idle(led, before.worker)
    return parse(led.model_dump(mode="json", exclude_unset=True), f"The settings led by {name!r}")


def check_conductor_key(settings: Settings, environment: Mapping[str, str]) -> None:
    """The conductor that was asked for by name has its key.

    Raises:
        SettingsError: it has not; the message says where it is looked for, and who else can lead.
    """
    leader = settings.worker(settings.conductor.worker) if settings.conductor else None
    if not isinstance(leader, API_SETTINGS) or not _key_of(leader):
        return
    try:
        key = read_key(leader, environment)
    except KeyFileError as exc:
        raise SettingsError(str(exc)) from exc
    if not key:
        raise SettingsError(
            f"The conductor is to be {leader.name!r}, whose key is not set: set {_key_of(leader)}. {_who_can(settings)}"
        )


def _leader(settings: Settings, name: str) -> WorkerSettings:
    """The worker that is to lead.

    Raises:
        SettingsError: nobody is called so, it writes no plans, or no model name is led by a conductor.
    """
    asked = f"The conductor is to be {name!r}, "
    if not settings.models:
        raise SettingsError(
            f"{asked}but these settings have no `models`, the names under which a conductor answers. "
            "Write `models: {podium-mini: {}}` into the file."
        )
    found = next((worker for worker in settings.workers if worker.name == name), None)
    if found is None:
        fault = "and one worker leads" if set(name) & set(", ") else "and no worker is called so"
        raise SettingsError(f"{asked}{fault}. {_who_can(settings)}")
    if isinstance(found, PythonSettings):
        raise SettingsError(
            f"{asked}a program (kind: python), which answers and votes but writes no plans. {_who_can(settings)} "
            "If it is a model of yours, name it as `conductor.worker` in the file."
        )
    return found


def _who_can(settings: Settings) -> str:
    leaders = [
        f"{worker.name} (key: {_key_of(worker)})" if _key_of(worker) else worker.name
        for worker in settings.workers
        if not isinstance(worker, PythonSettings)
    ]
    return f"These can lead: {', '.join(leaders)}."


def _key_of(worker: WorkerSettings) -> str | None:
    """Where its key is looked for; None where it needs none."""
    return (worker.api_key_env or worker.api_key_file) if isinstance(worker, API_SETTINGS) else None


def _plan_effort(leader: WorkerSettings) -> Effort | None:
    """How long it thinks before a plan, where its own `effort` does not say and it thinks by itself."""
    thinks = isinstance(leader, API_SETTINGS) and leader.effort is None and accepts_of(leader).thinks(None)
    return PLAN_EFFORT if thinks else None


def _has_engine(worker: WorkerSettings) -> bool:
    return isinstance(worker, VllmSettings) and not worker.deployment


def _is_led_locally(settings: Settings) -> bool:
    chosen = settings.conductor
    return chosen is not None and isinstance(settings.worker(chosen.worker), VllmSettings)


def _with_worker(settings: Settings, changed: WorkerSettings) -> Settings:
    workers = tuple(changed if worker.name == changed.name else worker for worker in settings.workers)
    return settings.model_copy(update={"workers": workers})


def _without_idle(settings: Settings, name: str) -> Settings:
    """`settings` without the worker `name`, where no plan may use it and nothing names it."""
    if settings.worker(name).in_pool or name in {mentioned for _, mentioned in settings.mentions()}:
        return settings
    workers = tuple(worker for worker in settings.workers if worker.name != name)
    return settings.model_copy(update={"workers": workers})
