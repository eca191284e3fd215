"""The one place where layers are stacked around workers.

Outermost first: failing over, fitting (API workers), retrying, skipping what has refused, slots, span, the wire. So a span is one
call as it is sent, a wait for a retry holds no slot, and a fallback is retried, and sent what its model accepts, by its own rules.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from conductor.model.pool_member import PoolMember
from conductor.model.usage import FREE, Price
from conductor.model.worker import Sampling, Worker
from conductor.plan.prompts import Prompts
from conductor.run.plan_writer import ConductorModel, Constraint
from conductor.run.team import Team
from serving.layers.failing_over import FailingOver
from serving.layers.fitting import Fitting
from serving.layers.limited import Limited
from serving.layers.retrying import Retrying
from serving.layers.skipping_refused import SkippingRefused
from serving.layers.traced import Traced
from serving.lora.adapters import name_of
from serving.settings.keys import read_key
from serving.settings.known_models import accepts_of
from serving.settings.sections import ConductorSettings
from serving.settings.settings import Settings, absent_workers, without_workers
from serving.settings.workers import (
    API_SETTINGS,
    AnthropicSettings,
    GeminiSettings,
    OpenAISettings,
    PythonSettings,
    ScriptedReplySettings,
    ScriptedSettings,
    VllmSettings,
    WorkerSettings,
)
from serving.telemetry.spans import PROVIDERS
from serving.workers.vllm import EngineClient, VllmWorker

if TYPE_CHECKING:
    from serving.workers.account import Account

logger = logging.getLogger("podium")

Engines = Mapping[str, EngineClient]
"""The vLLM engines, by the name of the worker that owns each."""


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """Every worker, ready to be called, and what must be closed when it is replaced."""

    settings: Settings
    """As they hold: without the optional workers whose keys are not set."""
    members: Mapping[str, PoolMember]
    """All of them, those outside the plans' pool too."""
    clients: tuple[Worker, ...]
    """The workers at the bottom of each stack, which hold the connections."""
    limiters: Mapping[str, Limited]
    """Each worker's concurrency limit, which knows how many calls wait."""
    engines: Engines

    @property
    def team(self) -> Team:
        """What plans and runs over these workers."""
        settings, own = self.settings, self.settings.prompts
        names = ("conductor", "steps", "lists", "worker")
        texts = {name: text for name in names if (text := getattr(own, name)) is not None}
        in_pool = {name: self.members[name] for name in settings.pool}
        chosen = settings.conductor
        if chosen is None:
            return Team(None, in_pool, Prompts(**texts))
        conductor = ConductorModel(
            self.members[chosen.worker], chosen.format, chosen.temperature, _constraint(settings, chosen),
            chosen.max_plan_tokens, chosen.subtask_chars, chosen.shuffle, self._thinking_tokens(chosen), self._thought(chosen), chosen.timeout_s,
        )  # fmt: skip
        return Team(conductor, in_pool, Prompts(**texts), chosen.fallback)

    def _thinking_tokens(self, chosen: ConductorSettings) -> int:
        """How many tokens the conductor, or whom it falls back to, may think."""
        if chosen.max_thinking_tokens is not None:
            return chosen.max_thinking_tokens
        first = self.settings.worker(chosen.worker)
        line = [first, *(self.settings.worker(name) for name in first.fallbacks)]
        return max(
            accepts_of(worker).thinking_tokens(first.effort or worker.effort)
            if isinstance(worker, API_SETTINGS)
            else 0
            for worker in line
        )

    def _thought(self, chosen: ConductorSettings) -> bool:
        """Whether the conductor writes a thought before its plan: where it does not reason by itself, and the prompt asks for one."""
        if chosen.thought is not None:
            return chosen.thought
        return self.settings.prompts.steps is None and not self._thinking_tokens(chosen)

    @property
    def providers(self) -> dict[str, str]:
        """The conventions' name of each worker's provider."""
        return {worker.name: PROVIDERS[worker.kind] for worker in self.settings.workers}

    @property
    def unrestricted(self) -> Team:
        """What runs given plans over every worker, those outside the pool too."""
        return Team(None, self.members)

    async def engines_not_ready(self) -> list[str]:
        """Owners of engines that are neither up nor asleep. One that was scaled to zero is waited for by its calls."""
        owners = [
            worker.name
            for worker in self.settings.workers
            if isinstance(worker, VllmSettings) and worker.deployment is None
        ]
        adapters = self.settings.adapters_of
        up = await asyncio.gather(*(self.engines[name].ready(adapters(name)) for name in owners))
        return [name for name, is_up in zip(owners, up, strict=True) if not is_up]

    def may_answer(self, name: str, engines_down: Collection[str]) -> bool:
        """Whether a call to the worker, or to one that it falls over to, reaches a model while these engines are down."""
        worker = self.settings.worker(name)
        line = [worker, *(self.settings.worker(other) for other in worker.fallbacks)]
        return any(
            not isinstance(each, VllmSettings) or (each.deployment or each.name) not in engines_down
            for each in line
        )

    async def load_adapters(self) -> None:
        """Put every adapter into every replica of its engine that is up, so that the first call with it waits for nothing.

        Raises:
            AdapterError: one cannot be served.
            WorkerUnavailable: a replica failed meanwhile.
        """
        loads = [
            engine.load(adapter)
            for name, engine in self.engines.items()
            for adapter in self.settings.adapters_of(name)
        ]
        await asyncio.gather(*loads)

    @property
    def models(self) -> dict[str, str]:
        """What each worker's server is asked for: the model, and the adapter over it."""
        return {worker.name: _model(worker, self.settings) for worker in self.settings.workers}

    @property
    def provenance(self) -> dict[str, str]:
        """What each worker stands for that is no model: `scripted`, `synthetic`, `replayed`, `program`. Models are not in it."""
        return {
            worker.name: kind
            for worker, wire in zip(self.settings.workers, self.clients, strict=True)
            if (kind := _provenance(worker, wire, self.settings))
        }

    async def aclose(self) -> None:
        """Close the HTTP clients of the API workers."""
        for wire in self.clients:
            close: Callable[[], object] | None = getattr(wire, "aclose", None)
            if close is not None and inspect.isawaitable(closing := close()):
                await closing


