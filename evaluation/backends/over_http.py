"""Backend that calls a running Podium through the official openai SDK."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any, cast

import openai

from conductor.model.usage import Price
from conductor.plan.plan import Plan
from evaluation import EvaluationError
from evaluation.backends import Caps
from evaluation.outcome import RunOutcome, step_line
from evaluation.questions import Question

Json = dict[str, Any]
READS, PAUSE_S, READ_S = 10, 0.5, 15.0
"""Number of attempts to read a record, seconds between two attempts, and timeout of one attempt in seconds.

A read may reach another router replica, which has the record only once it is written to the database.
"""


class HttpBackend:
    """Backend that calls a running Podium. Create it with `connect`."""

    def __init__(
        self, client: openai.AsyncOpenAI, url: str, models: Mapping[str, Json], model: str | None
    ) -> None:
        self._client, self._url, self._models = client, url, models
        conductors = (name for name, facts in models.items() if facts["kind"] == "conductor")
        self._model = model or next(conductors, None)

    @classmethod
    async def connect(cls, url: str, model: str | None = None) -> "HttpBackend":
        """Connect to the server, with or without `/v1`. `model` is the conductor of strategies that name
        none.
        """
        base_url = url.rstrip("/").removesuffix("/v1") + "/v1"
        key = os.environ.get("PODIUM_API_KEY", "none")
        # No retries by the SDK: they would not be counted, and would favour this backend.
        client = openai.AsyncOpenAI(base_url=base_url, api_key=key, max_retries=0)
        try:
            page = await client.models.list()
            models = {each.id: dict((each.model_extra or {})["podium"]) async for each in page}
        except (openai.OpenAIError, KeyError, ValueError) as exc:
            await client.close()
            raise EvaluationError(
                f"No Podium server responds at {base_url} ({type(exc).__name__}: {exc}). Start one with `make serve`, or set --url."
            ) from exc
        if model is not None and model not in models:
            await client.close()
            raise EvaluationError(
                f"{base_url} does not serve the model {model!r}. Available models: {', '.join(models)}."
            )
        return cls(client, base_url, models, model)

    @property
    def workers(self) -> tuple[str, ...]:
        models = self._models.items()
        return tuple(n for n, facts in models if facts["kind"] == "worker" and facts.get("in_pool", True))

    @property
    def provenance(self) -> Mapping[str, str]:
        return {name: kind for name, facts in self._models.items() if (kind := facts.get("provenance"))}

    @property
    def has_conductor(self) -> bool:
        return self._model is not None

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"url": self._url, "models": dict(self._models), "model": self._model}

    def price(self, worker: str) -> Price | None:
        """Return None, because a server reports what answers cost, but not its prices."""
        return None

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
        temperature = caps.temperature if temperature is None else temperature
        name = _lone_worker(plan) or model or self._model or self.workers[0]
        optional = {"max_completion_tokens": caps.max_output_tokens, "temperature": temperature, "seed": seed}
        try:
            create: Any = self._client.chat.completions.create  # its overloads lack Podium's fields
            completion = await create(
                model=name,
                messages=[{"role": "user", "content": question.text}],
                timeout=caps.deadline_s + 30,
                extra_body={"podium": _podium_fields(caps, plan)},
                **_without_none(optional),
            )
        except openai.APIStatusError as exc:
            return await self._failure(exc)
        except openai.OpenAIError as exc:
            return RunOutcome(error=type(exc).__name__, message=str(exc))
        answer: Json = completion.to_dict()
        try:
            return await self._outcome(answer["podium"]["workflow_id"])
        except openai.OpenAIError:  # the answer was received and paid for, so it counts without its record
            return outcome_of_answer(answer)

    async def _outcome(self, id: str) -> RunOutcome:
        """Return the outcome of a run from its record. Replicas are called until one has it."""
        for n_left in reversed(range(READS)):
            try:
                record = await self._client.get(
                    f"/workflows/{id}",
                    cast_to=dict[str, Any],
                    # A fresh connection each time, so that the next read may reach another replica.
                    options={"headers": {"Connection": "close"}, "timeout": READ_S},
                )
                return outcome_of_workflow(record)
            except openai.NotFoundError:
                if not n_left:
                    raise
                await asyncio.sleep(PAUSE_S)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _failure(self, exc: openai.APIStatusError) -> RunOutcome:
        """Return the outcome of a failed request from its run's record, or unknown figures without one."""
        body = cast(Json, exc.body) if isinstance(exc.body, dict) else {}
        id = exc.response.headers.get("x-podium-workflow-id")
        failure = RunOutcome(error=str(body.get("code") or f"http_{exc.status_code}"), message=exc.message)
        if not id:
            return failure
        try:
            return await self._outcome(id)
        except openai.OpenAIError:
            unknown = dict.fromkeys(
                ("calls", "steps", "prompt_tokens", "completion_tokens", "cost_usd", "format_failures")
            )
            return replace(failure, **unknown)

    async def aclose(self) -> None:
        await self._client.close()


