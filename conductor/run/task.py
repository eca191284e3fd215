"""The task of a run."""

from collections.abc import Mapping
from itertools import takewhile
from typing import Any, ClassVar

from conductor.model.call import AnswerFormat, Sampling
from conductor.model.messages import NO_TOOLS, Message, Toolset
from conductor.model.operation import Operation
from conductor.model.terms import ANYTHING, Permit, Priority
from conductor.model.value import DefaultingValue, JsonValue
from conductor.plan.plan import OnFailure, Plan
from conductor.run.events import Source
from conductor.run.ledger import Budget


class Task(JsonValue, DefaultingValue, frozen=True):
    """Parameters of one request.

    Args:
        conversation: the user's messages, at least one.
        model: requested model name.
        sampling: decoding parameters of the answer.
        plan: plan to run, or None if the conductor writes one.
        plan_source: author of `plan`.
        workers: allowed workers, in the order in which the conductor sees them, or None for the whole pool.
        workers_by_server: whether the settings, and not the request, chose `workers`.
        exclude_workers: workers that may not be used.
        max_steps: maximum number of steps in a plan.
        rounds: maximum number of rounds. In each round after the first, the conductor may revise its plan.
        depth: levels of inner runs. Above 0, a step can be a run of its own.
        budget: limit for all calls together.
        deadline_s: time limit in seconds, from the start of the run to the last byte of the answer.
        stream: whether a reader receives the answer as it is written. Otherwise it may arrive in larger pieces.
        plan_only: whether to stop after planning, without running a step.
        strict: whether an invalid plan fails the run, without a repair or a fallback. It is used to evaluate
            plans.
        tools: tools that steps may call. The client runs them.
        answer_format: required format of the answer, or None if any text is valid.
        operation: kind of call. All kinds except a chat are passed through to one worker.
        priority: priority of the calls in the queues of workers.
        may_change: whether the run outlives its readers. If its answer is interrupted and cannot be continued,
            another one is written for a later request.
        on_step_failure: rule for a failed step that has no rule of its own.
        left_out: request fields that are ignored and do not change the answer, one line each.
        echo: request fields that responses of the client's API repeat, as JSON. They have no other use.
        permit: limits on the workers that may be called and on the use of texts. No other field, and no plan,
            can exceed them.
    """

    not_hashed: ClassVar[frozenset[str]] = frozenset({"echo"})

    conversation: tuple[Message, ...]
    model: str = "podium"
    sampling: Sampling = Sampling()
    plan: Plan | None = None
    plan_source: Source = "client"
    workers: tuple[str, ...] | None = None
    workers_by_server: bool = False
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
    def is_tool_loop(self) -> bool:
        """True if tool results follow the last answer. In Messages, user text may follow them."""
        newest = takewhile(lambda message: message.role != "assistant", reversed(self.conversation))
        return any(message.role == "tool" for message in newest)
