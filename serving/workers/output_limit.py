"""An end for answers that pass the limit their call has set: not every server keeps to `max_output_tokens`.

Tokens are rarely reported while an answer streams, so they are bounded from below: by pieces (no server
splits a token) and bytes together, and by bytes alone where a piece holds many tokens. What is reported is
for `usage.py` to judge, whichever packet it comes in; here, whether it goes with the words.
"""

import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing

from msgspec.structs import replace

from conductor.errors import WorkerError
from conductor.model.call import Call
from conductor.model.reply import Delta, FinishReason, Reply, open_reply
from conductor.model.usage import Usage, unseen_bytes
from conductor.run.call import sent_bytes
from serving.workers.account import Account

MARGIN = 1.25
MARGIN_TOKENS = 32
BYTES_PER_TOKEN = 4
"""About what a token of prose is long."""
MOST_BYTES_PER_TOKEN = 8
"""No whole answer has more on average, but for odd ones: rules drawn with dashes, blanks by the hundred."""
MARGIN_BYTES = 512


LEAST_COUNT_BYTES = 64
"""No token has more, but for rules drawn with dashes: a count of tokens that leaves more to each is none."""
COUNT_MARGIN_BYTES = 1024


MOST_CALLS = 128
"""Of tools in one answer: as many as OpenAI lets a request offer."""
NO_LIMIT_TOKENS = 1_000_000
"""Taken for the longest answer where a call names no limit."""
MOST_KEPT_BYTES = 32 * 2**20
"""Of what goes back with a turn as it came: signatures, encrypted thoughts, pictures."""
LEAST_KEPT_BYTES = 1024
"""Counted for each such thing, however small it is."""


class OutputPassed(Exception):
    """An answer passed what it may hold, and is cut off. The text says what it passed."""


class OutputMeter:
    """Counts an answer as it streams, thoughts and the arguments of calls included.

    Args:
        call: what is answered; None: not known, and nothing limits the answer.
        hides_thoughts: see `Meter`; what may be written unseen is estimated by the time to the first piece.
        summarizes_thoughts: see `Meter`.
    """

    def __init__(
        self, call: Call | None = None, *, hides_thoughts: bool = False, summarizes_thoughts: bool = False
    ) -> None:
        self._call, self.limit = call, call.sampling.max_output_tokens if call else None
        self.hides_thoughts, self.summarizes_thoughts = hides_thoughts, summarizes_thoughts
        self._began_s = time.monotonic()
        self._unseen_s: float | None = None
        self._pieces = self._bytes = self._argument_bytes = 0
        self._calls = self._kept_bytes = self._likely = 0
        self.told: Usage | None = None
        """The newest count of the server's that is believed, `UsageCheck` says which."""

    def add(self, delta: Delta) -> None:
        """One more piece. Of the calls in it, what was not counted while they streamed."""
        arguments = sum(_n_bytes(call.arguments) for call in delta.tool_calls)
        unheard = max(0, arguments - self._argument_bytes)
        self._argument_bytes += unheard
        self._likely += len(delta.logprobs)
        self.hides_thoughts &= not delta.reasoning
        self._count(_n_bytes(delta.text) + _n_bytes(delta.reasoning) + unheard, delta.pieces)

    def begin_call(self) -> None:
        """A call of a tool began.

        Raises:
            OutputPassed: it is one too many.
        """
        self._note_first()
        self._calls += 1
        if self._calls > MOST_CALLS:
            raise OutputPassed(f"called more than {MOST_CALLS} tools")

    def add_arguments(self, piece: str) -> None:
        """A piece of a call's arguments came.

        Raises:
            OutputPassed: with it the answer is longer than its limit.
        """
        n_bytes = _n_bytes(piece)
        self._argument_bytes += n_bytes
        self._count(n_bytes, 1)
        most = NO_LIMIT_TOKENS if self.limit is None else self.limit
        if self.has_passed(most):
            raise OutputPassed(f"passed max_output_tokens ({most})")

    @property
    def left(self) -> int | None:
        """How many pieces may come until the answer has passed its limit; None if there is none."""
        return None if self.limit is None else self.limit + 1 - self._pieces

    @property
    def sent_bytes(self) -> int | None:
        """See `Meter`. Counted when it is asked for, which is only of a call that broke."""
        return sent_bytes(self._call) if self._call else None

    @property
    def streamed_bytes(self) -> int:
        """See `WorkerError.streamed_bytes`. Before the first piece, any model may have written unseen."""
        unseen_s = self._unseen_s
        if unseen_s is None:
            return unseen_bytes(time.monotonic() - self._began_s)
        return self._bytes + (unseen_bytes(unseen_s) if self.hides_thoughts else 0)

    @property
    def has_calls(self) -> bool:
        """Whether a call of a tool has begun."""
        return self._calls > 0 or self._argument_bytes > 0

    def keep(self, part: object) -> None:
        """A part of the turn came that is no words and goes back as it came.

        Raises:
            OutputPassed: with it there is more than is kept.
        """
        self._kept_bytes += LEAST_KEPT_BYTES + len(json.dumps(part, default=str))
        if self._kept_bytes > MOST_KEPT_BYTES:
            raise OutputPassed(f"sent more than {MOST_KEPT_BYTES} bytes beside its words")

    def _count(self, n_bytes: int, pieces: int) -> None:
        if n_bytes:
            self._note_first()
        self._bytes += n_bytes
        self._pieces += pieces if n_bytes else 0

    def _note_first(self) -> None:
        if self._unseen_s is None:
            self._unseen_s = time.monotonic() - self._began_s

    def has_passed(self, limit: int) -> bool:
        """Whether the answer is longer than `limit` tokens: pieces as long as tokens are tokens, and else it
        must be clear.
        """
        if self._pieces > limit and self._bytes >= BYTES_PER_TOKEN * self._pieces:
            return True
        return self._is_clearly_over(limit) or self._bytes > MOST_BYTES_PER_TOKEN * limit + MARGIN_BYTES

    def contradicts(self, output_tokens: int) -> bool:
        """Whether the answer cannot have been written with so few tokens."""
        if not output_tokens:
            return self._bytes > 0
        too_long = self._bytes > LEAST_COUNT_BYTES * output_tokens + COUNT_MARGIN_BYTES
        return too_long or self._is_clearly_over(output_tokens)

    def _is_clearly_over(self, tokens: int) -> bool:
        least = max(self._likely, min(self._pieces, self._bytes / BYTES_PER_TOKEN))
        return least > MARGIN * tokens + MARGIN_TOKENS


