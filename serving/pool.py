"""The pool of workers that a settings file defines, ready to be called, and the teams that use them."""

import asyncio
import inspect
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from conductor.model.call import Sampling
from conductor.model.terms import ANYTHING, Permit
from conductor.model.usage import Price, dearest_of
from conductor.model.worker import PoolMember, Worker
from conductor.plan.prompts import Prompts
from conductor.run.follow_up import Agreement
from conductor.run.team import ConductorModel, Constraint, Team
from serving.clients import Engines, build_client, model_name, provenance_of
from serving.dispatch.build import build_routes, dispatcher
from serving.dispatch.limiter import Limiter
from serving.dispatch.route import Route
from serving.health import Health, WorkerHealth
from serving.lora.adapters import name_of
from serving.settings.fallbacks import Fallback, chain_of, fallbacks_of, serves_of, takes_of
from serving.settings.keys import absent_workers, needless_guides, without_workers
from serving.settings.sections import ConductorSettings
from serving.settings.settings import Settings, SettingsError
from serving.settings.webhooks import SecretError, signers
from serving.settings.without_effect import without_effect
from serving.settings.worker_profile import (
    accepts_of,
    calls_tools,
    context_limit_of,
    context_tokens_of,
    price_of,
    public_name,
    reads_pdfs,
)
from serving.settings.workers import API_SETTINGS, ApiSettings, VllmSettings, WorkerSettings, places_of
from serving.telemetry.spans import PROVIDERS
from serving.workers.picture_urls import public_hosts

logger = logging.getLogger("podium")