def build_pool(settings: Settings, environment: Mapping[str, str], engines: Engines) -> Pool:
    """Make every worker of `settings`.

    Args:
        settings: what to serve.
        environment: of this process, where the named variables are.
        engines: the vLLM engines it needs.

    Raises:
        SettingsError: a key is missing, or its file cannot be used.
    """
    absent = absent_workers(settings, environment)
    for name, source in absent.items():
        logger.warning("Worker %s is left out: no key in %s.", name, source)
    settings = without_workers(settings, set(absent))
    wires = {worker.name: _wire(worker, settings, environment, engines) for worker in settings.workers}
    slots = {worker.name: _limited(worker, wires[worker.name], settings) for worker in settings.workers}
    stacked = {
        worker.name: _fitting(worker, _retrying(worker, slots[worker.name])) for worker in settings.workers
    }
    members = {worker.name: _member(worker, stacked, settings) for worker in settings.workers}
    return Pool(settings, members, tuple(wires.values()), slots, engines)


def _wire(
    worker: WorkerSettings, settings: Settings, environment: Mapping[str, str], engines: Engines
) -> Worker:
    """The worker itself. A provider's SDK is imported only where one of its workers is served."""
    price = _price(worker)
    match worker:
        case VllmSettings():
            owner = worker.deployment or worker.name
            return VllmWorker(worker.name, _model(worker, settings), engines[owner], price, worker.adapter)
        case OpenAISettings():
            from serving.workers.openai import OpenAIWorker

            return OpenAIWorker(_account(worker, environment))
        case AnthropicSettings():
            from serving.workers.anthropic import AnthropicWorker

            return AnthropicWorker(_account(worker, environment))
        case GeminiSettings():
            from serving.workers.gemini import GeminiWorker

            return GeminiWorker(_account(worker, environment))
        case ScriptedSettings():
            from serving.workers.scripted import ScriptedReply, ScriptedWorker

            replies = [
                ScriptedReply(**reply.model_dump()) if isinstance(reply, ScriptedReplySettings) else reply
                for reply in worker.replies
            ]
            return ScriptedWorker(worker.name, replies, worker.delay_s, worker.tokens_per_s, price)
        case PythonSettings():
            from serving.workers.plugin import load_plugin

            return load_plugin(worker.name, price, worker.factory, worker.options)
        case _:
            assert_never(worker)


def _account(
    worker: OpenAISettings | AnthropicSettings | GeminiSettings, environment: Mapping[str, str]
) -> "Account":
    """Who pays at the provider. A server that wants no key gets a word that is none."""
    from serving.workers.account import Account

    return Account(
        name=worker.name,
        model=worker.model,
        api_key=read_key(worker, environment) or "none",
        base_url=worker.base_url,
        price=_price(worker),
        stall_timeout_s=worker.stall_timeout_s,
        connect_timeout_s=worker.connect_timeout_s,
        extra_body=worker.extra_body,
        family=worker.like or worker.model,
        accepts=accepts_of(worker),
    )


