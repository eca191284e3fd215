"""API keys of workers, from an environment variable or from a file that only its owner can read, and the settings
without optional workers whose keys are not set.

Independent of Ray. A key is passed to the worker that uses it and is stored nowhere else.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from serving.redaction.secrets import learn_secret
from serving.settings.fallbacks import fallbacks_of
from serving.settings.settings import Settings, SettingsError
from serving.settings.workers import (
    API_SETTINGS,
    ApiSettings,
    PythonSettings,
    VllmSettings,
    WorkerSettings,
    places_of,
)

MAX_KEY_BYTES = 65_536
BUNDLED = "smollm2-135m"
"""Part of the names of the models that ship with Podium."""
GUIDE = "serving.workers.programs.guide:Guide"


class KeyFileError(Exception):
    """An API key cannot be used. The message says why, and what to do."""


def read_key(worker: ApiSettings, environment: Mapping[str, str]) -> str | None:
    """Return the worker's key, or None. Raise KeyFileError for a file that cannot be read, or that all users
    can.
    """
    if worker.api_key_env is not None:
        place = f"The environment variable {worker.api_key_env} (`api_key_env` of worker {worker.name!r})"
        key = _validate(place, environment.get(worker.api_key_env, "").strip())
    else:
        key = _read_file(worker.name, Path(worker.api_key_file).expanduser()) if worker.api_key_file else None
    if key is not None:
        learn_secret(key)  # so that no log, record or span shows it
    return key


def _validate(place: str, key: str) -> str | None:
    """Return `key`, or None if it is empty. Raise KeyFileError, without the key, if no header can hold it."""
    if not (key.isascii() and key.isprintable()):
        raise KeyFileError(
            f"{place} contains a control character or a non-ASCII character. It must contain only the API key."
        )
    return key or None


def _read_file(name: str, path: Path) -> str | None:
    place = f"The `api_key_file` {path} of worker {name!r}"
    try:
        # Non-blocking: opening a named pipe would wait for a writer.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:  # noqa: PTH123
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise KeyFileError(f"{place} is not a regular file.")
            if mode & stat.S_IRWXO:
                raise KeyFileError(
                    f"{place} must not be accessible to other users, but its mode is {stat.S_IMODE(mode):03o}. "
                    f"Run `chmod 600 {path}`. In Kubernetes, mount the Secret with `defaultMode: 0400`."
                )
            return _validate(place, file.read(MAX_KEY_BYTES).decode("utf-8-sig").strip())
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as exc:
        raise KeyFileError(f"{place} cannot be read: {exc}.") from exc


def without_workers(settings: Settings, absent: set[str]) -> Settings:
    """Return `settings` without the workers and deployments in `absent`, and without workflows that use them.

    They are also removed from fallbacks and models. The first present fallback replaces an absent conductor.
    Raise SettingsError if there is none.
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


def needless_guides(settings: Settings) -> set[str]:
    """Return the workers that only say what the bundled model cannot answer, if the settings have another model."""
    has_other = any(
        isinstance(worker, API_SETTINGS)
        or (isinstance(worker, VllmSettings) and worker.model and BUNDLED not in worker.model.casefold())
        for worker in settings.workers
    )
    guides = (
        each.name for each in settings.workers if isinstance(each, PythonSettings) and each.factory == GUIDE
    )
    return set(guides) if has_other else set()


def _without(worker: WorkerSettings, absent: set[str]) -> WorkerSettings:
    update: dict[str, object] = {}
    if worker.named_fallbacks:
        update["fallbacks"] = tuple(name for name in worker.named_fallbacks if name not in absent)
    if worker.try_first:
        update["try_first"] = tuple(name for name in worker.try_first if name not in absent)
    if isinstance(worker, API_SETTINGS):
        places = zip(places_of(worker), worker.deployments, strict=False)
        update["deployments"] = tuple(each for place, each in places if place not in absent)
    return worker.model_copy(update=update)


def _no_conductor(settings: Settings, leader: WorkerSettings) -> str:
    """Return an error message that names the keys of which one must be set."""
    candidates = [leader, *(settings.worker(name) for name in fallbacks_of(leader, settings))]
    variables = dict.fromkeys(
        each.api_key_env for each in candidates if isinstance(each, API_SETTINGS) and each.api_key_env
    )
    if len(variables) > 1:
        return (
            f"The conductor {leader.name!r} and its fallbacks have no API key. "
            f"Set one of these environment variables: {', '.join(map(str, variables))}."
        )
    return (
        f"The API key of the conductor {leader.name!r} is not set. "
        f"Set {', '.join(map(str, variables)) or 'it'}, or name another worker in `conductor.worker`."
    )


def absent_workers(settings: Settings, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the optional workers without a key, by the variable or file that should hold it. Raise
    SettingsError for others.

    Deployments without a key are included as `WORKER@DEPLOYMENT`. A worker is included if all its deployments
    are.
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
    """Return the variable or file in which the key is missing, or None if it has one or needs none."""
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
            f"The `api_key_file` {worker.api_key_file} of worker {worker.name!r} is missing or empty on the router's machine. "
            "Write the key to this file with mode 600, or set `optional: true` to skip the worker if it has no key."
        )
    return (
        f"The environment variable {worker.api_key_env} (`api_key_env` of worker {worker.name!r}) is not set in the router's environment. "
        "Set it in the environment that Ray is started in, on every router node (not in the shell of `serve run` or `serve deploy`), "
        "name a file in `api_key_file`, or set `optional: true` to skip the worker if it has no key."
    )
