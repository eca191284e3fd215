"""Runs a plan's text as the server would: the same run, prompts, layers and ledger.

Only the conductor differs: a worker that says exactly the given text. Nothing is repaired: a text that is not
a plan ends the run (`Task.strict`).
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
from conductor.run.plan_writer import ConductorModel
from conductor.run.record import Record
from conductor.run.task import Task
from conductor.run.team import Team
from serving.pool import Pool, build_pool
from serving.settings.settings import ModelSettings, Settings, SettingsError
from serving.settings.workers import ScriptedSettings, VllmSettings, WorkerSettings
from serving.workers.scripted import ScriptedReply, ScriptedWorker
from training.caching_worker import CachingWorker, CallCache
from training.team_question import TeamQuestion

Chat = list[dict[str, str]]
"""A prompt as tokenizers take it."""


def training_pool(settings: Settings, environment: Mapping[str, str]) -> Pool:
    """The workers of `settings`, for a conductor that is trained and not served.

    Raises:
        SettingsError: there is no conductor; a worker's engine would have to be started, which is the
            server's job; or a key is missing.
    """
    chosen = settings.conductor
    if chosen is None:
        raise SettingsError("Training needs a pool with a conductor. Set `conductor` in its settings.")
    workers: list[WorkerSettings] = []
    for worker in settings.workers:
        if worker.name == chosen.worker:
            shared = [name for name in ScriptedSettings.model_fields if hasattr(worker, name)]
            kept: dict[str, Any] = {name: getattr(worker, name) for name in shared}
            kept |= {"kind": "scripted", "replies": ("",)}
            worker = ScriptedSettings(**kept)
        elif isinstance(worker, VllmSettings):
            raise SettingsError(
                f"Worker {worker.name!r} is of kind vllm, which a server starts. Serve it, and write it with "
                "kind openai and its base_url in the pool's settings for training."
            )
        workers.append(worker)
    return build_pool(settings.model_copy(update={"workers": tuple(workers)}), environment, engines={})


@dataclass(frozen=True, slots=True)
class PlanRunner:
    """Runs plan texts over a pool.

    Args:
        pool: as `training_pool` makes it; used from one event loop.
        model: a name in its settings' `models`, whose limits apply; None: no name, five steps.
        cache: of workers' replies; None: every call is made.
    """

    pool: Pool
    model: str | None = None
    cache: CallCache | None = None
    _engine: Team = field(init=False)

    def __post_init__(self) -> None:
        if self.model is not None and self.model not in self.pool.settings.models:
            there = ", ".join(self.pool.settings.models) or "none"
            raise SettingsError(f"The pool has no model {self.model!r}; its `models` are: {there}.")
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
        """The limits of the model whose plans are run."""
        return self.pool.settings.models[self.model] if self.model else ModelSettings()

    @property
    def conductor(self) -> ConductorModel:
        """The conductor, as in the settings."""
        assert self._engine.conductor is not None, "training_pool sees to it"
        return self._engine.conductor

    @property
    def workers(self) -> list[str]:
        """The names that plans may use, in the settings' order."""
        return list(self.limits.workers or self._engine.pool)

    def prompt(self, asked: TeamQuestion) -> Chat:
        """The server's prompt to plan for a question, the workers in its order."""
        return [{"role": message.role, "content": message.text} for message in self._prompt(asked)]

    def revision(self, asked: TeamQuestion, plan: str, outcome: str) -> Chat:
        """The server's prompt to accept a plan and its outcome, or to plan again."""
        prompt, layout = self._prompt(asked), self.conductor.layout
        messages = self._engine.prompts.revise(prompt, plan, outcome, layout)
        return [{"role": message.role, "content": message.text} for message in messages]

    def members(self, asked: TeamQuestion) -> list[PoolMember]:
        """The workers of a question, in its order."""
        pool = asked.members or self._engine.pool
        members = [pool[name] for name in asked.workers]
        return [dataclasses.replace(each, card=asked.cards.get(each.name, each.card)) for each in members]

    def _prompt(self, asked: TeamQuestion) -> list[Message]:
        max_steps, layout = self.limits.max_steps, self.conductor.layout
        return self._engine.prompts.plan(layout, self.members(asked), max_steps, asked.conversation)

    async def run(self, asked: TeamQuestion, plans: Sequence[str], *, ended: bool = True) -> Record:
        """The record of a run in which the conductor says `plans`, one a round.

        Args:
            asked: the question, and who may be used, in the order in which the conductor was shown them.
            plans: the conductor's texts, one a round.
            ended: whether the last text ended by itself, and was not cut off.
        """
        last = FinishReason.STOP if ended else FinishReason.LENGTH
        replies = [ScriptedReply(plan) for plan in plans[:-1]] + [ScriptedReply(plans[-1], finish=last)]
        conductor, member = self.conductor, self.conductor.member
        member = dataclasses.replace(member, worker=ScriptedWorker(member.name, replies, price=member.price))
        conductor = dataclasses.replace(conductor, member=member, constrained=None, shuffle=False)
        pool = asked.members or self._engine.pool
        engine = dataclasses.replace(self._engine, conductor=conductor, fallback=None, pool=pool)
        return await _finish(engine, self._task(asked, len(plans)))

    async def run_solo(self, asked: TeamQuestion, worker: str) -> Record:
        """The record of a run in which `worker` answers alone."""
        task = self._task(dataclasses.replace(asked, workers=(worker,)))
        task = replace(task, plan=Plan((Step(worker, ""),)), plan_source="worker")
        team = self.pool.whole_pool_team
        return await _finish(dataclasses.replace(team, pool=asked.members) if asked.members else team, task)

    def _task(self, asked: TeamQuestion, rounds: int = 1) -> Task:
        """The server's task for this question (`serving/api/resolve.py`), without repair of plans."""
        limits = self.limits
        return Task(
            conversation=asked.conversation,
            model=self.model or "podium",
            stream=False,
            workers=asked.workers,
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