MOST_TEAMS = 1024
"""Maximum number of permits whose teams are cached."""


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """Workers of a settings file, ready to be called. Close the pool when another one replaces it."""

    settings: Settings
    """The settings in force, without optional workers that have no key."""
    written: Settings
    """The settings as written, including optional workers that have no key."""
    members: Mapping[str, PoolMember]
    """All workers by name, including those that plans may not use."""
    clients: tuple[Worker, ...]
    """Clients that send the calls and hold the connections, one per deployment."""
    limiters: Mapping[str, Limiter]
    """Slots and queue of each worker."""
    health: Mapping[str, WorkerHealth]
    fallbacks: Mapping[str, tuple[Fallback, ...]]
    """Fallbacks of each worker, in the order in which they are tried."""
    engines: Engines
    context_tokens: Mapping[str, int | None]
    """Context length of each worker in tokens, or None if it is unknown."""
    agreement: Agreement = field(default_factory=Agreement, init=False, repr=False)
    """How often conductors kept the workers of conversations."""
    _teams: dict[Permit, Team] = field(default_factory=dict[Permit, Team], init=False, repr=False)

    @property
    def team(self) -> Team:
        return self.team_for(ANYTHING)

    def team_for(self, permit: Permit) -> Team:
        """Return the team for runs with `permit`.

        If the permit does not allow the conductor's worker, its first allowed fallback becomes the conductor.
        """
        team = self._teams.get(permit)
        if team is None:
            if len(self._teams) >= MOST_TEAMS:
                self._teams.clear()
            team = self._teams[permit] = self._build_team(permit)
        return team

    def _build_team(self, permit: Permit) -> Team:
        settings, own = self.settings, self.settings.prompts
        names = ("conductor", "steps", "lists", "worker")
        texts = {name: text for name in names if (text := getattr(own, name)) is not None}
        in_pool = {name: self.members[name] for name in settings.pool}
        chosen = settings.conductor
        if chosen is None:
            return Team(None, in_pool, Prompts(**texts))
        line = self.line(chosen.worker)
        allowed = next((name for name in line if permit.allows(name)), None)
        if allowed is None:
            return Team(None, in_pool, Prompts(**texts), chosen.fallback)
        chosen = chosen.model_copy(update={"worker": allowed})
        conductor = ConductorModel(
            self.members[chosen.worker],
            chosen.format,
            chosen.temperature,
            _constraint(settings, chosen),
            chosen.max_plan_tokens,
            chosen.subtask_chars,
            chosen.shuffle,
            self._thinking_tokens(chosen),
            self._thought(chosen),
            chosen.timeout_s,
            chosen.effort,
        )
        return Team(conductor, in_pool, Prompts(**texts), chosen.fallback)

    def may_plan(self, permit: Permit) -> bool:
        """Return whether `permit` allows the conductor's worker or one of its fallbacks."""
        return self.team_for(permit).conductor is not None

    async def find_fetchers(self, urls: Collection[str]) -> frozenset[str]:
        """Return the workers to which pictures at `urls` can be linked: they or a fallback can fetch them."""
        workers = self.settings.workers
        hosts = (_unknown_host(place) for worker in workers for place in _api_places(worker))
        public = await public_hosts(host for host in hosts if host is not None)
        able = {worker.name for worker in workers if _fetches(worker, urls, public)}
        return frozenset(name for name in self.members if able.intersection(self.line(name)))

    def line(self, name: str) -> tuple[str, ...]:
        """Return the names of the worker and its fallbacks, in the order in which they are tried."""
        return (name, *(each.worker for each in self.fallbacks[name]))

    def _thinking_tokens(self, chosen: ConductorSettings) -> int:
        """Return the tokens that the conductor may think, by default the most of its worker and fallbacks."""
        if chosen.max_thinking_tokens is not None:
            return chosen.max_thinking_tokens
        first = self.settings.worker(chosen.worker)
        line = [self.settings.worker(name) for name in self.line(chosen.worker)]
        return max(
            accepts_of(worker).thinking_tokens(chosen.effort or first.effort or worker.effort)
            if isinstance(worker, API_SETTINGS)
            else 0
            for worker in line
        )

    def _thought(self, chosen: ConductorSettings) -> bool:
        """Return whether a thought precedes the plan: by default if the model does not reason and the prompt,
        which asks for one, is built-in.
        """
        if chosen.thought is not None:
            return chosen.thought
        return self.settings.prompts.steps is None and not self._thinking_tokens(chosen)

    @property
    def providers(self) -> dict[str, str]:
        """Provider of each worker, with the name that OpenTelemetry's conventions define."""
        return {worker.name: PROVIDERS[worker.kind] for worker in self.settings.workers}

    @property
    def whole_pool_team(self) -> Team:
        """Team for runs without a conductor, with all workers, even those that it may not use."""
        return Team(None, self.members)

    async def engines_not_ready(self) -> list[str]:
        """Return workers whose engines are down. One scaled to zero is ready, because calls wait for it."""
        owners = [
            worker.name
            for worker in self.settings.workers
            if isinstance(worker, VllmSettings) and worker.deployment is None
        ]
        adapters = self.settings.adapters_of
        up = await asyncio.gather(*(self.engines[name].ready(adapters(name)) for name in owners))
        return [name for name, is_up in zip(owners, up, strict=True) if not is_up]

    def may_answer(self, name: str, engines_down: Collection[str]) -> bool:
        """Return whether the worker or a fallback can probably answer. See `engines_not_ready`."""
        line = [self.settings.worker(each) for each in self.line(name)]
        return any(
            not (isinstance(each, VllmSettings) and self.settings.owner_of(each).name in engines_down)
            and not self.health[each.name].is_out
            for each in line
        )

    async def load_adapters(self) -> None:
        """Load all LoRA adapters into the replicas that are up, so that no call waits, or raise AdapterError."""
        loads = [
            engine.load(adapter)
            for name, engine in self.engines.items()
            for adapter in self.settings.adapters_of(name)
        ]
        await asyncio.gather(*loads)

    @property
    def models(self) -> dict[str, str]:
        """Model name that is sent to each worker's server, including its adapter."""
        return {worker.name: model_name(worker, self.settings) for worker in self.settings.workers}

    @property
    def adapters(self) -> dict[str, str]:
        local = [worker for worker in self.settings.workers if isinstance(worker, VllmSettings)]
        return {worker.name: name_of(worker.adapter) for worker in local if worker.adapter}

    @property
    def provenance(self) -> dict[str, str]:
        """Source of the answers of each worker that is not a model: `scripted`, `synthetic`, `replayed` or `program`."""
        clients = {client.name: client for client in self.clients}
        return {
            worker.name: kind
            for worker in self.settings.workers
            if (kind := provenance_of(worker, clients[worker.name], self.settings))
        }

    async def aclose(self) -> None:
        """Close the connections of all workers, also if some cannot be closed."""
        for client in self.clients:
            close: Callable[[], object] | None = getattr(client, "aclose", None)
            try:
                if close is not None and inspect.isawaitable(closing := close()):
                    await closing
            except Exception:
                logger.exception("The connections of worker %s could not be closed.", client.name)


