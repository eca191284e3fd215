"""Continuation of an answer whose stream broke off after its reader had seen part of it.

The text so far becomes the prefix of the next call (`Call.prefix`). How a model is made to continue it is up
to the worker (`serving/dispatch/continuing.py`). This module knows the text of a step, but not which worker
is called.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from decimal import Decimal

from msgspec.structs import replace

from conductor.errors import ContentFiltered, Interrupted, WorkerBusy, WorkerError, WorkerUnavailable
from conductor.model.call import Call
from conductor.model.failure import Attempt
from conductor.model.reply import CallResult, Delta, Reply
from conductor.model.usage import Usage
from conductor.model.worker import PoolMember
from conductor.run.task import Task

BREAKS = (WorkerUnavailable, WorkerBusy)
"""Errors of an interrupted stream after which another call may deliver the rest."""
CONTINUATIONS = 2
"""Continuations per answer, or the number of other deployments if that is higher."""
BYTES_PER_TOKEN = 4
"""Estimate for an answer whose tokens were not counted."""
REPEATED_CHARS = 1000
"""Longest end of the text that a model may have to repeat, so that the continuation can be aligned."""
MARK_TOKENS = 16
"""Tokens of the mark before the repeated text."""


@dataclass(slots=True)
class Breaks:
    """Interruptions of one step's answer."""

    restarts: int = 0
    """Restarts of the step."""
    continuations: int = 0
    """Continuations of the answer, also those followed by a restart."""
    broken: frozenset[tuple[str, str]] = frozenset()
    """Workers and deployments whose streams broke off. They are tried after all others."""


@dataclass(frozen=True, slots=True)
class Shown:
    """The part of an answer that its reader has when the stream breaks off.

    Args:
        text, reasoning: in full, from all workers.
        tokens: approximate tokens of the text.
        breaks: number of interruptions.
        worker: author of the newest part.
    """

    text: str = ""
    reasoning: str = ""
    tokens: int = 0
    breaks: int = 0
    worker: str = ""

    def after(self, reply: Reply) -> "Shown":
        """Return the state after `reply`, which starts with this text, broke off."""
        text, new_text = "".join(reply.texts), "".join(reply.texts)[len(self.text) :]
        is_first = not self.breaks  # the count of a continuation may include the repeated text
        counted = reply.counted.output_tokens if reply.counted and is_first else 0
        tokens = self.tokens + max(counted, _tokens(new_text))
        thoughts = "".join(reply.thoughts)
        return Shown(text, thoughts, tokens, self.breaks + 1, reply.worker)

    def continue_call(self, call: Call) -> Call:
        """Return `call` for the rest of the answer.

        If its length is limited, the rest is estimated, with room for the end of the text that a model may
        have to repeat.
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
        """Insert this text at the start of `reply`. Further reasoning is dropped, because other reasoning was
        shown already.
        """
        if not self.breaks:
            return
        reply.texts.insert(0, self.text)
        reply.thoughts.insert(0, self.reasoning)
        reply.deltas = _words(reply.deltas)
        note = f"Continues after {len(self.text)} characters of {self.worker}, whose stream broke off."
        reply.notes += (note,)

    @property
    def result(self) -> CallResult | None:
        """Result of a step that no call has continued. The usage of its calls is among its attempts."""
        if not self.breaks:
            return None
        return CallResult(self.text, self.worker, "", Usage(), Decimal(0), None, reasoning=self.reasoning)

    def result_of_open(self, failed: tuple[Attempt, ...]) -> CallResult | None:
        """Return the result while a call for the rest is open, whose usage is unknown. `failed`: the attempts
        before it.
        """
        result = self.result
        return result and replace(result, usage=None, attempts=failed)

    def explain(self, error: WorkerError, why: str = "") -> None:
        """Add to `error` what the reader has, what is missing, and `why`."""
        if self.breaks:
            has = (
                f"The answer stops after {len(self.text)} characters"
                if self.text
                else "No part of it arrived"
            )
            error.args = (f"{error.message} {has}: the rest is missing. {why}".rstrip(),)
        elif why:
            error.args = (f"{error.message} {why}",)

    def end(self, error: WorkerError, attempts: tuple[Attempt, ...], why: str = "") -> WorkerError:
        """Return the interruption as the final error, with the attempts since and `why`."""
        error.attempts = attempts
        # The usage is recorded with the interruption.
        error.usage, error.cost_usd, error.billed_at_bound = None, None, False
        self.explain(error, why)
        return error


def other_answer() -> Interrupted:
    """Return the error for a client that has read part of an answer that was replaced."""
    return Interrupted(
        "The answer broke off, and another one is being written. Retry, or read the run's record."
    )


def may_restart(member: PoolMember, breaks: Breaks, error: WorkerError) -> bool:
    """Return whether a step may restart after its answer broke off. The caller checks that no shown text has to
    be kept.

    - A step restarts once, or as often as there are other deployments. It restarts at once, so a worker with
      a `retry_after_s` is not called again if there is no other.
    - An inner run does not restart: it has restarted its own steps. A new one would replace its record and
      lose its costs.
    """
    if member.bills_inner_calls or breaks.restarts >= max(1, member.other_places):
        return False
    has_retry_time = isinstance(error, WorkerBusy) and error.retry_after_s is not None
    # Without a fallback, respect retry_after_s.
    may_help = member.has_fallback or (error.retryable and not has_retry_time)
    return _is_filtered(member, error) or (isinstance(error, BREAKS) and may_help)


def may_continue(member: PoolMember, task: Task, breaks: Breaks, error: WorkerError) -> bool:
    """Return whether an answer that broke off with `error` can be continued. Formatted answers and answers
    with log probabilities cannot.
    """
    is_words = task.operation == "chat" and task.answer_format is None
    is_counted = task.sampling.options.top_logprobs is not None
    is_break = isinstance(error, BREAKS) or _is_filtered(member, error)
    may_help = is_break and breaks.continuations < max(CONTINUATIONS, member.other_places)
    return member.continues and may_help and is_words and not is_counted


def outlasts_silence(member: PoolMember, task: Task, breaks: Breaks) -> bool:
    """Return whether an answer can be restarted or continued if its worker stops sending."""
    silence = WorkerUnavailable("The worker stopped sending.")
    return may_restart(member, breaks, silence) and may_continue(member, task, breaks, silence)


def _is_filtered(member: PoolMember, error: WorkerError) -> bool:
    """Return whether a provider's filter stopped the answer after thoughts only, and another worker may be tried."""
    is_reported = error.worker in member.tells_filters
    return isinstance(error, ContentFiltered) and member.has_fallback and not is_reported


def _tokens(text: str) -> int:
    return byte_size(text) // BYTES_PER_TOKEN


def byte_size(text: str) -> int:
    """Return the UTF-8 size of `text`, which is at least its number of tokens."""
    return len(text.encode("utf-8", "surrogatepass"))


async def _words(deltas: AsyncGenerator[Delta]) -> AsyncGenerator[Delta]:
    """Drop thoughts and the provider's native turn, which would contain only the rest of the answer."""
    async with aclosing(deltas):
        async for delta in deltas:
            yield replace(delta, reasoning="", native=None)
