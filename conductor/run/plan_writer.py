"""Requests for a plan to the conductor, and the stream of steps that the conductor writes.

A `PlanStream` handles the text of one plan: its prompt, grammar, parser and call. `rounds.py` handles repairs
and fallbacks.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from msgspec.structs import replace

from conductor.errors import InvalidPlan, Reason, WorkerUnavailable
from conductor.model.call import Call, Sampling
from conductor.model.characters import byte_size
from conductor.model.deltas import deltas_until
from conductor.model.reply import CallResult, Delta, FinishReason, Reply
from conductor.model.worker import PoolMember
from conductor.plan.grammars import SUBTASK_CHARS, grammar
from conductor.plan.instructions import Layout, layout_of
from conductor.plan.lists_format import ListsParser
from conductor.plan.plan import Format, Parser, Plan, Step
from conductor.plan.steps_format import StepsParser
from conductor.run.call_holds import open_call
from conductor.run.ledger import Ledger

PLAN_TOKENS = 1024
"""Limit of a plan's text in tokens. It is the limit of arXiv 2512.04388 (appendix A.1)."""
PLAN_BYTES_PER_TOKEN = 8
"""Upper bound of the bytes per token in a plan, for any tokenizer. Plans consist of prose and JSON."""
PLAN_TIMEOUT_S = 300.0

Constraint = Literal["ebnf", "json_schema"]
"""Language of the grammar that a server enforces: `ebnf` for vLLM, `json_schema` for API providers."""


@dataclass(frozen=True, slots=True)
class ConductorModel:
    """The model that writes plans, and its decoding settings.

    Args:
        member: the model.
        format: format of its plans.
        temperature: temperature of its decoding. arXiv 2512.04388 trains at 1.0, but plans are best at 0.
        constrained: language of the grammar that its server enforces. None if the server enforces none.
        max_plan_tokens: limit of a plan's length in tokens. It is also enforced here, if the server does not
            enforce it.
        subtask_chars: limit of a subtask's length in the grammar, in characters.
        shuffle: whether each request shows the workers in a new order and with new numbers.
        max_thinking_tokens: limit of the thinking tokens, in addition to the plan. Providers count them as
            output.
        thought: whether the model writes a thought before the steps if a JSON schema is enforced. Use it for
            models without reasoning of their own.
        timeout_s: time limit for one plan in seconds, from its first token on. It includes thinking.
        effort: reasoning effort for plans. None: the member's default.
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
        """Decoding parameters of its plans. The user's parameters do not apply to plans."""
        longest = self.max_plan_tokens + self.max_thinking_tokens
        return Sampling(max_output_tokens=longest, temperature=self.temperature, effort=self.effort)


def parser(format: Format, workers: Sequence[str], max_steps: int) -> Parser:
    """Return a new parser of `format`. Workers are numbered in the order of `workers`."""
    return StepsParser(workers, max_steps) if format == "steps" else ListsParser(workers, max_steps)


class PlanStream:
    """One plan while it is written. Iterate over its steps, and then read `plan`.

    Each step is yielded as soon as it is complete.

    Args:
        pool: workers in the order in which the conductor sees them.
        call: call with the prompt and its position in the run. `conductor` determines sampling and grammar.
        has_tools: whether workers can receive the client's tools.
        on_text: function that receives each delta of the text, and the reply so far.
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
        """Result of the conductor's call, once the iteration has ended. None if the call gave no reply."""
        self.plan: Plan | None = None
        """The whole plan, once the iteration has ended. None if the text accepts the previous answer."""
        self._is_late = False

    async def __aiter__(self) -> AsyncIterator[Step]:
        """Yield the steps. An InvalidPlan, WorkerError or BudgetExceeded may follow some of them."""
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
            raise InvalidPlan("The text accepts an answer, but there is none yet.", reason=Reason.NO_PLAN)

    async def _texts(self, reply: Reply) -> AsyncGenerator[str]:
        """Yield the plan's text without reasoning, until it ends or exceeds its limit of time or size."""
        limits = self._conductor
        ends_at_s, room = time.monotonic() + limits.timeout_s, PLAN_BYTES_PER_TOKEN * limits.max_plan_tokens
        async with (
            aclosing(aiter(reply)) as all_deltas,
            aclosing(deltas_until(all_deltas, ends_at_s)) as deltas,
        ):
            async for delta in deltas:
                if delta is None:
                    self._is_late = True
                    reply.cut(f"The plan was cut off after {limits.timeout_s:g} s.")
                    return
                if self._on_text is not None:
                    self._on_text(delta, reply)
                yield delta.text
                room -= byte_size(delta.text)
                if room < 0 and not delta.finish:
                    reply.cut(
                        f"The plan was cut off because it was longer than conductor.max_plan_tokens ({limits.max_plan_tokens})."
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
