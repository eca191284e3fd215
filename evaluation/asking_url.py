"""Whom strategies ask, over HTTP: a running Podium, through the official openai SDK. See `asking.Asker`."""

import os
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import openai

from conductor.money import Price
from conductor.plan import Plan
from evaluation.asking import UNSAID, Caps, Sampling
from evaluation.errors import EvaluationError
from evaluation.outcome import Outcome
from evaluation.questions import Question

Json = dict[str, Any]


class UrlAsker:
    """A server. Make it with `connected`."""

    def __init__(
        self, client: openai.AsyncOpenAI, url: str, models: Mapping[str, Json], model: str | None
    ) -> None:
        self._client, self._url, self._models = client, url, models
        self._model = model or next(
            (name for name, told in models.items() if told["kind"] == "conductor"), None
        )

    @classmethod
    async def connected(cls, url: str, model: str | None = None) -> "UrlAsker":
        """Ask the server whom it has.

        Args:
            url: with or without `/v1`.
            model: the conductor to ask where a strategy names none; None: the first.

        Raises:
            EvaluationError: no Podium answers there, or it serves no such model.
        """
        base_url = url.rstrip("/").removesuffix("/v1") + "/v1"
        key = os.environ.get("PODIUM_API_KEY", "none")
        client = openai.AsyncOpenAI(
            base_url=base_url, api_key=key, max_retries=0
        )  # a second try would be neither counted nor fair
        try:
            listed = await client.models.list()
            models = {each.id: dict((each.model_extra or {})["podium"]) async for each in listed}
        except (openai.OpenAIError, KeyError, ValueError) as exc:
            await client.close()
            raise EvaluationError(
                f"No Podium answers at {base_url} ({type(exc).__name__}: {exc}). Start one with `make serve`."
            ) from exc
        if model is not None and model not in models:
            await client.close()
            raise EvaluationError(f"{base_url} serves no {model!r}; it serves {', '.join(models)}.")
        return cls(client, base_url, models, model)

    @property
    def workers(self) -> tuple[str, ...]:
        """See `Asker`."""
        return tuple(
            n for n, told in self._models.items() if told["kind"] == "worker" and told.get("in_pool", True)
        )

    @property
    def provenance(self) -> Mapping[str, str]:
        """See `Asker`. A server does not say whether its workers are models."""
        return {}

    @property
    def conducts(self) -> bool:
        """See `Asker`."""
        return self._model is not None

    @property
    def told(self) -> Mapping[str, Any]:
        """See `Asker`."""
        return {"url": self._url, "models": dict(self._models), "model": self._model}

    def price(self, worker: str) -> Price | None:
        """See `Asker`. A server tells no prices, only what answers cost."""
        return None

    async def run(
        self,
        question: Question,
        caps: Caps,
        plan: Plan | None = None,
        sampling: Sampling = UNSAID,
        model: str | None = None,
    ) -> Outcome:
        """See `Asker`."""
        body = self._body(caps, plan, sampling, model)
        try:
            answered = await self._client.chat.completions.create(
                messages=[{"role": "user", "content": question.text}], **body
            )
            return await self._recorded((answered.model_extra or {})["podium"]["workflow_id"])
        except openai.APIStatusError as exc:
            return await self._failed(exc)
        except openai.OpenAIError as exc:
            return Outcome(error=type(exc).__name__, message=str(exc))

    async def _recorded(self, id: str) -> Outcome:
        return of_workflow(await self._client.get(f"/workflows/{id}", cast_to=dict[str, Any]))

    async def _failed(self, exc: openai.APIStatusError) -> Outcome:
        """What a failed run took is in its record too, where there was a run."""
        body = exc.body if isinstance(exc.body, dict) else {}
        id = exc.response.headers.get("x-podium-workflow-id")
        try:
            if id:
                return await self._recorded(id)
        except openai.OpenAIError:
            pass  # then the error itself is all there is to tell
        return Outcome(error=str(body.get("code") or f"http_{exc.status_code}"), message=exc.message)

    def _body(self, caps: Caps, plan: Plan | None, sampling: Sampling, model: str | None) -> Json:
        single = plan is not None and len(plan.steps) == 1 and not plan.steps[0].subtask
        podium: Json = {"deadline_s": caps.deadline_s, "max_tokens": caps.max_tokens, "trace": False}
        podium["max_cost_usd"] = None if caps.max_cost_usd is None else float(caps.max_cost_usd)
        if plan is None:
            podium |= {"max_steps": caps.max_steps, "rounds": caps.rounds}
        elif not single:
            podium["plan"] = [
                {"worker": step.worker, "subtask": step.subtask, "access": list(step.access)}
                for step in plan.steps
            ]
        asked = (
            plan.steps[0].worker if plan is not None and single else model or self._model or self.workers[0]
        )
        temperature = caps.temperature if sampling.temperature is None else sampling.temperature
        body: Json = {
            "max_completion_tokens": caps.max_output_tokens,
            "temperature": temperature,
            "seed": sampling.seed,
        }
        chosen = {name: value for name, value in body.items() if value is not None}
        held = {name: value for name, value in podium.items() if value is not None}
        return {"model": asked, "timeout": caps.deadline_s + 30, "extra_body": {"podium": held}, **chosen}

    async def aclose(self) -> None:
        """See `Asker`."""
        await self._client.close()


def of_workflow(told: Json) -> Outcome:
    """The record that a server tells, in short."""
    calls = [each for each in [*told["plans"], *told["steps"]] if each["served_by"] is not None]
    used = [call["usage"] for call in calls if call["usage"]]
    metered = not told["unmetered_calls"]
    cost = told["cost_usd"]
    return Outcome(
        answer=told["answer"], calls=len(calls), steps=len(told["plan"]),
        prompt_tokens=sum(each["input_tokens"] for each in used) if metered else None,
        completion_tokens=sum(each["output_tokens"] for each in used) if metered else None,
        cost_usd=None if cost is None else Decimal(str(cost)),
        wall_s=told["wall_s"], critical_path_s=told["critical_path_s"],
        format_failures=sum(plan["rejected"] is not None for plan in told["plans"]), fallback=told["fallback"],
        error=None if told["error"] is None else str(told["error"].get("code") or told["error"].get("type")),
        message="" if told["error"] is None else told["error"]["message"],
        workers=tuple(dict.fromkeys(call["served_by"] for call in calls)),
        plan=tuple(f"{step['worker']}{step['access']}: {step['subtask']}" for step in told["plan"]),
    )  # fmt: skip
