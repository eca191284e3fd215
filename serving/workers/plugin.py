"""Plugins: custom workers, built by a function that the settings name.

    - {name: search, kind: python, factory: "my_team.search:Search", options: {index: papers}, card: "Finds
      papers."}

A plugin is any object with the interface `conductor.model.worker.Worker`. A plugin that is not a model should
have the attribute `provenance = "program"`, which `GET /v1/models` and evaluation reports show.

A plugin runs on the router's event loop. Code that blocks or computes for long must run in a thread or behind HTTP.
Slots, retries, fallbacks, spans and prices work as for every other worker.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from importlib import import_module
from typing import Any

from msgspec.structs import replace

from conductor.errors import did_you_mean
from conductor.model.call import Call
from conductor.model.reply import Delta, Reply
from conductor.model.usage import Price
from conductor.model.worker import Worker
from conductor.plan.prompt_parts import with_stable_system
from serving.settings.settings import SettingsError
from serving.workers.output_limit import OutputMeter, within_limit
from serving.workers.stall_timer import Patience, StallTimer


def load_plugin(name: str, price: Price | None, factory: str, options: Mapping[str, Any]) -> Worker:
    """Build a worker by calling `factory(name, price, **options)`. The factory is `package.module:callable`,
    and rejects options by `ValueError` or `TypeError`, which become SettingsErrors.
    """
    module, _, attribute = factory.partition(":")
    where = f"The factory {factory!r} of worker {name!r}"
    at = ("workers", name, "factory")
    try:
        imported = import_module(module)
    except ImportError as exc:
        hint = "Install its package in the router's environment, or add its folder to PYTHONPATH."
        raise SettingsError(f"{where} cannot be imported: {exc}. {hint}", at=at) from exc
    except Exception as exc:
        raise SettingsError(f"{where} cannot be imported: {type(exc).__name__}: {exc}.", at=at) from exc
    make = getattr(imported, attribute, None)
    if not callable(make):
        hint = did_you_mean(attribute, [each for each in vars(imported) if not each.startswith("_")])
        raise SettingsError(
            f"{where} does not exist: the module {module} has no function or class {attribute!r}.{hint}",
            at=at,
        )
    try:
        worker: Any = make(name, price, **options)
    except Exception as exc:
        kind = "" if isinstance(exc, TypeError | ValueError) else f"{type(exc).__name__}: "
        raise SettingsError(
            f"{where} rejects its options: {kind}{exc}", at=("workers", name, "options")
        ) from exc
    if not callable(getattr(worker, "open", None)):
        raise SettingsError(
            f"{where} must return a worker, but the {type(worker).__name__} that it returns has no `open` method.",
            at=at,
        )
    return worker


class PluginWorker:
    """Plugin whose calls end at the limits of `patience` and the call's output limit, and whose prompts have
    no volatile lines. Engines and API workers do this on their own.
    """

    def __init__(self, plugin: Worker, patience: Patience) -> None:
        self.name, self._plugin, self._patience = plugin.name, plugin, patience

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        """Open `call` as `Worker.open` does. A plugin that failed or was silent raises WorkerUnavailable."""
        call = replace(call, messages=tuple(with_stable_system(call.messages)))
        timer = self._patience.with_plugin(self.name, call)
        async with AsyncExitStack() as stack:
            reply = await timer.wait(stack.enter_async_context(self._plugin.open(call)))
            timer.hear()
            deltas = await stack.enter_async_context(aclosing(_with_timer(reply.deltas, timer)))
            limited = within_limit(deltas, OutputMeter(call))
            reply.deltas = await stack.enter_async_context(aclosing(limited))
            yield reply


async def _with_timer(deltas: AsyncGenerator[Delta], timer: StallTimer) -> AsyncGenerator[Delta]:
    async with aclosing(deltas):
        while (delta := await timer.next(deltas)) is not None:
            timer.hear(is_last=delta.finish is not None)
            yield delta
