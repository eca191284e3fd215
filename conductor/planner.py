"""Ask the conductor for a plan, and read it while it is written.

One plan text is one `Draft`ing: prompt, grammar, parser, the call. Repair and fallback are decisions about whole plans and
live in `conducting.py`.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

from conductor.calls import ask
from conductor.errors import InvalidPlan, Reason
from conductor.events import Answered
from conductor.formats import Format, parser
from conductor.grammars import SUBTASK_CHARS, grammar
from conductor.instructions import Layout, layout_of
from conductor.money import Ledger
from conductor.plan import Plan, Step
from conductor.refusals import Refusals
from conductor.worker import Call, FinishReason, Member, Message

PLAN_TOKENS = 1024
"""The paper's limit on a plan's text (appendix A.1)."""

Constraint = Literal["ebnf", "json_schema"]
"""The language of the grammar that a server holds decoding to: vLLM's, or an API provider's."""


@dataclass(frozen=True, slots=True)
class Conductor:
    """The model that writes plans, and how it is asked.

    Args:
        member: the model.
        format: the format it writes.
        temperature: of its decoding; the paper trains at 1.0, a plan is best read off at 0.
        constrained: how its server holds decoding to the format's grammar; None: it does not.
        max_plan_tokens: a longer plan is cut off.
        subtask_chars: the grammar lets no subtask be longer.
        shuffle: show the pool in a new order, and so under new numbers, at every request.
        max_thinking_tokens: what it may think, beside its plan: providers count thoughts as output.
        thought: let it write a thought before the steps, where a JSON schema is enforced: for a model that does not reason by itself.
    """

    member: Member
    format: Format = "steps"
    temperature: float | None = 0.0
    constrained: Constraint | None = "ebnf"
    max_plan_tokens: int = PLAN_TOKENS
    subtask_chars: int = SUBTASK_CHARS
    shuffle: bool = False
    max_thinking_tokens: int = 0
    thought: bool = False

    @property
    def layout(self) -> Layout:
        """How its plans are laid out."""
        return layout_of(self.format, is_schema=self.constrained == "json_schema", is_thinking=self.thought)


class Draft:
    """One plan being written. Iterate for its steps, each the moment its last byte is there; then read `plan`."""

    def __init__(
        self, conductor: Conductor, pool: Sequence[Member], max_steps: int, prompt: Sequence[Message],
        ledger: Ledger, *, index: int, may_accept: bool, waiting: Callable[[str], None] | None = None,
        refusals: Refusals | None = None,
    ) -> None:  # fmt: skip
        self._conductor, self._ledger, self._may_accept = conductor, ledger, may_accept
        self._parser = parser(conductor.format, [member.name for member in pool], max_steps)
        held_to = None
        if conductor.constrained:
            held_to = grammar(
                conductor.format, len(pool), max_steps, may_accept=may_accept,
                subtask_chars=conductor.subtask_chars, thinking=conductor.thought,
            )  # fmt: skip
        longest = conductor.max_plan_tokens + conductor.max_thinking_tokens
        self._call = Call(
            tuple(prompt), max_output_tokens=longest, temperature=conductor.temperature,
            grammar=held_to, operation="plan", plan=index, waiting=waiting, refusals=refusals,
        )  # fmt: skip
        self.answered: Answered | None = None
        """The conductor's call, once it has begun; complete after iteration."""
        self.plan: Plan | None = None
        """The whole plan; None where it accepts the answer before."""

    async def __aiter__(self) -> AsyncIterator[Step]:
        """The steps.

        Raises:
            InvalidPlan: some steps may have been given by then.
            WorkerError: the conductor failed, likewise.
            BudgetExceeded: it was not asked.
        """
        async with ask(self._conductor.member, self._call, self._ledger) as asked:
            try:
                async with aclosing(aiter(asked)) as deltas:
                    async for delta in deltas:
                        for step in self._parser.feed(delta.text):
                            yield step
            finally:
                self.answered = asked.answered
        self.plan = self._parser.finish(cut_off=self.answered.finish is FinishReason.LENGTH)
        if self.plan is None and not self._may_accept:
            raise InvalidPlan("The text accepts an answer where there is none yet.", reason=Reason.NO_PLAN)
