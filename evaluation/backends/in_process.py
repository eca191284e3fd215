"""Whom strategies ask: an engine in this process, over the very layers and ledger that serve.

A strategy gives a plan, or none, and gets an `Outcome`; it does not know whether an engine or a server (`asking_url.py`) answered.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Protocol

from conductor.errors import PodiumError
from conductor.money import Budget, Price
from conductor.plan import Plan
from conductor.task import Task
from conductor.worker import Call, Message
from evaluation.errors import EvaluationError
from evaluation.outcome import Outcome, of_record
from evaluation.questions import Question
from serving.pool import Pool, build_pool
from serving.settings import Settings
from serving.worker_settings import OpenAISettings, VllmSettings


@dataclass(frozen=True, slots=True)
class Caps:
    """What every strategy may use for one question, all its calls together. None: as much as it takes.

    Args:
        max_steps: of a plan that a conductor writes; 1 or more.
        rounds: likewise.
        max_output_tokens: of one call.
        max_tokens, max_cost_usd: of all calls; a strategy of several runs gives each its part.
        deadline_s: of one run.
        temperature: of workers, where a strategy says nothing else.
    """

    max_steps: int = 5
    rounds: int = 1
    max_output_tokens: int | None = None
    max_tokens: int | None = None
    max_cost_usd: Decimal | None = None
    deadline_s: float = 300.0
    temperature: float | None = None

    def part(self, of: int) -> "Caps":
        """One of `of` equal parts."""
        return replace(
            self,
            max_tokens=None if self.max_tokens is None else max(1, self.max_tokens // of),
            max_cost_usd=None if self.max_cost_usd is None else self.max_cost_usd / of,
        )


@dataclass(frozen=True, slots=True)
class Sampling:
    """How workers are sampled for one run; None: as the caps say, or else the worker's own way."""

    temperature: float | None = None
    seed: int | None = None


UNSAID = Sampling()


class Asker(Protocol):
    """A pool that can be asked."""

    @property
    def workers(self) -> tuple[str, ...]:
        """The names that plans may use."""
        ...

    @property
    def provenance(self) -> Mapping[str, str]:
        """Name to `replayed`, `synthetic`, `scripted` or `program`; a worker that is a model is not in it."""
        ...

    @property
    def conducts(self) -> bool:
        """Whether it has a conductor."""
        ...

    @property
    def told(self) -> Mapping[str, Any]:
        """What identifies it: results of another one are not its own."""
        ...

    def price(self, worker: str) -> Price | None:
        """Per token; None where it is not known here."""
        ...

    async def run(
        self,
        question: Question,
        caps: Caps,
        plan: Plan | None = None,
        sampling: Sampling = UNSAID,
        model: str | None = None,
    ) -> Outcome:
        """Answer `question`. What fails is an outcome with an error.

        Args:
            question: only its text is shown.
            caps: of this run.
            plan: run this one; None lets the conductor write it.
            sampling: of its workers.
            model: the conductor's name at a server; None: its default.
        """
        ...

    async def aclose(self) -> None:
        """Close its connections."""
        ...