def _model(worker: WorkerSettings, settings: Settings) -> str:
    """What the worker's server is asked for."""
    match worker:
        case ScriptedSettings() | PythonSettings():
            return worker.name
        case VllmSettings():
            base = settings.worker(worker.deployment) if worker.deployment else worker
            model = base.model if isinstance(base, VllmSettings) else ""
            return f"{model}+{name_of(worker.adapter)}" if worker.adapter else model
        case _:
            return worker.model


def _provenance(worker: WorkerSettings, wire: Worker, settings: Settings) -> str:
    """What the settings say, or a worker of one's own of itself; empty for a model, and for one that does not say."""
    match worker:
        case ScriptedSettings():
            return "scripted"
        case PythonSettings():
            return str(getattr(wire, "provenance", ""))
        case VllmSettings():
            owner = settings.worker(worker.deployment) if worker.deployment else worker
            return "scripted" if isinstance(owner, VllmSettings) and owner.stand_in else ""
        case _:
            return ""


def _constraint(settings: Settings, chosen: ConductorSettings) -> Constraint | None:
    """How the conductor's server holds a plan to the grammar: API providers take a JSON schema, vLLM the grammar itself."""
    if not chosen.constrained:
        return None
    worker = settings.worker(chosen.worker)
    if not isinstance(worker, API_SETTINGS):
        return "ebnf"
    return "json_schema" if accepts_of(worker).json_schema else None


def _limited(worker: WorkerSettings, wire: Worker, settings: Settings) -> Limited:
    traced = Traced(
        wire, PROVIDERS[worker.kind], _model(worker, settings), content=settings.telemetry.content
    )
    return Limited(traced, worker.max_concurrency)


def _retrying(worker: WorkerSettings, limited: Limited) -> Worker:
    return Retrying(
        SkippingRefused(limited),
        worker.retry.attempts,
        worker.retry.first_wait_s,
        worker.retry.longest_wait_s,
    )


def _fitting(worker: WorkerSettings, retrying: Worker) -> Worker:
    if not isinstance(worker, API_SETTINGS):
        return retrying
    return Fitting(retrying, worker.model, accepts_of(worker))


def _member(worker: WorkerSettings, stacked: Mapping[str, Worker], settings: Settings) -> PoolMember:
    line = [worker, *(settings.worker(name) for name in worker.fallbacks)]
    blind = [each.name for each in line if not each.sees_images]
    return PoolMember(
        worker.name, FailingOver([stacked[each.name] for each in line], blind) if len(line) > 1 else stacked[worker.name],
        card=worker.card, price=_price(worker), worst_price=_worst([_price(each) for each in line]),
        max_output_tokens=worker.max_output_tokens, sees_images=worker.sees_images, system_prompt=worker.system_prompt,
        context_tokens=worker.context_tokens or _engine_context(worker, settings), tokens_per_s=worker.tokens_per_s,
        defaults=Sampling(temperature=worker.temperature, top_p=worker.top_p, effort=worker.effort),
    )  # fmt: skip


def _engine_context(worker: WorkerSettings, settings: Settings) -> int | None:
    """What a vLLM engine was told to make room for; None where it decides by itself."""
    owner = (
        settings.worker(worker.deployment)
        if isinstance(worker, VllmSettings) and worker.deployment
        else worker
    )
    tokens = owner.engine.get("max_model_len") if isinstance(owner, VllmSettings) else None
    return tokens if isinstance(tokens, int) and tokens > 0 else None


def _price(worker: WorkerSettings) -> Price | None:
    """What was set; nothing where nobody bills by the token; unknown for a provider whose price is not set."""
    if worker.price is not None:
        return Price(**worker.price.model_dump())
    return FREE if isinstance(worker, VllmSettings | ScriptedSettings) else None


def _worst(prices: list[Price | None]) -> Price | None:
    known = [price for price in prices if price is not None]
    if len(known) < len(prices):
        return None
    cached = [p.cached_input_usd_per_mtok for p in known if p.cached_input_usd_per_mtok is not None]
    return Price(
        max(p.input_usd_per_mtok for p in known), max(p.output_usd_per_mtok for p in known),
        max(cached) if len(cached) == len(known) else None,
    )  # fmt: skip
