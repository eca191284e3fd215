"""Whom strategies ask, over HTTP: a running Podium, through the official openai SDK. See `asking.Asker`."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

import openai

from conductor.money import Price
from conductor.plan import Plan
from evaluation.backends.in_process import UNSAID, Caps, Sampling
from evaluation.errors import EvaluationError
from evaluation.outcome import Outcome
from evaluation.questions import Question

Json = dict[str, Any]
READS, PAUSE_S, READ_S = 4, 0.1, 15.0
"""Of a record: how often, with which pause, and how long one may take. Each router replica keeps those of its own runs only."""


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
        """See `Asker`. The conductor is told too, where it is not a model."""
        return {name: kind for name, told in self._models.items() if (kind := told.get("provenance"))}

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
        except openai.APIStatusError as exc:
            return await self._failed(exc)
        except openai.OpenAIError as exc:
            return Outcome(error=type(exc).__name__, message=str(exc))
        told = answered.to_dict()
        try:
            return await self._recorded(told["podium"]["workflow_id"])
        except openai.OpenAIError:  # the answer is here and paid for, whatever became of its record
            return of_answer(told, self._writer(body["model"]) if plan is None else None)

    async def _recorded(self, id: str) -> Outcome:
        """The run's record, from whichever replica has it.

        Raises:
            openai.OpenAIError: none that was asked.
        """
        for _ in range(READS - 1):
            try:
                return await self._read(id)
            except openai.NotFoundError:
                await asyncio.sleep(PAUSE_S)
        return await self._read(id)

    async def _read(self, id: str) -> Outcome:
        """Its connection is not used again, so that the next read may come to another replica."""
        told = await self._client.get(
            f"/workflows/{id}",
            cast_to=dict[str, Any],
            options={"headers": {"Connection": "close"}, "timeout": READ_S},
        )
        return of_workflow(told)

    def _writer(self, model: str) -> str | None:
        """Who writes the plans of `model`; None where they are given: a workflow's, or a worker by itself."""
        conductor: Json = self._models.get(model, {}).get("conductor") or {}
        return conductor.get("worker")

    async def _failed(self, exc: openai.APIStatusError) -> Outcome:
        """What a failed run took is in its record too, where there was a run; unknown where the record is gone."""
        body = exc.body if isinstance(exc.body, dict) else {}
        id = exc.response.headers.get("x-podium-workflow-id")
        failed = Outcome(error=str(body.get("code") or f"http_{exc.status_code}"), message=exc.message)
        if not id:
            return failed
        try:
            return await self._recorded(id)
        except openai.OpenAIError:
            return replace(failed, prompt_tokens=None, completion_tokens=None, cost_usd=None)

    def _body(self, caps: Caps, plan: Plan | None, sampling: Sampling, model: str | None) -> Json:
        single = plan is not None and len(plan.steps) == 1 and not plan.steps[0].subtask
        podium: Json = {"deadline_s": caps.deadline_s, "max_tokens": caps.max_tokens}
        podium["trace"] = True  # every step, for where the record cannot be read
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


def of_answer(told: Json, conductor: str | None) -> Outcome:
    """A `chat.completion` with its steps, in short, where no record tells more.

    An answer does not tell the conductor's calls and the plans that were refused. They follow from the plans' numbers: exactly, but
    that a conductor's failure counts as a refused plan, and that a further round without a plan of its own hides one.

    Args:
        told: the answer, asked for with `trace`.
        conductor: who wrote its plans; None: they were given.
    """
    podium, usage = told["podium"], told["usage"]
    steps: list[Json] = podium["steps"]
    answer = told["choices"][0]["message"]["content"] or ""
    plan = _answering(steps, answer)
    begun = 1 + max((step["plan"] for step in steps), default=-1)
    written = max(begun, podium["rounds"]) - (podium["fallback"] is not None) if conductor else 0
    served = [step["served_by"] for step in steps if step["served_by"] is not None]
    metered, cost = not podium["unmetered_calls"], podium["cost_usd"]
    read = usage["prompt_tokens"] + usage["prompt_tokens_details"]["orchestration_input_tokens"]
    said = usage["completion_tokens"] + usage["completion_tokens_details"]["orchestration_output_tokens"]
    return Outcome(
        answer=answer, calls=len(served) + written, steps=len(plan),
        prompt_tokens=read if metered else None, completion_tokens=said if metered else None,
        cost_usd=None if cost is None else Decimal(str(cost)),
        wall_s=podium["wall_s"], critical_path_s=podium["critical_path_s"],
        format_failures=max(0, begun - podium["rounds"]) if conductor else 0, fallback=podium["fallback"],
        workers=tuple(dict.fromkeys([conductor, *served] if conductor else served)),
        plan=tuple(f"{step['worker']}{step['access']}: {step['subtask']}" for step in plan),
    )  # fmt: skip


def _answering(steps: list[Json], answer: str) -> list[Json]:
    """The plan whose step gave the answer: a newer one may have been refused after it had begun."""
    gave = [step["plan"] for step in steps if step["status"] == "done" and step["output"] == answer]
    return [step for step in steps if gave and step["plan"] == gave[-1]]
