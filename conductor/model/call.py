"""What a model is asked: the call, how its answer is decoded, and where in a run it is made."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from conductor.errors import WorkerError
from conductor.model.answer_format import AnswerFormat
from conductor.model.callee import Callee
from conductor.model.failure import Attempt
from conductor.model.hedges import Hedges
from conductor.model.messages import Message
from conductor.model.operation import NO_OPTIONS, CallKind, WireOptions
from conductor.model.pauses import Pauses
from conductor.model.permit import ANYTHING, Permit
from conductor.model.places import Places
from conductor.model.priority import Priority
from conductor.model.refusals import Refusals
from conductor.model.tools import NO_TOOLS, Toolset


@dataclass(frozen=True, slots=True)
class Grammar:
    """What the answer must look like, in the two languages that servers understand.

    `ebnf` is GBNF as xgrammar reads it (vLLM); `json_schema` is what API providers take (None where the
    text is not JSON). Both accept only texts that `conductor.plan.formats` parses into a plan that can run.
    """

    ebnf: str
    json_schema: dict[str, object] | None = None


@dataclass(frozen=True)
class Sampling:
    """How an answer is decoded. None always means: the worker's own default."""

    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    effort: str | None = None
    """OpenAI's `reasoning_effort`, for models that reason."""
    options: WireOptions = NO_OPTIONS
    """What only some wires take: only members of whose pool entry it is said are asked (`PoolMember.takes`)."""
    top_k: int | None = None
    """So many of the likeliest tokens are drawn from; 0: from all."""
    min_p: float | None = None
    """Tokens are drawn from that are at least so probable, relative to the likeliest."""
    repetition_penalty: float | None = None
    """Above 1, tokens of prompt and answer become less probable."""


@dataclass(frozen=True)
class CallSite:
    """Which call of which run this is: unique among the calls that a process makes, those of runs inside runs
    included. For spans, errors and records; never sent.
    """

    run: str = ""
    plan: int = 0
    step: int | None = None
    """The step that asks, from 0; None for the plan itself."""
    access: tuple[int, ...] = ()
    """The steps that it reads."""
    attempt: int = 1
    """From 1, one more for each call made in place of one that failed or was cut, whichever worker it
    asks."""
    operation: CallKind = "chat"
    """What the call is for: a step of a plan, or the plan itself."""


@dataclass(frozen=True)
class Call:
    """One question to one model."""

    messages: tuple[Message, ...]
    sampling: Sampling = Sampling()
    grammar: Grammar | None = None
    tools: Toolset = NO_TOOLS
    """What it may call. Its own calls so far, and what they gave, are in `messages`."""
    answer_format: AnswerFormat | None = None
    """What the answer must be, in the client's words; None: any text."""
    coalesce: bool = False
    """Nobody reads the answer while it is written, so it may come in larger pieces."""
    site: CallSite = CallSite()
    deadline_at_s: float | None = field(default=None, compare=False)
    """When the caller's time is over, by `time.monotonic`: nothing that takes longer is waited for. None: no
    deadline."""
    on_queued: Callable[[str], None] | None = field(default=None, compare=False)
    """Called with a reason when the first token will be delayed, e.g. by a cold start."""
    on_failed: Callable[[Attempt], None] | None = field(default=None, compare=False)
    """Told of each call that failed and is made again, by the same worker or by another."""
    refusals: Refusals | None = field(default=None, compare=False)
    """What has been refused in the run so far; never sent."""
    on_retry: Callable[[WorkerError, float], Awaitable[int]] | None = field(default=None, compare=False)
    """Awaited before the call is made once more, with why: pays for the one that failed, reserves the next,
    and gives how long its answer may be. See `retries.py`."""
    hedges: Hedges | None = field(default=None, compare=False)
    """What a second call for the same answer is paid from; None: none may be made."""
    on_wait: Callable[[], AbstractContextManager[None]] | None = field(default=None, compare=False)
    """Entered while the call waits for its turn: whoever leaves then pays nothing for it."""
    on_asked: Callable[[Callee], None] | None = field(default=None, compare=False)
    """Told whom it is sent to, right before it is sent: once more for each fallback, retry and hedge. What is billed
    without its server's word is billed at that price."""
    on_turn: Callable[[], None] | None = field(default=None, compare=False)
    """Called once its turn has come, right before it is sent: raises a `WorkerError` where it is better not made
    any more."""
    on_waited: Callable[[], bool] | None = field(default=None, compare=False)
    """Asked now and then while it waits for its turn: whether it had better leave, since another worker would answer at
    once, which expects it then."""
    has_stand_in: bool = field(default=False, compare=False)
    """Another worker is free to answer in its place, so that nobody need wait long for this one; never sent."""
    mark_key: str = field(default="", compare=False)
    """Of the marks around other steps' outputs in `messages`, for a worker that is a program and reads them;
    empty: there are none. Never sent by itself."""
    prefix: str = ""
    """How the answer begins, which its reader has: what comes after it is wanted, and nothing of it again."""
    rest_tokens: int | None = None
    """How long what comes after `prefix` may be, where `sampling` leaves room beside it for a model that has to repeat
    the end of `prefix`; None: `sampling` says it alone."""
    broken: frozenset[tuple[str, str]] = field(default=frozenset(), compare=False)
    """The workers, each with its deployment, whose answers to the same call broke off: they are asked after all others.
    Never sent."""
    places: Places | None = field(default=None, compare=False)
    """Where it has gone before, or goes at the same time; never sent."""
    first_token_s: float | None = field(default=None, compare=False)
    """How long its first token may take, where this is known; never sent."""
    patience_s: float | None = field(default=None, compare=False)
    """For how long its first token is waited for at most, whatever the model usually takes or may take by the settings:
    another worker is free, and needs the rest of the caller's time. None: without end. Never sent."""
    outlasts_break: bool = field(default=False, compare=False)
    """Where its answer breaks off, it goes on with another worker, or begins again; never sent."""
    pauses: Pauses | None = field(default=None, compare=False)
    """Between the words of its answer, where they are measured; never sent."""
    permit: Permit = field(default=ANYTHING, compare=False)
    """Who may be asked, and what may become of the texts; never sent."""
    priority: Priority = field(default="interactive", compare=False)
    """Whether it goes before or after others where there is no room for all."""
    begins: bool = field(default=False, compare=False)
    """No call of its run was made before, or others are left to be asked after it: where it waits too long for its turn,
    nothing is lost with it."""
    waited_s: float = field(default=0.0, compare=False)
    """In lines that were too long, before it came to this worker: all of them together are to take no longer than one.
    Never sent."""
    payer: str = field(default="", compare=False)
    """The key that pays for it: those who wait take turns by key. Never sent."""
    team: str = field(default="", compare=False)
    """The team of that key; empty where it belongs to none. Never sent."""
