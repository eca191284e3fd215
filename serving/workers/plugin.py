"""Workers of one's own: any object that is a `conductor.model.worker.Worker`, made by a function that the
settings name.

    - {name: search, kind: python, factory: "my_team.search:Search", options: {index: papers}, card: "Finds
      papers."}

One that is no model says so in an attribute, `provenance = "program"`, which `GET /v1/models` and
evaluation's reports tell.

It runs in the router's process and on its event loop, so what blocks or computes for long belongs in a
thread, or behind HTTP. The layers around it (slots, retries, fallback, span, price) are those of every
other worker.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from conductor.errors import did_you_mean
from conductor.model.usage import Price
from conductor.model.worker import Worker
from serving.settings.settings import SettingsError


def load_plugin(name: str, price: Price | None, factory: str, options: Mapping[str, Any]) -> Worker:
    """The worker that `factory(name, price, **options)` gives.

    Args:
        name: in the pool.
        price: per token; None: unknown.
        factory: `package.module:callable`.
        options: of the settings; the factory checks them, and raises `ValueError` or `TypeError` for those
            it cannot use.

    Raises:
        SettingsError: there is no such module or callable, it refuses its options, or it gives something
        that is no worker.
    """
    module, _, attribute = factory.partition(":")
    where = f"Worker {name!r}, factory {factory!r}"
    at = ("workers", name, "factory")
    try:
        found = import_module(module)
    except ImportError as exc:
        hint = "Is the package installed where the router runs, or its folder in PYTHONPATH?"
        raise SettingsError(f"{where} cannot be imported: {exc}. {hint}", at=at) from exc
    except Exception as exc:
        raise SettingsError(f"{where} cannot be imported: {type(exc).__name__}: {exc}.", at=at) from exc
    make = getattr(found, attribute, None)
    if not callable(make):
        hint = did_you_mean(attribute, [each for each in vars(found) if not each.startswith("_")])
        raise SettingsError(
            f"{where}: the module {module} has no function or class {attribute!r}.{hint}", at=at
        )
    try:
        worker: Any = make(name, price, **options)
    except Exception as exc:
        what = "" if isinstance(exc, TypeError | ValueError) else f"{type(exc).__name__}: "
        raise SettingsError(
            f"{where} refuses its options: {what}{exc}", at=("workers", name, "options")
        ) from exc
    if not callable(getattr(worker, "open", None)):
        raise SettingsError(
            f"{where} gives {type(worker).__name__}, which has no `open`: it is no worker.", at=at
        )
    return worker
