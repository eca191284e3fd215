"""Run the text of a plan as the server would, with the same run, prompts, layers and ledger.

The only difference is the conductor, which is a worker that replies with exactly the given text. Nothing is
repaired: a text that is not a plan ends the run (`Task.strict`).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from conductor.model.messages import Message
from conductor.model.reply import FinishReason
from conductor.model.worker import PoolMember
from conductor.plan.plan import Plan, Step
from conductor.run.ledger import Budget
from conductor.run.lifecycle import open_run
from conductor.run.record import Record
from conductor.run.task import Task
from conductor.run.team import ConductorModel, Team
from serving.pool import Pool, build_pool
from serving.settings.settings import ModelSettings, Settings, SettingsError
from serving.settings.workers import ScriptedSettings, VllmSettings, WorkerSettings
from serving.workers.scripted import ScriptedReply, ScriptedWorker
from training.caching_worker import CachingWorker, CallCache
from training.team_question import TeamQuestion

Chat = list[dict[str, str]]
"""A prompt in the form that tokenizers take: messages with a role and content."""


def training_pool(settings: Settings, environment: Mapping[str, str]) -> Pool:
    """Build the workers of `settings` for training a conductor that is not served. Engines are rejected."""
    conductor = settings.conductor
    if conductor is None:
        raise SettingsError("Training needs a pool with a conductor. Set `conductor` in the pool's settings.")
    workers: list[WorkerSettings] = []
    for worker in settings.workers:
        if worker.name == conductor.worker:
            shared = [name for name in ScriptedSettings.model_fields if hasattr(worker, name)]
            fields: dict[str, Any] = {name: getattr(worker, name) for name in shared}
            fields |= {"kind": "scripted", "replies": ("",)}
            worker = ScriptedSettings(**fields)
        elif isinstance(worker, VllmSettings):
            raise SettingsError(
                f"Worker {worker.name!r} has kind vllm, and training does not start vLLM engines. "
                "Start the engine with `vllm serve`, and use kind openai with its base_url in the pool's settings."
            )
        workers.append(worker)
    return build_pool(settings.model_copy(update={"workers": tuple(workers)}), environment, engines={})


@dataclass(frozen=True, slots=True)
class PlanRunner:
    """Runs texts of plans in one event loop with the workers of a pool, and the limits of `model`."""

    pool: Pool
    model: str | None = None
    cache: CallCache | None = None
    _engine: Team = field(init=False)

    def __post_init__(self) -> None:
        if self.model is not None and self.model not in self.pool.settings.models:
            models = ", ".join(self.pool.settings.models) or "none"
            raise SettingsError(f"The pool has no model {self.model!r}. Available models: {models}.")
        engine = self.pool.team
        if self.cache is not None:
            members = {
                name: dataclasses.replace(member, worker=CachingWorker(member.worker, self.cache))
                for name, member in engine.pool.items()
            }
            engine = dataclasses.replace(engine, pool=members)
        object.__setattr__(self, "_engine", engine)

    @property
    def limits(self) -> ModelSettings:
        return self.pool.settings.models[self.model] if self.model else ModelSettings()

    @property
    def conductor(self) -> ConductorModel:
        assert self._engine.conductor is not None, "checked by training_pool"
        return self._engine.conductor

    @property
    def workers(self) -> list[str]:
        """Names of the workers that plans may use, in the order of the settings."""
        return list(self.limits.workers or self._engine.pool)

    def prompt(self, question: TeamQuestion) -> Chat:
        """Return the server's prompt to plan for a question, with workers in the order of `question.workers`."""
        return [{"role": message.role, "content": message.text} for message in self._prompt(question)]

    def revision(self, question: TeamQuestion, plan: str, outcome: str) -> Chat:
        """Return the server's prompt to accept a plan with its outcome, or to plan again."""
        prompt, layout = self._prompt(question), self.conductor.layout
        messages = self._engine.prompts.revise(prompt, plan, outcome, layout)
        return [{"role": message.role, "content": message.text} for message in messages]

    def members(self, question: TeamQuestion) -> list[PoolMember]:
        """Return the workers of a question in its order. They have the question's cards, if it has any."""
        pool = question.members or self._engine.pool
        members = [pool[name] for name in question.workers]
        return [dataclasses.replace(each, card=question.cards.get(each.name, each.card)) for each in members]

    def _prompt(self, question: TeamQuestion) -> list[Message]:
        max_steps, layout = self.limits.max_steps, self.conductor.layout
        return self._engine.prompts.plan(layout, self.members(question), max_steps, question.conversation)

    async def run(self, question: TeamQuestion, plans: Sequence[str], *, ended: bool = True) -> Record:
        """Run the question with a conductor that replies with `plans`, one per round. If the last one was
        truncated, `ended` is False.
        """
        last = FinishReason.STOP if ended else FinishReason.LENGTH
        replies = [ScriptedReply(plan) for plan in plans[:-1]] + [ScriptedReply(plans[-1], finish=last)]
        conductor, member = self.conductor, self.conductor.member
        member = dataclasses.replace(member, worker=ScriptedWorker(member.name, replies, price=member.price))
        conductor = dataclasses.replace(conductor, member=member, constrained=None, shuffle=False)
        pool = question.members or self._engine.pool
        engine = dataclasses.replace(self._engine, conductor=conductor, fallback=None, pool=pool)
        return await _finish(engine, self._task(question, len(plans)))

    async def run_solo(self, question: TeamQuestion, worker: str) -> Record:
        task = self._task(dataclasses.replace(question, workers=(worker,)))
        task = replace(task, plan=Plan((Step(worker, ""),)), plan_source="worker")
        team = self.pool.whole_pool_team
        return await _finish(
            dataclasses.replace(team, pool=question.members) if question.members else team, task
        )

    def _task(self, question: TeamQuestion, rounds: int = 1) -> Task:
        """Return the server's task for this question (`serving/api/resolve.py`), without repair of plans."""
        limits = self.limits
        return Task(
            conversation=question.conversation,
            model=self.model or "podium",
            stream=False,
            workers=question.workers,
            max_steps=limits.max_steps,
            rounds=rounds,
            depth=limits.depth,
            budget=Budget(limits.max_cost_usd, limits.max_tokens),
            deadline_s=limits.deadline_s or self.pool.settings.limits.default_deadline_s,
            strict=True,
        )

    async def aclose(self) -> None:
        """Close the workers' connections, in the event loop that used them."""
        await self.pool.aclose()


async def _finish(engine: Team, task: Task) -> Record:
    async with open_run(engine, task) as run:
        async for _ in run.events():
            pass
    return run.record