def _lone_worker(plan: Plan | None) -> str | None:
    """Return the worker of a plan with one step without a subtask. A server runs it as that worker's model."""
    if plan is None or len(plan.steps) != 1 or plan.steps[0].subtask:
        return None
    return plan.steps[0].worker


def _podium_fields(caps: Caps, plan: Plan | None) -> Json:
    fields: Json = {
        "deadline_s": caps.deadline_s,
        "max_tokens": caps.max_tokens,
        "max_cost_usd": None if caps.max_cost_usd is None else float(caps.max_cost_usd),
    }
    if plan is None:
        fields |= {"max_steps": caps.max_steps, "rounds": caps.rounds}
    elif _lone_worker(plan) is None:
        fields["plan"] = [
            {"worker": step.worker, "subtask": step.subtask, "access": list(step.access)}
            for step in plan.steps
        ]
    return _without_none(fields)


def _without_none(fields: Json) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


def outcome_of_workflow(record: Json) -> RunOutcome:
    """Convert a run's record, in the JSON form of `GET /v1/workflows/{id}`, to a `RunOutcome`."""
    calls = [each for each in [*record["plans"], *record["steps"]] if _is_call(each)]
    usages = [call["usage"] for call in calls if call["usage"]]
    metered = not record["unmetered_calls"]
    error: Json = record["error"] or {}
    return RunOutcome(
        answer=record["answer"],
        calls=len(calls),
        steps=len(record["plan"]),
        prompt_tokens=sum(each["input_tokens"] for each in usages) if metered else None,
        completion_tokens=sum(each["output_tokens"] for each in usages) if metered else None,
        cost_usd=_decimal(record["cost_usd"]),
        wall_s=record["wall_s"],
        critical_path_s=record["critical_path_s"],
        format_failures=sum(plan["rejected"] is not None for plan in record["plans"]),
        fallback=record["fallback"],
        error=str(error.get("code") or error.get("type")) if error else None,
        message=error["message"] if error else "",
        workers=tuple(dict.fromkeys(call["served_by"] for call in calls)),
        plan=_plan_lines(record["plan"]),
    )


def outcome_of_answer(answer: Json) -> RunOutcome:
    """Return the figures in a `chat.completion` without a readable record. Calls, steps and rejections are
    unknown.
    """
    podium, usage = answer["podium"], answer["usage"]
    metered = not podium["unmetered_calls"]
    prompt = usage["prompt_tokens"] + usage["prompt_tokens_details"]["orchestration_input_tokens"]
    completion = (
        usage["completion_tokens"] + usage["completion_tokens_details"]["orchestration_output_tokens"]
    )
    return RunOutcome(
        answer=answer["choices"][0]["message"]["content"] or "",
        calls=None,
        steps=None,
        prompt_tokens=prompt if metered else None,
        completion_tokens=completion if metered else None,
        cost_usd=_decimal(podium["cost_usd"]),
        wall_s=podium["wall_s"],
        critical_path_s=podium["critical_path_s"],
        format_failures=None,
        fallback=podium["fallback"],
    )


def _is_call(part: Json) -> bool:
    """Return whether a plan or step made its own call. Reused results count for the step that did."""
    return part["served_by"] is not None and part.get("reused_from") is None


def _plan_lines(steps: list[Json]) -> tuple[str, ...]:
    return tuple(step_line(step["worker"], step["access"], step["subtask"]) for step in steps)


def _decimal(cost: float | None) -> Decimal | None:
    return None if cost is None else Decimal(str(cost))
