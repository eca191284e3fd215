"""A plan request to the conductor, and the plan's text as a stream of steps.

A `PlanStream` handles one plan text: prompt, grammar, parser and call. Repairs and fallbacks concern whole
plans; see `rounds.py`.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from conductor.errors import InvalidPlan, Reason, WorkerUnavailable
from conductor.model.call import Call, Sampling
from conductor.model.reply import CallResult, Delta, FinishReason, Reply
from conductor.model.worker import PoolMember
from conductor.plan.formats import Format, parser
from conductor.plan.grammars import SUBTASK_CHARS, grammar
from conductor.plan.instructions import Layout, layout_of
from conductor.plan.plan import Plan, Step
from conductor.run.call import open_call
from conductor.run.ledger import Ledger

PLAN_TOKENS = 1024
"""The paper's limit on a plan's text (appendix A.1)."""
PLAN_BYTES_PER_TOKEN = 8
"""Upper bound of bytes per token of a plan, for any tokenizer: plans are prose and JSON."""
PLAN_TIMEOUT_S = 300.0

Constraint = Literal["ebnf", "json_schema"]
"""Language of the grammar that the server enforces: vLLM's, or an API provider's."""


@dataclass(frozen=True, slots=True)
class ConductorModel:
    """The model that writes plans, and its decoding settings.

    Args:
        member: the model.
        format: of its plans.
        temperature: of its decoding. The paper trains at 1.0; plans are best decoded at 0.
        constrained: how its server enforces the format's grammar; None if it does not.
        max_plan_tokens: limit of a plan's length, also enforced here if the server does not enforce it.
        subtask_chars: limit of a subtask's length in the grammar.
        shuffle: show the pool in a new order, and with new numbers, in each request.
        max_thinking_tokens: thinking tokens in addition to the plan: providers count them as output.
        thought: let it write a thought before the steps if a JSON schema is enforced. For models without
            reasoning of their own.
        timeout_s: limit for writing one plan, from its first token on, thinking included.
        effort: reasoning effort for plans; None for the member's default.
    """

    member: PoolMember
    format: Format = "steps"
    temperature: float | None = 0.0
    constrained: Constraint | None = "ebnf"
    max_plan_tokens: int = PLAN_TOKENS
    subtask_chars: int = SUBTASK_CHARS
    shuffle: bool = False
    max_thinking_tokens: int = 0
    thought: bool = False
    timeout_s: float = PLAN_TIMEOUT_S
    effort: str | None = None

    @property
    def layout(self) -> Layout:
        """Layout of its plans."""
        return layout_of(self.format, is_schema=self.constrained == "json_schema", is_thinking=self.thought)

    @property
    def sampling(self) -> Sampling:
        """Decoding parameters of its plans, independent of the user's."""
        longest = self.max_plan_tokens + self.max_thinking_tokens
        return Sampling(max_output_tokens=longest, temperature=self.temperature, effort=self.effort)


class PlanStream:
    """One plan while it is written. Iterate over its steps, each yielded once it is complete; then read
    `plan`.

    Args:
        conductor: writes the plan.
        pool: workers in the order in which the conductor sees them.
        max_steps: limit of the number of steps.
        call: prompt and position in the run. Sampling and grammar are taken from `conductor`.
        ledger: the run's spending.
        may_accept: whether the text may accept the previous round's answer.
        has_tools: whether workers can receive the client's tools.
        on_text: called with each piece of the text and the reply so far.
    """

    def __init__(
        self,
        conductor: ConductorModel,
        pool: Sequence[PoolMember],
        max_steps: int,
        call: Call,
        ledger: Ledger,
        *,
        may_accept: bool,
        has_tools: bool = False,
        on_text: Callable[[Delta, Reply], None] | None = None,
    ) -> None:
        self._on_text = on_text
        self._conductor, self._ledger, self._may_accept = conductor, ledger, may_accept
        self._parser = parser(conductor.format, [member.name for member in pool], max_steps)
        constraint = None
        if conductor.constrained:
            constraint = grammar(
                conductor.format,
                len(pool),
                max_steps,
                may_accept=may_accept,
                subtask_chars=conductor.subtask_chars,
                thinking=conductor.thought,
                has_tools=has_tools,
            )
        self._call = replace(call, sampling=conductor.sampling, grammar=constraint)
        self.result: CallResult | None = None
        """The conductor's call once it has begun; complete after iteration."""
        self.plan: Plan | None = None
        """The whole plan, or None if it accepts the previous answer."""
        self._is_late = False

    async def __aiter__(self) -> AsyncIterator[Step]:
        """Yield the steps.

        Raises:
            InvalidPlan: the plan cannot run. Some steps may have been yielded.
            WorkerError: the conductor failed or exceeded its time. Some steps may have been yielded.
            BudgetExceeded: the budget does not allow the call.
        """
        reply: Reply | None = None
        try:
            async with (
                open_call(self._conductor.member, self._call, self._ledger) as reply,
                aclosing(self._texts(reply)) as texts,
            ):
                async for text in texts:
                    for step in self._parser.feed(text):
                        yield step
        finally:
            if reply is not None:  # the bill is complete once the call is closed
                self.result = reply.result
        assert reply is not None, "it was opened, or an error was raised"
        self.plan = self._finish(cut_off=reply.finish is FinishReason.LENGTH)
        if self.plan is None and not self._may_accept:
            raise InvalidPlan("The text accepts an answer where there is none yet.", reason=Reason.NO_PLAN)

    async def _texts(self, reply: Reply) -> AsyncGenerator[str]:
        """Yield the pieces of the plan's text without thoughts, until it ends or exceeds its limit of time or bytes."""
        limits = self._conductor
        ends_at_s, room = time.monotonic() + limits.timeout_s, PLAN_BYTES_PER_TOKEN * limits.max_plan_tokens
        async with aclosing(aiter(reply)) as deltas:
            while True:
                timeout = asyncio.timeout(ends_at_s - time.monotonic())
                try:
                    async with timeout:
                        delta = await anext(deltas, None)
                except TimeoutError:
                    if not timeout.expired():
                        raise
                    self._is_late = True
                    reply.cut(
                        f"Not ended after {limits.timeout_s:g} s and cut off: billed at the call's bound."
                    )
                    return
                if delta is None:
                    return
                if self._on_text is not None:
                    self._on_text(delta, reply)
                yield delta.text
                room -= len(delta.text.encode("utf-8", "surrogatepass"))
                if room < 0 and not delta.finish:
                    reply.cut(
                        f"Longer than max_plan_tokens ({limits.max_plan_tokens}) and cut off: billed at the call's bound."
                    )
                    return

    def _finish(self, *, cut_off: bool) -> Plan | None:
        try:
            return self._parser.finish(cut_off=cut_off)
        except InvalidPlan as exc:
            if not self._is_late:
                raise
            name, limit_s = self._conductor.member.name, self._conductor.timeout_s
            detail = f"The limit is {limit_s:g} s. Raise conductor.timeout_s to allow more."
            raise WorkerUnavailable(
                f"{name} did not finish its plan in time.", worker=name, detail=detail, retryable=False
            ) from exc
