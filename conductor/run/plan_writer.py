"""Ask the conductor for a plan, and read it while it is written.

One plan text is one `PlanStream`: prompt, grammar, parser, the call. Repair and fallback are decisions
about whole plans and live in `rounds.py`.
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
"""A text of more bytes has more tokens, whatever the tokenizer: plans are prose and JSON."""
PLAN_TIMEOUT_S = 300.0

Constraint = Literal["ebnf", "json_schema"]
"""The language of the grammar that a server holds decoding to: vLLM's, or an API provider's."""


@dataclass(frozen=True, slots=True)
class ConductorModel:
    """The model that writes plans, and how it is asked.

    Args:
        member: the model.
        format: the format it writes.
        temperature: of its decoding; the paper trains at 1.0, a plan is best read off at 0.
        constrained: how its server holds decoding to the format's grammar; None: it does not.
        max_plan_tokens: a longer plan is cut off, also where the model's server does not do it.
        subtask_chars: the grammar lets no subtask be longer.
        shuffle: show the pool in a new order, and so under new numbers, at every request.
        max_thinking_tokens: what it may think, beside its plan: providers count thoughts as output.
        thought: let it write a thought before the steps, where a JSON schema is enforced: for a model that
            does not reason by itself.
        timeout_s: how long it may write one plan, from its first token on, thoughts included.
        effort: how long it thinks before its plan; None: as its member does.
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
        """How its plans are laid out."""
        return layout_of(self.format, is_schema=self.constrained == "json_schema", is_thinking=self.thought)

    @property
    def sampling(self) -> Sampling:
        """How its plans are decoded: as it is set up, whatever the user asks of the answer."""
        longest = self.max_plan_tokens + self.max_thinking_tokens
        return Sampling(max_output_tokens=longest, temperature=self.temperature, effort=self.effort)


class PlanStream:
    """One plan being written. Iterate for its steps, each the moment its last byte is there; then read
    `plan`.

    Args:
        conductor: who writes it.
        pool: as it was shown the workers.
        max_steps: how many steps there may be.
        call: the prompt, and which call of the run this is; sampling and grammar follow from `conductor`.
        ledger: the run's spending.
        may_accept: whether the text may keep the answer of the round before.
        has_tools: whether the workers can be given the client's tools.
        on_text: told of each piece of the text, with all that was said by then.
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
        """The conductor's call, once it has begun; complete after iteration."""
        self.plan: Plan | None = None
        """The whole plan; None where it accepts the answer before."""
        self._is_late = False

    async def __aiter__(self) -> AsyncIterator[Step]:
        """The steps.

        Raises:
            InvalidPlan: some steps may have been given by then.
            WorkerError: the conductor failed, or did not end in time, likewise.
            BudgetExceeded: it was not asked.
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
            if reply is not None:  # read once the call is closed: its bill is complete then
                self.result = reply.result
        assert reply is not None, "it was opened, or an error was raised"
        self.plan = self._finish(cut_off=reply.finish is FinishReason.LENGTH)
        if self.plan is None and not self._may_accept:
            raise InvalidPlan("The text accepts an answer where there is none yet.", reason=Reason.NO_PLAN)

    async def _texts(self, reply: Reply) -> AsyncGenerator[str]:
        """The pieces of the plan's text, thoughts left out, until it ends or is longer, in time or in bytes,
        than it may be.
        """
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
            detail = (
                f"It had written for {limit_s:g} s; raise conductor.timeout_s if it may write for longer."
            )
            raise WorkerUnavailable(
                f"{name} had not ended its plan in time.", worker=name, detail=detail, retryable=False
            ) from exc
