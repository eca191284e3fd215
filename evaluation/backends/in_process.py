"""Backend that runs a pool of workers in this process, with the same layers and ledger as a server."""

import os
from collections.abc import Mapping
from typing import Any

from conductor.errors import PodiumError
from conductor.model.call import Sampling
from conductor.model.failure import Failure
from conductor.model.messages import Message
from conductor.model.usage import Price
from conductor.plan.plan import Plan
from conductor.run.ledger import Budget
from conductor.run.lifecycle import open_run
from conductor.run.task import Task
from evaluation import EvaluationError
from evaluation.backends import Caps
from evaluation.outcome import RunOutcome, outcome_of
from evaluation.questions import Question
from serving.pool import Pool, build_pool
from serving.settings.price_table import with_known_prices
from serving.settings.settings import Settings
from serving.settings.workers import OpenAISettings, VllmSettings


class InProcessBackend:
    """Backend with the workers that `build_pool` creates.

    A conductor that is a vLLM engine is omitted. `with_conductor_at` connects to one on a server.
    """

    def __init__(
        self, settings: Settings, environment: Mapping[str, str] | None = None, model: str | None = None
    ) -> None:
        """Build the pool, or that of a name in the settings' `models`. Without `environment`, use this
        process's.
        """
        settings = _without_local_conductor(settings)
        local = [worker.name for worker in settings.workers if isinstance(worker, VllmSettings)]
        if local:
            raise EvaluationError(
                f"Worker {local[0]!r} is a vLLM engine, which needs a running server. Start one with `make serve`, "
                "and use --url http://127.0.0.1:8000 instead of --settings."
            )
        if model is not None and model not in settings.models:
            there = ", ".join(settings.models) or "none"
            raise EvaluationError(f"The settings have no model {model!r}. Available models: {there}.")
        self._team = settings.models[model].workers if model else None
        self._settings = settings
        environment = os.environ if environment is None else environment
        self._pool: Pool = build_pool(with_known_prices(settings, environment), environment, engines={})
        self._engine = self._pool.team

    @property
    def workers(self) -> tuple[str, ...]:
        return self._team or tuple(self._engine.pool)

    @property
    def provenance(self) -> Mapping[str, str]:
        return self._pool.provenance

    @property
    def has_conductor(self) -> bool:
        return self._engine.conductor is not None

    @property
    def identity(self) -> Mapping[str, Any]:
        settings = self._settings.model_dump(mode="json", exclude={"limits", "router", "telemetry"})
        return {"settings": settings} | ({"team": self._team} if self._team else {})

    def price(self, worker: str) -> Price | None:
        return self._pool.members[worker].price

    async def run(
        self,
        question: Question,
        caps: Caps,
        plan: Plan | None = None,
        *,
        temperature: float | None = None,
        seed: int | None = None,
        model: str | None = None,
    ) -> RunOutcome:
        if plan is None and not self.has_conductor:
            return RunOutcome(
                error="NoPlan", message="The settings have no conductor. Add `conductor` to the settings."
            )
        task = Task(
            conversation=(Message.of("user", question.text),),
            model=model or "evaluation",
            sampling=Sampling(
                max_output_tokens=caps.max_output_tokens,
                temperature=caps.temperature if temperature is None else temperature,
                seed=seed,
            ),
            stream=False,
            plan=plan,
            workers=self._team,
            workers_by_server=True,
            max_steps=caps.max_steps,
            rounds=caps.rounds,
            budget=Budget(caps.max_cost_usd, caps.max_tokens),
            deadline_s=caps.deadline_s,
        )
        try:
            async with open_run(self._engine, task) as run:
                async for _ in run.events():
                    pass
        except PodiumError as exc:  # before the first call
            return RunOutcome(error=type(exc).__name__, message=Failure.of(exc).explanation)
        return outcome_of(run.record)

    async def aclose(self) -> None:
        await self._pool.aclose()


def with_conductor_at(settings: Settings, url: str, model: str | None = None) -> Settings:
    """Return settings whose conductor is at an OpenAI-compatible server. `url` includes `/v1`; `model`
    defaults to the name in the settings.
    """
    if not url.startswith(("http://", "https://")):
        raise EvaluationError(f"at={url} is not a URL. Use a URL such as at=http://127.0.0.1:8001/v1.")
    if settings.conductor is None:
        raise EvaluationError(
            f"at={url} is the URL of a conductor, but the settings have no `conductor`. Add it to the settings."
        )
    own = settings.worker(settings.conductor.worker)
    if (name := model or getattr(own, "model", None)) is None:
        raise EvaluationError(
            f"at={url} needs &model=NAME, which is the name of the conductor's model at that server."
        )
    shared = set(OpenAISettings.model_fields) - {"kind", "price"}
    fields = own.model_dump(include=shared, exclude_unset=True) | {"price": own.price}
    remote = OpenAISettings.model_validate(fields | {"kind": "openai", "model": name, "base_url": url})
    workers = tuple(remote if worker is own else worker for worker in settings.workers)
    return settings.model_copy(update={"workers": workers})


def _without_local_conductor(settings: Settings) -> Settings:
    """Drop a conductor that is a vLLM engine outside the pool. The workers can be called without it."""
    conductor = settings.conductor
    if (
        conductor is None
        or not isinstance(own := settings.worker(conductor.worker), VllmSettings)
        or own.in_pool
    ):
        return settings
    others = tuple(worker for worker in settings.workers if worker is not own)
    return settings.model_copy(update={"conductor": None, "workers": others})
