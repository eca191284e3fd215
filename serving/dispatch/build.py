"""Factory of dispatchers and routes from settings."""

from collections.abc import Mapping, Sequence

from conductor.model.terms import Callee
from conductor.model.usage import FREE
from conductor.model.worker import Worker
from serving.clients import identity_of, model_name
from serving.dispatch.call_budgets import RESERVE, RetryBudget, TokenBucket
from serving.dispatch.dispatcher import Dispatcher
from serving.dispatch.limiter import AdaptiveLimiter, Limiter
from serving.dispatch.model_parameters import ModelProfile
from serving.dispatch.route import RetryRules, Route, SharedLimiter
from serving.dispatch.target import Target
from serving.health import Health, WorkerHealth
from serving.schemas import anthropic, gemini, openai, vllm
from serving.schemas.translation import Translate, translate_for_plugin, translate_to_words
from serving.settings.fallbacks import chain_of
from serving.settings.known_models import OPENAI_MODEL
from serving.settings.settings import Settings
from serving.settings.worker_profile import (
    accepts_of,
    calls_tools,
    context_limit_of,
    prefills,
    price_of,
    reads_pdfs,
)
from serving.settings.workers import (
    API_SETTINGS,
    ApiSettings,
    PythonSettings,
    ScriptedSettings,
    VllmSettings,
    WorkerSettings,
    places_of,
)
from serving.telemetry.spans import PROVIDERS, SpanFacts
from serving.workers.native_turns import Origin
from serving.workers.plugin import PluginWorker
from serving.workers.stall_timer import Patience

TRANSLATIONS: Mapping[str, Translate] = {
    "anthropic": anthropic.translate,
    "gemini": gemini.translate,
    "openai": openai.translate_compatible,
    "python": translate_for_plugin,
    "vllm": vllm.translate,
}
"""Translation of the answer format by kind of worker. Other kinds get it as instructions in the prompt."""
HEDGE_SHARE = 0.05
"""Maximum number of hedges as a share of the calls."""


def dispatcher(
    own: WorkerSettings, routes: Mapping[str, Route], settings: Settings, before: Sequence[str] = ()
) -> Dispatcher:
    chain = chain_of(own, settings)
    reasons = {each.worker: each.why for each in chain if each.why}
    line = [routes[name] for name in (own.name, *(each.worker for each in chain))]
    return Dispatcher(line, reasons, [routes[name] for name in before])


def build_routes(clients: Mapping[str, Worker], settings: Settings, health: Health) -> dict[str, Route]:
    """Return the route of every worker, by name. A worker and those that fall back to it share its route."""
    return {own.name: _route(clients, own, settings, health) for own in settings.workers}


def _route(clients: Mapping[str, Worker], own: WorkerSettings, settings: Settings, health: Health) -> Route:
    worker_health, retry = health.of(identity_of(own, settings)), own.retry
    if isinstance(own, API_SETTINGS) and own.deployments:
        targets = _deployments(clients, own, settings, health)
        limiter: Limiter = SharedLimiter(own.name, targets, own.max_concurrency, own.max_wait_s)
    else:
        limiter = _limiter(own)
        targets = (_target(clients[own.name], own, settings, limiter, worker_health),)
    return Route(
        own.name,
        targets,
        limiter,
        worker_health,
        _profile(own, settings),
        RetryRules(retry.attempts, retry.first_wait_s, retry.max_wait_s, retry.fallback_wait_s),
        RetryBudget(retry.share, reserve=retry_reserve(own, settings)),
        RetryBudget(HEDGE_SHARE, start=0.0) if _is_hedged(own, settings) else None,
    )


def _target(
    client: Worker,
    own: WorkerSettings,
    settings: Settings,
    limiter: Limiter,
    health: WorkerHealth,
    deployment: str = "",
) -> Target:
    if isinstance(own, PythonSettings):
        client = PluginWorker(client, Patience(own.stall_timeout_s, own.first_token_timeout_s))
    is_model = isinstance(own, (*API_SETTINGS, VllmSettings))
    learns_first_token = is_model and own.first_token_timeout_s is None
    return Target(
        Callee(own.name, deployment, price_of(own)),
        client,
        limiter,
        health,
        SpanFacts(PROVIDERS[own.kind], model_name(own, settings), settings.telemetry.content),
        None if isinstance(own, ScriptedSettings) else learns_first_token,
        is_model and own.stall_timeout_s is None,
    )


def _limiter(own: WorkerSettings) -> Limiter:
    limiter = AdaptiveLimiter if own.adaptive_concurrency else Limiter
    return limiter(own.name, own.max_concurrency, own.max_wait_s)


def _deployments(
    clients: Mapping[str, Worker], own: ApiSettings, settings: Settings, health: Health
) -> tuple[Target, ...]:
    targets: list[Target] = []
    for deployment, (place, there) in zip(own.deployments, places_of(own).items(), strict=True):
        deployment_health = health.of(identity_of(there, settings, place))
        target = _target(clients[place], there, settings, _limiter(there), deployment_health, deployment.name)
        target.weight = deployment.weight
        target.requests, target.tokens = (
            TokenBucket(most) if most else None
            for most in (deployment.requests_per_minute, deployment.tokens_per_minute)
        )
        origin = getattr(clients[place], "origin", None)
        target.account = origin.account if isinstance(origin, Origin) else ""
        targets.append(target)
    return tuple(targets)


def retry_reserve(own: WorkerSettings, settings: Settings) -> float:
    """Return the size of the retry budget. If a vLLM replica is lost, all its calls are interrupted together."""
    if not isinstance(own, VllmSettings):
        return RESERVE
    scale = settings.owner_of(own).scale
    return max(RESERVE, scale.max_ongoing_requests) if scale.max_replicas > 1 else RESERVE


def _is_hedged(own: WorkerSettings, settings: Settings) -> bool:
    """Return whether to send a hedge, which is a second attempt, for calls whose first token is late.

    By default, calls are hedged only if they cost nothing and the worker has another replica or deployment.
    """
    if own.hedge is not None:
        return own.hedge
    if isinstance(own, VllmSettings):
        has_several = settings.owner_of(own).scale.max_replicas > 1
    else:
        has_several = isinstance(own, API_SETTINGS) and len(own.deployments) > 1
    return has_several and all(price_of(place) == FREE for place in places_of(own).values())


def _profile(own: WorkerSettings, settings: Settings) -> ModelProfile:
    accepts = accepts_of(own) if isinstance(own, API_SETTINGS) else None
    return ModelProfile(
        own.like or own.model if isinstance(own, API_SETTINGS) else "",
        accepts,
        accepts.default_effort if accepts else "none",
        _translation(own),
        lambda call: prefills(own, settings, call),
        own.sees_images,
        reads_pdfs(own),
        calls_tools(own, settings),
        own.on_content_filter == "tell",
        context_limit_of(own, settings),
    )


def _translation(own: WorkerSettings) -> Translate:
    translate = TRANSLATIONS.get(own.kind, translate_to_words)
    if isinstance(own, API_SETTINGS):
        if not accepts_of(own).json_schema:
            return translate_to_words
        if own.kind == "openai" and OPENAI_MODEL.search(own.like or own.model):
            return openai.translate
    return translate
