"""A plan's text, run as the server would run it: the same engine, prompts, layers and ledger.

The only thing that differs is who says the plan: a worker that says exactly the given text. Nothing is mended: a text that is no
plan ends the run (`Task.strict`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from conductor.engine import Engine
from conductor.money import Budget
from conductor.planner import Conductor
from conductor.record import Record
from conductor.task import Task
from conductor.worker import Call, FinishReason, Member, Message
from serving.pool import Pool, build_pool
from serving.settings import ModelSettings, Settings, SettingsError
from serving.worker_settings import ScriptedSettings, VllmSettings
from serving.workers.scripted import ScriptedReply, ScriptedWorker
from training.caching_worker import CachingWorker, CallCache


def training_pool(settings: Settings, environment: Mapping[str, str]) -> Pool:
    """The workers of `settings`, for a conductor that is not served but taught.

    Raises:
        SettingsError: it has no conductor; or a worker's engine would have to be started, which is the server's business; or a
            key is missing.
    """
    chosen = settings.conductor
    if chosen is None:
        raise SettingsError("Training needs a pool with a conductor. Set `conductor` in its settings.")
    workers = []
    for worker in settings.workers:
        if worker.name == chosen.worker:
            kept = {
                name: getattr(worker, name) for name in ScriptedSettings.model_fields if hasattr(worker, name)
            }
            worker = ScriptedSettings(**(kept | {"kind": "scripted", "replies": ("",)}))
        elif isinstance(worker, VllmSettings):
            raise SettingsError(
                f"Worker {worker.name!r} is of kind vllm, which a server starts. Serve it, and write it with kind openai and its "
                "base_url in the pool's settings for training."
            )
        workers.append(worker)
    return build_pool(settings.model_copy(update={"workers": tuple(workers)}), environment, engines={})


@dataclass(frozen=True, slots=True)
class PlanRunner:
    """Runs plan texts over a pool.

    Args:
        pool: as `training_pool` makes it; used from one event loop.
        model: a name in its settings' `models`, whose limits hold; None: no name, five steps.
        memory: remembers what workers were asked; None: each is asked every time.
    """

    pool: Pool
    model: str | None = None
    memory: CallCache | None = None
    _engine: Engine = field(init=False)

    def __post_init__(self) -> None:
        if self.model is not None and self.model not in self.pool.settings.models:
            there = ", ".join(self.pool.settings.models) or "none"
            raise SettingsError(f"The pool has no model {self.model!r}; its `models` are: {there}.")
        engine = self.pool.engine
        if self.memory is not None:
            members = {name: self._remembering(member, self.memory) for name, member in engine.pool.items()}
            engine = replace(engine, pool=members)
        object.__setattr__(self, "_engine", engine)

    @property
    def limits(self) -> ModelSettings:
        """The limits of the model whose plans are run."""
        return self.pool.settings.models[self.model] if self.model else ModelSettings()

    @property
    def conductor(self) -> Conductor:
        """The conductor, as the settings have it."""
        assert self._engine.conductor is not None, "training_pool sees to it"
        return self._engine.conductor

    @property
    def workers(self) -> list[str]:
        """The names that plans may use, in the settings' order."""
        return list(self.limits.workers or self._engine.pool)

    def prompt(self, text: str, workers: Sequence[str]) -> list[Message]:
        """What the server shows the conductor of a question to plan, the pool in the order of `workers`."""
        members = [self._engine.pool[name] for name in workers]
        asked = (Message.of("user", text),)
        return self._engine.prompts.plan(self.conductor.layout, members, self.limits.max_steps, asked)

    def revision(self, text: str, workers: Sequence[str], written: str, outcome: str) -> list[Message]:
        """What the server shows the conductor of a plan and its outcome, to accept it or to plan again."""
        asked = self.prompt(text, workers)
        return self._engine.prompts.revise(asked, written, outcome, self.conductor.layout)

    def task(self, text: str, workers: Sequence[str], rounds: int = 1) -> Task:
        """The server's task for this question (`serving/api/task.py`), told not to mend plans."""
        limits = self.limits
        return Task(
            conversation=(Message.of("user", text),),
            model=self.model or "podium",
            sampling=Call((), read_along=False),
            workers=tuple(workers),
            max_steps=limits.max_steps,
            rounds=rounds,
            depth=limits.depth,
            budget=Budget(limits.max_cost_usd, limits.max_tokens),
            deadline_s=limits.deadline_s or self.pool.settings.limits.default_deadline_s,
            strict=True,
        )

    async def run(
        self, text: str, workers: Sequence[str], plans: Sequence[str], *, ended: bool = True
    ) -> Record:
        """The record of a run in which the conductor says `plans`, one a round.

        Args:
            text: the user's question.
            workers: who may be used, in the order in which the conductor was shown them.
            plans: its texts, one a round.
            ended: whether the last text came to its end, and was not cut off.
        """
        last = FinishReason.STOP if ended else FinishReason.LENGTH
        replies = [ScriptedReply(plan) for plan in plans[:-1]] + [ScriptedReply(plans[-1], finish=last)]
        conductor = self.conductor
        saying = replace(
            conductor.member,
            worker=ScriptedWorker(conductor.member.name, replies, price=conductor.member.price),
        )
        told = replace(conductor, member=saying, constrained=None, shuffle=False)
        engine = replace(self._engine, conductor=told, fallback=None)
        async with engine.running(self.task(text, workers, len(plans))) as run:
            async for _ in run.events():
                pass
        return run.record

    async def aclose(self) -> None:
        """Close its workers' connections, in the event loop that used them."""
        await self.pool.aclose()

    def _remembering(self, member: Member, memory: CallCache) -> Member:
        return replace(member, worker=CachingWorker(member.worker, memory))
