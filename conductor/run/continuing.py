"""An answer whose stream broke off after its reader had seen words of it: it goes on from there.

What was seen begins the next call's answer (`Call.prefix`); how a model is brought to go on after it is its worker's
business (`serving/dispatch/continuing.py`). Knows what a step has said so far; does not know who is asked.
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
"""How streams break off: another call may bring the rest."""
CONTINUATIONS = 2
"""So often the answer of one step goes on after it broke off, or as often as there are other places, where these are more."""
BYTES_PER_TOKEN = 4
"""Of an answer whose tokens nobody counted."""
REPEATED_CHARS = 1000
"""So much of the end a model may be asked to repeat, so that it is seen where it goes on; a token has a byte at least."""
MARK_TOKENS = 16
"""Of the mark before it."""


@dataclass(slots=True)
class Breaks:
    """Those of one step's answer."""

    restarts: int = 0
    """So often the step began again."""
    continuations: int = 0
    """So often the answer went on, whether or not it was then begun again."""
    broken: frozenset[tuple[str, str]] = frozenset()
    """Whose streams broke off, each with its deployment: they are asked after all others."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What the reader of an answer has of it when its stream breaks off.

    Args:
        text, reasoning: all of it, whoever wrote it.
        tokens: about as many as the text took.
        breaks: how often it broke off.
        worker: who wrote its end.
    """

    text: str = ""
    reasoning: str = ""
    tokens: int = 0
    breaks: int = 0
    worker: str = ""

    def after(self, reply: Reply) -> "Shown":
        """With what `reply` has said, which begins with this, until it broke off."""
        text, said = "".join(reply.texts), "".join(reply.texts)[len(self.text) :]
        is_first = not self.breaks  # what is counted of others may begin with words that were there
        counted = reply.counted.output_tokens if reply.counted and is_first else 0
        tokens = self.tokens + max(counted, _tokens(said))
        thoughts = "".join(reply.thoughts)
        return Shown(text, thoughts, tokens, self.breaks + 1, reply.worker)

    def continue_call(self, call: Call) -> Call:
        """`call`, for the rest of the answer. Where its length is limited, what is left of it is estimated, and the call
        may take more: what a model may have to repeat of the end.
        """
        if not self.breaks:
            return call
        longest = call.sampling.max_output_tokens
        left = None if longest is None else max(longest - self.tokens, 1)
        most = None if left is None else left + MARK_TOKENS + byte_size(self.text.rstrip()[-REPEATED_CHARS:])
        return replace(
            call,
            sampling=replace(call.sampling, max_output_tokens=most),
            prefix=self.text,
            terms=replace(call.terms, rest_tokens=left),
        )

    def begin(self, reply: Reply) -> None:
        """Let `reply`, of the rest, begin with this. Of further thoughts nothing is shown: others were."""
        if not self.breaks:
            return
        reply.texts.insert(0, self.text)
        reply.thoughts.insert(0, self.reasoning)
        reply.deltas = _words(reply.deltas)
        note = f"It goes on after {len(self.text)} characters of {self.worker}, whose stream broke off."
        reply.notes += (note,)

    @property
    def result(self) -> CallResult | None:
        """What a step has to show that no call continued; what its calls took is among its attempts."""
        if not self.breaks:
            return None
        return CallResult(self.text, self.worker, "", Usage(), Decimal(0), None, reasoning=self.reasoning)

    def result_of_open(self, failed: tuple[Attempt, ...]) -> CallResult | None:
        """Likewise while a call for the rest is under way, of which nobody knows what it took. `failed`: before it."""
        shown = self.result
        return shown and replace(shown, usage=None, attempts=failed)

    def explain(self, error: WorkerError, why: str = "") -> None:
        """Say in `error` what its reader has, what is missing, and `why`."""
        if self.breaks:
            has = f"The answer stops after {len(self.text)} characters" if self.text else "No word of it came"
            error.args = (f"{error.message} {has}: the rest is missing. {why}".rstrip(),)
        elif why:
            error.args = (f"{error.message} {why}",)

    def end(self, error: WorkerError, attempts: tuple[Attempt, ...], why: str = "") -> WorkerError:
        """The break as the end of it all, because nobody brings the rest, and `why`; with what failed since."""
        error.attempts = attempts
        error.usage, error.cost_usd, error.billed_at_bound = None, None, False  # on record where it broke off
        self.explain(error, why)
        return error


def other_answer() -> Interrupted:
    """The error for who has read words of an answer that is not the run's any more."""
    return Interrupted(
        "The answer broke off, and another is written in its place: ask again, or read the run's record."
    )


def may_restart(member: PoolMember, breaks: Breaks, error: WorkerError) -> bool:
    """Whether a step whose answer broke off, and of which nothing was seen that stands, may begin again: once, or as often as
    there are other places. At once, so that one which said when to come back
    is not asked again by itself. A run inside a run has begun its own steps again; the same once more would take its record's
    place, and what it had paid would be on no record.
    """
    if member.bills_inner_calls or breaks.restarts >= max(1, member.other_places):
        return False
    is_told_when = isinstance(error, WorkerBusy) and error.retry_after_s is not None
    may_help = member.has_fallback or (error.retryable and not is_told_when)  # one at work is not asked twice
    return _is_filtered(member, error) or (isinstance(error, BREAKS) and may_help)


def may_continue(member: PoolMember, task: Task, breaks: Breaks, error: WorkerError) -> bool:
    """Whether an answer that broke off with `error` goes on. Only words do: none in a form that holds for all of
    them at once, none whose tokens are accounted for one by one.
    """
    is_words = task.operation == "chat" and task.answer_format is None
    is_counted = task.sampling.options.top_logprobs is not None
    is_break = isinstance(error, BREAKS) or _is_filtered(member, error)
    may_help = is_break and breaks.continuations < max(CONTINUATIONS, member.other_places)
    return member.continues and may_help and is_words and not is_counted


def outlasts_silence(member: PoolMember, task: Task, breaks: Breaks) -> bool:
    """Whether an answer whose worker falls silent is not lost, whatever has been seen of it."""
    silence = WorkerUnavailable("It fell silent.")
    return may_restart(member, breaks, silence) and may_continue(member, task, breaks, silence)


def _is_filtered(member: PoolMember, error: WorkerError) -> bool:
    """Whether a provider refused after thoughts alone, and another worker is to be asked."""
    is_told = error.worker in member.tells_filters
    return isinstance(error, ContentFiltered) and member.has_fallback and not is_told


def _tokens(text: str) -> int:
    return byte_size(text) // BYTES_PER_TOKEN


def byte_size(text: str) -> int:
    """Of `text` as UTF-8: no fewer than its tokens."""
    return len(text.encode("utf-8", "surrogatepass"))


async def _words(deltas: AsyncGenerator[Delta]) -> AsyncGenerator[Delta]:
    """Without thoughts, and without a turn as its provider wrote it, which has the rest alone."""
    async with aclosing(deltas):
        async for delta in deltas:
            yield replace(delta, reasoning="", native=None)