def build_pool(
    settings: Settings, environment: Mapping[str, str], engines: Engines, health: Health | None = None
) -> Pool:
    """Build all workers of `settings`, with the `health` of the previous pool, if any. Raise SettingsError
    for missing keys or secrets.
    """
    try:
        signers(settings.webhooks, environment)
    except SecretError as exc:
        raise SettingsError(str(exc), at=("webhooks", "secret_env")) from exc
    absent = absent_workers(settings, environment)
    for name, source in absent.items():
        logger.warning("Worker %s is disabled, because its API key is missing in %s.", name, source)
    written, settings = settings, without_workers(settings, set(absent))
    settings = without_workers(settings, needless_guides(settings))
    clients = {
        place: build_client(own, settings, environment, engines)
        for worker in settings.workers
        for place, own in places_of(worker).items()
    }
    fallbacks = {worker.name: chain_of(worker, settings) for worker in settings.workers}
    _log_automatic_fallbacks(settings, fallbacks)
    for each in without_effect(settings):
        logger.warning("%s %s", each.message, each.remedy)
    routes = build_routes(clients, settings, health or Health())
    return Pool(
        settings=settings,
        written=written,
        members={worker.name: _member(worker, routes, settings) for worker in settings.workers},
        clients=tuple(clients.values()),
        limiters={name: each.limiter for name, each in routes.items()},
        health={name: each.health for name, each in routes.items()},
        fallbacks=fallbacks,
        engines=engines,
        context_tokens={worker.name: context_limit_of(worker, settings) for worker in settings.workers},
    )


def _log_automatic_fallbacks(settings: Settings, fallbacks: Mapping[str, tuple[Fallback, ...]]) -> None:
    """Log the fallbacks that were chosen automatically (`fallbacks: auto`)."""
    for worker in settings.workers:
        if worker.fallbacks != "auto":
            continue
        chain = "; ".join(f"{each.worker}, chosen {each.why}" for each in fallbacks[worker.name])
        if chain:
            logger.info("Worker %s falls back to %s.", worker.name, chain)
        else:
            logger.warning(
                "Worker %s has no fallback, because no other worker is suitable for its `fallbacks: auto`.",
                worker.name,
            )


def _constraint(settings: Settings, chosen: ConductorSettings) -> Constraint | None:
    """Return how the plan is constrained, if at all: by JSON schema at API providers, or else by a grammar."""
    if not chosen.constrained:
        return None
    worker = settings.worker(chosen.worker)
    if not isinstance(worker, API_SETTINGS):
        return "ebnf"
    return "json_schema" if accepts_of(worker).json_schema else None


def _member(
    worker: WorkerSettings, routes: Mapping[str, Route], settings: Settings, before: tuple[str, ...] = ()
) -> PoolMember:
    """Return a worker with the facts about its calls, which reach the workers in `before` first."""
    line = [worker, *map(settings.worker, fallbacks_of(worker, settings))]
    places = [place for each in line for place in places_of(each).values()]
    callees = [*map(settings.worker, before), *line]
    prices = [price_of(place) for each in callees for place in places_of(each).values()]
    sends = dispatcher(worker, routes, settings, before)
    first = () if before else worker.try_first
    return PoolMember(
        worker.name,
        sends,
        card=worker.card,
        model=public_name(worker, settings),
        price=_worst([price_of(place) for place in places_of(worker).values()]),
        worst_price=_worst(prices),
        max_output_tokens=worker.max_output_tokens,
        has_fallback=len(line) > 1,
        other_places=len(places) - 1,
        is_free=lambda: sends.is_free,
        continues=worker.on_broken_stream == "continue",
        reports_filter=frozenset(each.name for each in callees if each.on_content_filter == "tell"),
        sees_images=worker.sees_images,
        reads_pdfs=reads_pdfs(worker),
        calls_tools=calls_tools(worker, settings),
        serves=serves_of(worker, settings),
        takes=takes_of(worker, settings, before),
        system_prompt=worker.system_prompt,
        context_tokens=context_tokens_of(worker, settings),
        tokens_per_s=worker.tokens_per_s,
        defaults=Sampling(temperature=worker.temperature, top_p=worker.top_p, effort=worker.effort),
        planned=_member(worker, routes, settings, first) if first else None,
    )


def _fetches(worker: WorkerSettings, urls: Collection[str], public: Collection[str]) -> bool:
    """Return whether a deployment of `worker` can fetch the pictures at all `urls` by itself. Hosts in `public` have
    public addresses only.
    """
    if isinstance(worker, VllmSettings):
        hosts: Collection[str] = worker.engine.get("allowed_media_domains") or ()
        return all(urlsplit(url).hostname in hosts for url in urls)
    places = _api_places(worker)
    if not places:
        return True  # scripted, or a plugin
    return any(
        place.fetches_pictures is not False and ((host := _unknown_host(place)) is None or host in public)
        for place in places
    )


def _api_places(worker: WorkerSettings) -> list[ApiSettings]:
    return [place for place in places_of(worker).values() if isinstance(place, API_SETTINGS)]


def _unknown_host(place: ApiSettings) -> str | None:
    """Return the host of a deployment if its address decides whether it can fetch pictures, or None."""
    if place.fetches_pictures is not None or not place.base_url:
        return None
    return urlsplit(place.base_url).hostname


def _worst(prices: list[Price | None]) -> Price | None:
    known_prices = [price for price in prices if price is not None]
    return dearest_of(known_prices) if len(known_prices) == len(prices) else None
