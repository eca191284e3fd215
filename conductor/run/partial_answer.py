"""Continuation of an answer whose stream was interrupted after its reader had seen part of it.

The text so far becomes the prefix of the next call (`Call.prefix`). How a model is made to continue it is up
to the worker (`serving/dispatch/continuation.py`). This module knows the text of a step, but not which worker
is called.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from decimal import Decimal

from msgspec.structs import replace

from conductor.errors import ContentFiltered, Interrupted, WorkerBusy, WorkerError, WorkerUnavailable
from conductor.model.call import Call
from conductor.model.characters import BYTES_PER_TOKEN, byte_size
from conductor.model.failure import Attempt
from conductor.model.reply import CallResult, Delta, Reply
from conductor.model.usage import Usage
from conductor.model.worker import PoolMember
from conductor.run.task import Task

BREAKS = (WorkerUnavailable, WorkerBusy)
"""Errors of a broken stream after which another call may deliver the rest."""
_SILENCE = WorkerUnavailable("The worker stopped sending.")
CONTINUATIONS = 2
"""Maximum number of continuations of an answer. If the worker has more other deployments, their number."""
REPEATED_CHARS = 1000
"""Maximum characters at the end of the text that a model may repeat to show where it continues."""
MARK_TOKENS = 16
"""Length of the mark before the repeated text, in tokens."""


@dataclass(slots=True)
class Breaks:
    """Restarts and continuations of one step after its stream was interrupted."""

    restarts: int = 0
    """Number of restarts of the step."""
    continuations: int = 0
    """Number of continuations of the answer, including those before a restart."""
    broken: frozenset[tuple[str, str]] = frozenset()
    """Pairs of worker and deployment whose streams were interrupted. They are tried last."""


@dataclass(frozen=True, slots=True)
class PartialAnswer:
    """The part of an answer that its reader has received when the stream is interrupted.

    Args:
        text, reasoning: text and reasoning of the answer so far, from all workers.
        tokens: approximate number of tokens in the text.
    """

    text: str = ""
    reasoning: str = ""
    tokens: int = 0
    breaks: int = 0
    worker: str = ""

    def after(self, reply: Reply) -> "PartialAnswer":
        """Return what the reader has received after the stream of `reply`, which starts with this text, was
        interrupted.
        """
        text, new_text = "".join(reply.texts), "".join(reply.texts)[len(self.text) :]
        is_first = not self.breaks  # the count of a continuation may include the repeated text
        counted = reply.counted.output_tokens if reply.counted and is_first else 0
        tokens = self.tokens + max(counted, byte_size(new_text) // BYTES_PER_TOKEN)
        thoughts = "".join(reply.thoughts)
        return PartialAnswer(text, thoughts, tokens, self.breaks + 1, reply.worker)

    def continue_call(self, call: Call) -> Call:
        """Return a copy of `call` for the rest. A limit becomes the estimated rest plus room for repeated
        text.
        """
        if not self.breaks:
            return call
        longest = call.sampling.max_output_tokens
        rest_tokens = None if longest is None else max(longest - self.tokens, 1)
        most = (
            None
            if rest_tokens is None
            else rest_tokens + MARK_TOKENS + byte_size(self.text.rstrip()[-REPEATED_CHARS:])
        )
        return replace(
            call,
            sampling=replace(call.sampling, max_output_tokens=most),
            prefix=self.text,
            terms=replace(call.terms, rest_tokens=rest_tokens),
        )

    def begin(self, reply: Reply) -> None:
        """Insert this text at the start of `reply`. New reasoning is dropped, as the reader already has some."""
        if not self.breaks:
            return
        reply.texts.insert(0, self.text)
        reply.thoughts.insert(0, self.reasoning)
        reply.deltas = _words(reply.deltas)
        note = f"This answer continues the first {len(self.text)} characters, which came from {self.worker} before its stream was interrupted."
        reply.notes += (note,)

    @property
    def result(self) -> CallResult | None:
        """Result if no call continues an interrupted answer. Usage and cost are zero, because those calls are
        attempts.
        """
        if not self.breaks:
            return None
        return CallResult(self.text, self.worker, "", Usage(), Decimal(0), None, reasoning=self.reasoning)

    def result_of_open(self, attempts: tuple[Attempt, ...]) -> CallResult | None:
        """Return the result while a call for the rest is open, whose usage is unknown."""
        result = self.result
        return result and replace(result, usage=None, attempts=attempts)

    def explain(self, error: WorkerError, why: str = "") -> None:
        """Append to the message of `error` how much of the answer the reader has received, and the reason `why`."""
        if self.breaks:
            has = (
                f"The answer ends after {len(self.text)} characters, and the rest is missing."
                if self.text
                else "No part of the answer was received."
            )
            error.args = (f"{error.message} {has} {why}".rstrip(),)
        elif why:
            error.args = (f"{error.message} {why}",)

    def end(self, error: WorkerError, attempts: tuple[Attempt, ...], why: str = "") -> WorkerError:
        """Complete `error`, which interrupted the stream, as the final error of the step. `why` says why it
        was not continued.
        """
        error.attempts = attempts
        # The usage is recorded with the interruption.
        error.usage, error.cost_usd, error.billed_at_bound = None, None, False
        self.explain(error, why)
        return error


def other_answer() -> Interrupted:
    """Return the error for a client that received a part of an answer, which a new answer now replaces."""
    return Interrupted(
        "The answer was interrupted, and a new one replaces the part that was sent. Retry, or read the run's record."
    )


def may_restart(member: PoolMember, breaks: Breaks, error: WorkerError) -> bool:
    """Return whether a step may restart after its answer was interrupted.

    The caller must check that the client has not received text that the restart would replace.

    - A step may restart once, or once per other deployment of its worker. Restarts do not wait, so a worker
      that sent a `retry_after_s` is not called again unless it has a fallback.
    - An inner run does not restart, because it has already restarted its own steps. A new inner run would
      replace the record and lose the costs of the first.
    """
    if member.bills_inner_calls or breaks.restarts >= max(1, member.other_places):
        return False
    has_retry_time = isinstance(error, WorkerBusy) and error.retry_after_s is not None
    # Without a fallback, respect retry_after_s.
    may_help = member.has_fallback or (error.retryable and not has_retry_time)
    return _is_filtered(member, error) or (isinstance(error, BREAKS) and may_help)


def may_continue(member: PoolMember, task: Task, breaks: Breaks, error: WorkerError) -> bool:
    """Return whether an interrupted answer can be continued. One with a format or log probabilities cannot."""
    is_words = task.operation == "chat" and task.answer_format is None
    is_counted = task.sampling.options.top_logprobs is not None
    is_break = isinstance(error, BREAKS) or _is_filtered(member, error)
    may_help = is_break and breaks.continuations < max(CONTINUATIONS, member.other_places)
    return member.continues and may_help and is_words and not is_counted


def outlasts_silence(member: PoolMember, task: Task, breaks: Breaks) -> bool:
    """Return whether an answer can be restarted or continued if its worker stops sending."""
    return may_restart(member, breaks, _SILENCE) and may_continue(member, task, breaks, _SILENCE)


def _is_filtered(member: PoolMember, error: WorkerError) -> bool:
    """Return whether a content filter ended the answer after reasoning alone, and another worker may be called."""
    is_reported = error.worker in member.reports_filter
    return isinstance(error, ContentFiltered) and member.has_fallback and not is_reported


async def _words(deltas: AsyncGenerator[Delta]) -> AsyncGenerator[Delta]:
    """Drop the reasoning and the provider's native turn, which contains only the rest of the answer."""
    async with aclosing(deltas):
        async for delta in deltas:
            yield replace(delta, reasoning="", native=None)