def open_metered(
    account: Account,
    call: Call,
    deltas: Callable[[Call, OutputMeter], AsyncGenerator[Delta]],
    *,
    summarizes_thoughts: bool,
) -> AbstractAsyncContextManager[Reply]:
    """Open an answer of a provider's as `Worker.open` does, counted and ended at the call's limit; see `within_limit`."""
    thinks = account.accepts.thinks(call.sampling.effort)
    meter = OutputMeter(call, hides_thoughts=thinks, summarizes_thoughts=summarizes_thoughts)
    answer = within_limit(deltas(call, meter), meter)
    return open_reply(account.name, account.model, answer, account.price, meter)


async def within_limit(deltas: AsyncGenerator[Delta], meter: OutputMeter) -> AsyncGenerator[Delta]:
    """`deltas`, ended with `length` where they pass the limit of `meter`, and so what is held for them, or where they
    raise `OutputPassed`; the call is closed then. Its usage is never reported, so it is billed at its bound. So is one
    whose usage counts fewer tokens than its words can be; before the end such a count is none.

    One that breaks before anything of it was shown says last what its server had counted by then. Where that is no
    output, though a tool was called, it is billed at its bound: its provider was paid.
    """
    limit, is_shown = meter.limit, False
    async with aclosing(deltas):
        try:
            async for delta in deltas:
                meter.add(delta)
                is_shown = True
                if delta.finish:
                    yield _checked(delta, meter, limit)
                    continue
                counted = delta.usage.output_tokens if delta.usage else 0
                if delta.usage and meter.contradicts(counted):
                    delta = replace(delta, usage=None)  # some servers count the prompt with each piece
                yield delta
                if limit is not None and (counted > limit or meter.has_passed(limit)):
                    raise OutputPassed(f"passed max_output_tokens ({limit})")
        except OutputPassed as exc:
            note = f"The server {exc} and was cut off: billed at the call's bound."
            yield Delta(finish=FinishReason.LENGTH, notes=(note,), billed_at_bound=True)
        except WorkerError as exc:
            exc.streamed_bytes, exc.sent_bytes = meter.streamed_bytes, meter.sent_bytes
            if not is_shown:  # else `Reply` makes the bill
                told = meter.told
                exc.billed_at_bound |= meter.has_calls and not (told and told.output_tokens)
                if told:
                    yield Delta(usage=told)
            raise


def _checked(last: Delta, meter: OutputMeter, limit: int | None) -> Delta:
    """The end of an answer: what it says of its tokens goes with its words."""
    finish, notes, is_bound = last.finish, last.notes, last.billed_at_bound
    if limit is not None and finish is FinishReason.STOP and meter.has_passed(limit):
        finish = FinishReason.LENGTH
        notes += (f"The server passed max_output_tokens ({limit}).",)
    if last.usage is not None and not is_bound and meter.contradicts(last.usage.output_tokens):
        is_bound = True
        said = last.usage.output_tokens
        notes += (f"The server's usage is not believed, {said} output tokens are too few for its words: billed at the call's bound.",)  # fmt: skip
    if (finish, notes, is_bound) == (last.finish, last.notes, last.billed_at_bound):
        return last
    return replace(last, finish=finish, notes=notes, billed_at_bound=is_bound)


def _n_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
