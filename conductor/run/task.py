"""The task of a run, and an estimate of its cost."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, ClassVar

from conductor.model.call import AnswerFormat, Call, Sampling
from conductor.model.messages import NO_TOOLS, Message, Toolset
from conductor.model.operation import Operation
from conductor.model.terms import ANYTHING, Permit, Priority
from conductor.model.usage import Usage
from conductor.model.value import DefaultingValue, JsonValue
from conductor.model.worker import PoolMember
from conductor.plan.plan import OnFailure, Plan
from conductor.plan.prompts import work
from conductor.run.call import call_bound
from conductor.run.events import Source
from conductor.run.ledger import Budget


class Task(JsonValue, DefaultingValue, frozen=True):
    """What one request asks for.

    Args:
        conversation: the user's messages, at least one.
        model: the name that was asked for.
        sampling: how the answer is decoded.
        plan: run this one; None lets the conductor write it.
        plan_source: who gave `plan`.
        workers: the names that may be used, in the order the conductor sees them; None: the whole pool.
        exclude_workers: names that may not.
        max_steps, rounds, depth: of plans; `depth` above 0 lets a step be a whole run of its own, so deep.
        budget: for everything together.
        deadline_s: from the run's begin to the last byte.
        stream: somebody reads the answer while it is written; otherwise it may come in larger pieces.
        plan_only: stop when the plan is there; no step is run.
        strict: a plan that cannot run ends the run: no complaint to the conductor, no fallback. For who
            judges plans.
        tools: what its steps may call; the client runs them.
        answer_format: what the answer must be; None: any text.
        operation: what is asked of its one worker; anything but a chat is a pass-through.
        priority: whether its calls go before or after those of others where there is no room for all.
        may_change: the run outlives its readers: where its answer breaks off and nobody goes on with it, another is written,
            for who asks again.
        on_step_failure: what follows where a step fails that does not say it itself.
        left_out: what the client sent, is not served and does not change the answer: a line for each.
        echo: what answers in its client's dialect repeat of the request, as JSON; nobody else reads it.
        permit: what it may reach, whatever the other fields, the conductor or a worker say.
    """

    not_hashed: ClassVar[frozenset[str]] = frozenset({"echo"})

    conversation: tuple[Message, ...]
    model: str = "podium"
    sampling: Sampling = Sampling()
    plan: Plan | None = None
    plan_source: Source = "client"
    workers: tuple[str, ...] | None = None
    exclude_workers: tuple[str, ...] = ()
    max_steps: int = 5
    rounds: int = 1
    depth: int = 0
    budget: Budget = Budget()
    deadline_s: float | None = None
    stream: bool = True
    plan_only: bool = False
    strict: bool = False
    tools: Toolset = NO_TOOLS
    answer_format: AnswerFormat | None = None
    operation: Operation = "chat"
    priority: Priority = "interactive"
    may_change: bool = False
    on_step_failure: OnFailure = "fail"
    left_out: tuple[str, ...] = ()
    echo: Mapping[str, Any] = {}
    permit: Permit = ANYTHING

    @property
    def shows_pictures(self) -> bool:
        """Whether the user shows any."""
        return any(message.has_image for message in self.conversation)

    @property
    def shows_pdfs(self) -> bool:
        """Whether the user shows files that not every worker can read."""
        return any(message.has_pdf for message in self.conversation)

    @property
    def n_rounds(self) -> int:
        """How many rounds there may be: a given plan, and one that is not run, is never revised."""
        return 1 if self.plan is not None or self.plan_only else self.rounds


BYTES_PER_OUTPUT_TOKEN = 4
"""What an output token becomes when another worker reads it: prompts are bounded by their bytes, outputs by
their tokens."""


def worst_case(
    plan: Plan, pool: Mapping[str, PoolMember], conversation: tuple[Message, ...], sampling: Sampling
) -> tuple[list[Usage], list[Decimal | None]]:
    """Each step's tokens and dollars at most; 0 for a step that would never run, None where a price is
    unknown.

    The reservation made at run time is never larger, but for outputs of more than `BYTES_PER_OUTPUT_TOKEN`
    bytes a token.
    """
    tokens: list[Usage] = []
    for index, step in enumerate(plan.steps):
        member = pool[step.worker]
        prompt = work(member, conversation, step, plan.steps[:index], dict.fromkeys(step.access, ""))
        bound = call_bound(member, Call(prompt.messages, member.with_defaults(sampling)))
        read = sum(tokens[earlier].output_tokens for earlier in step.access) * BYTES_PER_OUTPUT_TOKEN
        tokens.append(Usage(bound.input_tokens + read, bound.output_tokens))
    needed = plan.reachable
    tokens = [usage if index in needed else Usage() for index, usage in enumerate(tokens)]
    prices = [pool[step.worker].worst_price for step in plan.steps]
    return tokens, [price.most(usage) if price else None for price, usage in zip(prices, tokens, strict=True)]
