"""Workers that are left out because nobody has set their keys."""

from collections.abc import Mapping

from serving.settings.fallbacks import fallbacks_of
from serving.settings.keys import ApiSettings, KeyFileError, read_key
from serving.settings.settings import Settings, SettingsError
from serving.settings.workers import API_SETTINGS, WorkerSettings, places_of


def without_workers(settings: Settings, absent: set[str]) -> Settings:
    """`settings` without the workers and the deployments in `absent`: also gone from fallbacks, models and
    workflows; a workflow that used one is left out.

    The conductor's place is taken by the first of its worker's fallbacks that is there.

    Raises:
        SettingsError: the conductor and all its fallbacks are among them.
    """
    conductor = settings.conductor
    if conductor:
        leader = settings.worker(conductor.worker)
        line = (leader.name, *fallbacks_of(leader, settings, absent))
        present = [name for name in line if name not in absent]
        if not present:
            raise SettingsError(_no_conductor(settings, leader))
        fallback = None if conductor.fallback in absent else conductor.fallback
        conductor = conductor.model_copy(update={"worker": present[0], "fallback": fallback})
    keep = [_without(worker, absent) for worker in settings.workers if worker.name not in absent]
    models = {
        name: model
        if model.workers is None
        else model.model_copy(
            update={"workers": tuple(worker for worker in model.workers if worker not in absent)}
        )
        for name, model in settings.models.items()
    }
    workflows = {
        name: steps
        for name, steps in settings.workflows.items()
        if not absent & {step.worker for step in steps}
    }
    return settings.model_copy(
        update={"workers": tuple(keep), "conductor": conductor, "models": models, "workflows": workflows}
    )


def _without(worker: WorkerSettings, absent: set[str]) -> WorkerSettings:
    """`worker` without the fallbacks and the deployments in `absent`."""
    update: dict[str, object] = {}
    if worker.named_fallbacks:
        update["fallbacks"] = tuple(name for name in worker.named_fallbacks if name not in absent)
    if isinstance(worker, API_SETTINGS):
        places = zip(places_of(worker), worker.deployments, strict=False)
        update["deployments"] = tuple(each for place, each in places if place not in absent)
    return worker.model_copy(update=update)


def _no_conductor(settings: Settings, leader: WorkerSettings) -> str:
    """What to set so that somebody can plan."""
    candidates = [leader, *(settings.worker(name) for name in fallbacks_of(leader, settings))]
    variables = dict.fromkeys(
        each.api_key_env for each in candidates if isinstance(each, API_SETTINGS) and each.api_key_env
    )
    if len(variables) > 1:
        return f"No conductor has its key. Set one of these variables: {', '.join(map(str, variables))}."
    return (
        f"The conductor is the worker {leader.name!r}, whose key is not set. "
        f"Set {', '.join(map(str, variables)) or 'it'}, or name another conductor."
    )


def absent_workers(settings: Settings, environment: Mapping[str, str]) -> dict[str, str]:
    """Optional workers without a key: name to the variable or file that should hold it. Their deployments
    without one are in it too, as `WORKER@DEPLOYMENT`; the worker where all of them are.

    Args:
        settings: all of them.
        environment: of the process that will call the workers.

    Raises:
        SettingsError: a worker that is not optional has no key, or a key's file cannot be used.
    """
    absent: dict[str, str] = {}
    for worker in settings.workers:
        if not isinstance(worker, API_SETTINGS):
            continue
        places = places_of(worker)
        for place, own in places.items():
            if isinstance(own, API_SETTINGS) and (source := key_that_is_missing(own, environment)):
                absent[place] = source
        if absent.keys() >= places.keys():
            absent[worker.name] = ", ".join(absent[place] for place in places)
    return absent


def key_that_is_missing(worker: ApiSettings, environment: Mapping[str, str]) -> str | None:
    """Where a key should be that is not there; None where there is one, or none is named.

    Raises:
        SettingsError: see `absent_workers`.
    """
    source = worker.api_key_env or worker.api_key_file
    try:
        if source is None or read_key(worker, environment):
            return None
    except KeyFileError as exc:
        raise SettingsError(str(exc), at=_key_setting(worker)) from exc
    if not worker.optional:
        raise SettingsError(_missing(worker), at=_key_setting(worker))
    return source


def _key_setting(worker: ApiSettings) -> tuple[str, str, str]:
    return "workers", worker.name, "api_key_env" if worker.api_key_env else "api_key_file"


def _missing(worker: ApiSettings) -> str:
    if worker.api_key_file:
        return (
            f"Worker {worker.name!r} needs its key in the file {worker.api_key_file}, which is not there, or empty, where the router runs. "
            "Write it there with mode 600, or write `optional: true` to leave the worker out without it."
        )
    return (
        f"Worker {worker.name!r} needs its key in the variable {worker.api_key_env}, which is not set where the router runs. "
        "Set it in the environment that Ray is started in (on a cluster: of every router node; the shell of `serve run` or "
        "`serve deploy` does not reach them), name a file in `api_key_file`, or write `optional: true` to leave the worker out without it."
    )
