"""The layers around each worker, declared once."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from conductor.model.usage import FREE
from conductor.model.worker import Worker
from serving.clients import identity_of, model_name
from serving.health import Health, WorkerHealth
from serving.layers.adaptive import Adaptive
from serving.layers.balancing import Balancing, Deployment
from serving.layers.conforming import Conforming
from serving.layers.continuing import Continuing
from serving.layers.failing_over import FailingOver
from serving.layers.first_token_limit import FirstTokenLimit
from serving.layers.fitting import Fitting
from serving.layers.hedging import Hedging
from serving.layers.limited import Limited
from serving.layers.pause_limit import PauseLimit
from serving.layers.permitted import Permitted
from serving.layers.rate import Rate
from serving.layers.retry_budget import RESERVE, RetryBudget
from serving.layers.retrying import Retrying
from serving.layers.skipping_refused import SkippingRefused
from serving.layers.together import Together
from serving.layers.traced import Traced
from serving.layers.watched import Watched
from serving.schemas import anthropic, gemini, openai, vllm
from serving.schemas.translation import Translate, translate_to_words
from serving.settings.fallbacks import chain_of
from serving.settings.known_models import OPENAI_MODEL, accepts_of
from serving.settings.pdf_reading import reads_pdfs
from serving.settings.prefill import prefills
from serving.settings.settings import Settings
from serving.settings.tool_use import calls_tools
from serving.settings.worker_price import price_of
from serving.settings.workers import (
    API_SETTINGS,
    ApiSettings,
    PythonSettings,
    ScriptedSettings,
    VllmSettings,
    WorkerSettings,
    places_of,
)
from serving.telemetry.spans import PROVIDERS
from serving.workers.bounded import Bounded
from serving.workers.own_turns import Origin
from serving.workers.patience import Patience
from serving.workers.timed import Timed


@dataclass(frozen=True, slots=True)
class Context:
    """What layers are made from."""

    own: WorkerSettings
    """Of the worker that they are around."""
    settings: Settings
    health: WorkerHealth
    deployment: str = ""
    """Which of several places it is; empty: the only one, or the worker as a whole."""


TRANSLATIONS: Mapping[str, Translate] = {
    "anthropic": anthropic.translate,
    "gemini": gemini.translate,
    "openai": openai.translate_compatible,
    "vllm": vllm.translate,
}
"""What each kind of worker is sent of an answer's form; others are told it in words."""
Layer = Callable[[Worker, Context], Worker]
"""Wraps a worker as its settings say; the worker itself where they ask for nothing."""


@dataclass(frozen=True, slots=True)
class Stack:
    """A worker with its layers."""

    top: Worker
    limiter: Limited
    """The layer that knows how many calls are open and how many wait."""
    health: WorkerHealth
    balancing: Balancing | None = None
    """What chooses among its deployments, where it has several."""

    @property
    def is_free(self) -> bool:
        """Whether one more call would be sent at once to a worker that is well."""
        is_spent = self.balancing is not None and self.balancing.is_spent
        return not (self.health.rest_s or self.limiter.is_full or is_spent)


def _bound(worker: Worker, context: Context) -> Worker:
    own = context.own
    if not isinstance(own, PythonSettings):
        return worker
    return Bounded(Timed(worker, Patience(own.stall_timeout_s, own.first_token_timeout_s)))


def _trace(worker: Worker, context: Context) -> Worker:
    own, settings = context.own, context.settings
    content = settings.telemetry.content
    return Traced(
        worker,
        PROVIDERS[own.kind],
        model_name(own, settings),
        content=content,
        deployment=context.deployment,
        price=price_of(own),
    )


def _limit_first_token(worker: Worker, context: Context) -> Worker:
    own = context.own
    if isinstance(own, ScriptedSettings):
        return worker
    is_learned = isinstance(own, (*API_SETTINGS, VllmSettings)) and own.first_token_timeout_s is None
    return FirstTokenLimit(worker, context.health, is_learned=is_learned)


def _limit_pauses(worker: Worker, context: Context) -> Worker:
    own = context.own
    is_learned = isinstance(own, (*API_SETTINGS, VllmSettings)) and own.stall_timeout_s is None
    return PauseLimit(worker, context.health) if is_learned else worker


def _watch(worker: Worker, context: Context) -> Worker:
    return Watched(worker, context.health)


def _limit(worker: Worker, context: Context) -> Worker:
    own = context.own
    limited = Adaptive if own.adaptive_concurrency else Limited
    return limited(worker, own.max_concurrency, own.max_wait_s)


def _skip_refused(worker: Worker, _: Context) -> Worker:
    return SkippingRefused(worker)


def _retry(worker: Worker, context: Context) -> Worker:
    retry = context.own.retry
    budget = RetryBudget(retry.share, reserve=lost_at_once(context))
    return Retrying(
        worker,
        retry.attempts,
        retry.first_wait_s,
        retry.max_wait_s,
        budget,
        context.health,
        retry.fallback_wait_s,
    )


def lost_at_once(context: Context) -> float:
    """The most calls that the end of one replica breaks off where others of the engine go on."""
    own = context.own
    owner = (
        context.settings.worker(own.deployment) if isinstance(own, VllmSettings) and own.deployment else own
    )
    if isinstance(owner, VllmSettings) and owner.scale.max_replicas > 1:
        return max(RESERVE, owner.scale.max_ongoing_requests)
    return RESERVE


def _fit(worker: Worker, context: Context) -> Worker:
    own = context.own
    return Fitting(worker, own.model, accepts_of(own)) if isinstance(own, API_SETTINGS) else worker