class EngineAsker:
    """An engine over `build_pool`'s workers. A conductor that is a vLLM engine is left out; `conducted_at` says where one runs."""

    def __init__(
        self, settings: Settings, environment: Mapping[str, str] | None = None, model: str | None = None
    ) -> None:
        """Builds the pool.

        Args:
            settings: of the pool.
            environment: where the named keys are; None: this process's.
            model: a name in the settings' `models`, whose workers are the pool; None: all that are in it.

        Raises:
            EvaluationError: a worker needs a cluster, or there is no such model.
            SettingsError: a key is missing, or a worker cannot be made.
        """
        settings = _without_engine(settings)
        local = [worker.name for worker in settings.workers if isinstance(worker, VllmSettings)]
        if local:
            raise EvaluationError(
                f"The worker {local[0]!r} is a vLLM engine, which a cluster serves: start it with `make serve`, "
                "and evaluate with --url http://127.0.0.1:8000 in place of --settings."
            )
        if model is not None and model not in settings.models:
            there = ", ".join(settings.models) or "none"
            raise EvaluationError(f"The settings have no model {model!r}; their `models` are: {there}.")
        self._team = settings.models[model].workers if model else None
        self._settings = settings
        self._pool: Pool = build_pool(
            settings, os.environ if environment is None else environment, engines={}
        )
        self._engine = self._pool.engine

    @property
    def workers(self) -> tuple[str, ...]:
        """See `Asker`."""
        return self._team or tuple(self._engine.pool)

    @property
    def provenance(self) -> Mapping[str, str]:
        """See `Asker`. The conductor is told too, where it is not a model."""
        return self._pool.provenance

    @property
    def conducts(self) -> bool:
        """See `Asker`."""
        return self._engine.conductor is not None

    @property
    def told(self) -> Mapping[str, Any]:
        """See `Asker`."""
        settings = self._settings.model_dump(mode="json", exclude={"limits", "router", "telemetry"})
        return {"settings": settings} | ({"team": self._team} if self._team else {})

    def price(self, worker: str) -> Price | None:
        """See `Asker`."""
        return self._pool.members[worker].price

    async def run(
        self,
        question: Question,
        caps: Caps,
        plan: Plan | None = None,
        sampling: Sampling = UNSAID,
        model: str | None = None,
    ) -> Outcome:
        """See `Asker`."""
        if plan is None and self._engine.conductor is None:
            return Outcome(error="NoPlan", message="The settings have no conductor.")
        temperature = caps.temperature if sampling.temperature is None else sampling.temperature
        task = Task(
            conversation=(Message.of("user", question.text),),
            model=model or "evaluation",
            sampling=Call(
                (), max_output_tokens=caps.max_output_tokens, temperature=temperature, seed=sampling.seed, read_along=False
            ),
            plan=plan, workers=self._team, max_steps=caps.max_steps, rounds=caps.rounds,
            budget=Budget(caps.max_cost_usd, caps.max_tokens), deadline_s=caps.deadline_s,
        )  # fmt: skip
        try:
            async with self._engine.running(task) as run:
                async for _ in run.events():
                    pass
        except PodiumError as exc:  # before anything was called
            return Outcome(error=type(exc).__name__, message=exc.explanation)
        return of_record(run.record)

    async def aclose(self) -> None:
        """See `Asker`."""
        await self._pool.aclose()


def conducted_at(settings: Settings, url: str, model: str | None = None) -> Settings:
    """The same pool with its conductor at a server that speaks OpenAI's API, such as `vllm serve`.

    Args:
        settings: with a conductor.
        url: with `/v1`.
        model: its name there; None: as the settings call it.

    Raises:
        EvaluationError: `url` is none, the settings have no conductor, or it has no model's name.
    """
    if not url.startswith(("http://", "https://")):
        raise EvaluationError(f"at={url} is no address; write at=http://127.0.0.1:8001/v1.")
    if settings.conductor is None:
        raise EvaluationError("at=URL says where the conductor is, and the settings have no `conductor`.")
    own = settings.worker(settings.conductor.worker)
    if (named := model or getattr(own, "model", None)) is None:
        raise EvaluationError(f"at={url}: say with &model=NAME what the conductor is called there.")
    shared = set(OpenAISettings.model_fields) - {"kind", "price"}
    kept = own.model_dump(include=shared, exclude_unset=True) | {"price": own.price}
    there = OpenAISettings.model_validate(kept | {"kind": "openai", "model": named, "base_url": url})
    return settings.model_copy(
        update={"workers": tuple(there if worker is own else worker for worker in settings.workers)}
    )


def _without_engine(settings: Settings) -> Settings:
    """Without the conductor, where it is a vLLM engine beside the pool: the pool can be asked without it."""
    chosen = settings.conductor
    if chosen is None or not isinstance(own := settings.worker(chosen.worker), VllmSettings) or own.in_pool:
        return settings
    others = tuple(worker for worker in settings.workers if worker is not own)
    return settings.model_copy(update={"conductor": None, "workers": others})