def _continue(worker: Worker, context: Context) -> Worker:
    own = context.own
    return Continuing(worker, lambda call: prefills(own, context.settings, call))


def _conform(worker: Worker, context: Context) -> Worker:
    own = context.own
    translate = TRANSLATIONS.get(own.kind, translate_to_words)
    if isinstance(own, API_SETTINGS):
        if not accepts_of(own).json_schema:
            translate = translate_to_words
        elif own.kind == "openai" and OPENAI_MODEL.search(own.like or own.model):
            translate = openai.translate
    return Conforming(worker, translate)


def _permit(worker: Worker, context: Context) -> Worker:
    own = context.own
    return Permitted(worker, accepts_of(own).default_effort if isinstance(own, API_SETTINGS) else "none")


CALL_LAYERS: tuple[Layer, ...] = (_bound, _limit_first_token, _limit_pauses, _trace, _watch, _limit)
"""Around each place where a worker is reached, innermost first. A span is one call as it is sent, and so is what
counts for its health."""
WORKER_LAYERS: tuple[Layer, ...] = (_skip_refused, _retry, _fit, _continue, _conform, _permit)
"""Around these, for the worker as a whole: a wait for a retry holds no slot, and a worker is sent only what it
accepts, answers in the form that a call asks for, and only as its run's permit allows: outermost, so that whatever chooses among workers is held to it
for each of them."""


def _fail_over(own: WorkerSettings, stacks: Mapping[str, Stack], settings: Settings) -> Worker:
    """Outermost, around the stacks of a worker and its fallbacks: each of them is retried, and sent what its
    model accepts, by its own rules.
    """
    chain = chain_of(own, settings)
    if not chain and own.name not in _planners(settings):
        return stacks[own.name].top
    line = [own, *(settings.worker(each.worker) for each in chain)]
    blind = [each.name for each in line if not each.sees_images]
    toolless = [each.name for each in line if calls_tools(each, settings) is False]
    pdfless = [each.name for each in line if not reads_pdfs(each)]
    telling = [each.name for each in line if each.on_content_filter == "tell"]
    tops = [stacks[each.name].top for each in line]
    chosen = {each.worker: each.why for each in chain if each.why}
    return FailingOver(tops, blind, toolless, pdfless, telling, stacks, chosen)


def _planners(settings: Settings) -> tuple[str, ...]:
    """Whose calls may be left to a worker that answers without a plan."""
    if settings.conductor is None:
        return ()
    leader = settings.worker(settings.conductor.worker)
    return leader.name, *(each.worker for each in chain_of(leader, settings))


def build_stacks(clients: Mapping[str, Worker], settings: Settings, health: Health) -> dict[str, Stack]:
    """Every worker of `settings` with all its layers, by name.

    Args:
        clients: the workers without layers, by the names of `places_of`.
        settings: of all of them.
        health: where their calls are counted.
    """
    alone = {own.name: _stack(clients, own, settings, health) for own in settings.workers}
    return {
        own.name: replace(alone[own.name], top=_fail_over(own, alone, settings)) for own in settings.workers
    }


def _stack(clients: Mapping[str, Worker], own: WorkerSettings, settings: Settings, health: Health) -> Stack:
    """A worker with the layers around it alone."""
    context = Context(own, settings, health.of(identity_of(own, settings)))
    balancing: Balancing | None = None
    if isinstance(own, API_SETTINGS) and own.deployments:
        deployments = _deployments(clients, own, settings, health)
        balancing = Balancing(own.name, deployments)
        called = Together(_watch(balancing, context), deployments, own.max_concurrency, own.max_wait_s)
    else:
        called = _wrap(clients[own.name], CALL_LAYERS, context)
    assert isinstance(called, Limited), "the outermost of these layers"
    hedged = Hedging(called, called, context.health) if _is_hedged(own, settings) else called
    return Stack(_wrap(hedged, WORKER_LAYERS, context), called, context.health, balancing)


def _is_hedged(own: WorkerSettings, settings: Settings) -> bool:
    """Whether its calls may be made twice: by itself only where that costs nothing and another place may answer."""
    if own.hedge is not None:
        return own.hedge
    if isinstance(own, VllmSettings):
        owner = settings.worker(own.deployment) if own.deployment else own
        has_several = isinstance(owner, VllmSettings) and owner.scale.max_replicas > 1
    else:
        has_several = isinstance(own, API_SETTINGS) and len(own.deployments) > 1
    return has_several and all(price_of(place) == FREE for place in places_of(own).values())


def _deployments(
    clients: Mapping[str, Worker], own: ApiSettings, settings: Settings, health: Health
) -> list[Deployment]:
    """The places where the worker is reached, each with its own layers."""
    found: list[Deployment] = []
    for said, (place, there) in zip(own.deployments, places_of(own).items(), strict=True):
        known = health.of(identity_of(there, settings, place))
        called = _wrap(clients[place], CALL_LAYERS, Context(there, settings, known, said.name))
        assert isinstance(called, Limited), "the outermost of these layers"
        requests, tokens = (
            Rate(most) if most else None for most in (said.requests_per_minute, said.tokens_per_minute)
        )
        origin = getattr(clients[place], "origin", None)
        account = origin.account if isinstance(origin, Origin) else ""
        found.append(Deployment(said.name, called, called, known, said.weight, requests, tokens, account))
    return found


def _wrap(worker: Worker, layers: tuple[Layer, ...], context: Context) -> Worker:
    for layer in layers:
        worker = layer(worker, context)
    return worker
