"""Output limits, which cut off the answers of servers that ignore `max_output_tokens`.

Servers rarely report the number of tokens while an answer streams, so this module computes a lower
bound of it. The bound uses the number of pieces and bytes together, because no server splits a token, or the
number of bytes alone if pieces have many tokens.

`usage.py` checks whether the reported usage is plausible. This module checks whether it fits the length of
the text.
"""

import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, aclosing

from msgspec.structs import replace

from conductor.errors import WorkerError
from conductor.model.call import Call
from conductor.model.characters import BYTES_PER_TOKEN, byte_size
from conductor.model.deltas import open_reply
from conductor.model.reply import Delta, FinishReason, Reply
from conductor.model.usage import Usage, unseen_bytes
from conductor.run.call_bound import sent_bytes
from serving.workers.provider_account import ProviderAccount

MARGIN = 1.25
MARGIN_TOKENS = 32
MOST_BYTES_PER_TOKEN = 8
"""Maximum average bytes of an answer's tokens, except for rows of dashes or spaces."""
MARGIN_BYTES = 512

LEAST_COUNT_BYTES = 64
"""Maximum bytes of a token, except for rows of dashes. Beyond it, the reported count is wrong."""
COUNT_MARGIN_BYTES = 1024
MOST_CALLS = 128
"""Maximum number of tool calls in one answer. It is the number of tools that OpenAI accepts in a request.
"""
NO_LIMIT_TOKENS = 1_000_000
"""Maximum number of tokens of an answer if the call sets no limit."""
MOST_KEPT_BYTES = 32 * 2**20
"""Maximum size of what must be sent back: signatures, encrypted thoughts and pictures."""
LEAST_KEPT_BYTES = 1024
"""Minimum number of bytes that is counted for each of these parts."""


class OutputPassed(Exception):
    """An answer exceeds a limit and is cut off. The message is a sentence that names the limit."""


class OutputMeter:
    """Counter of pieces and bytes of an answer, without a limit if the call is unknown. Thoughts are as in
    `Meter`: hidden ones are estimated from the time to the first piece.
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
        self.reported_usage: Usage | None = None
        """The newest usage that the server reported and `UsageCheck` accepted."""

    def add(self, delta: Delta) -> None:
        """Count a piece of the answer, but no arguments of tool calls that were counted already."""
        arguments = sum(byte_size(call.arguments) for call in delta.tool_calls)
        uncounted = max(0, arguments - self._argument_bytes)
        self._argument_bytes += uncounted
        self._likely += len(delta.logprobs)
        self.hides_thoughts &= not delta.reasoning
        self._count(byte_size(delta.text) + byte_size(delta.reasoning) + uncounted, delta.pieces)

    def begin_call(self) -> None:
        """Count a tool call. Raise OutputPassed for more than `MOST_CALLS`."""
        self._note_first()
        self._calls += 1
        if self._calls > MOST_CALLS:
            raise OutputPassed(f"The server sent more than {MOST_CALLS} tool calls.")

    def add_arguments(self, piece: str) -> None:
        """Count a piece of a call's arguments. Raise OutputPassed beyond the limit."""
        n_bytes = byte_size(piece)
        self._argument_bytes += n_bytes
        self._count(n_bytes, 1)
        most = NO_LIMIT_TOKENS if self.limit is None else self.limit
        if self.has_passed(most):
            raise OutputPassed(f"The server exceeded max_output_tokens ({most}).")

    @property
    def pieces_left(self) -> int | None:
        """Number of further pieces after which the answer exceeds its limit, or None if it has no limit."""
        return None if self.limit is None else self.limit + 1 - self._pieces

    @property
    def sent_bytes(self) -> int | None:
        # computed here because only calls that break need it
        return sent_bytes(self._call) if self._call else None

    @property
    def streamed_bytes(self) -> int:
        # before the first piece, any model may have written hidden thoughts
        unseen_s = self._unseen_s
        if unseen_s is None:
            return unseen_bytes(time.monotonic() - self._began_s)
        return self._bytes + (unseen_bytes(unseen_s) if self.hides_thoughts else 0)

    @property
    def has_calls(self) -> bool:
        return self._calls > 0 or self._argument_bytes > 0

    def keep(self, part: object) -> None:
        """Count a part to send back that is not text. Raise OutputPassed beyond `MOST_KEPT_BYTES`."""
        self._kept_bytes += LEAST_KEPT_BYTES + len(json.dumps(part, default=str))
        if self._kept_bytes > MOST_KEPT_BYTES:
            raise OutputPassed(
                f"The server sent more than {MOST_KEPT_BYTES} bytes of data in addition to text."
            )

    def _count(self, n_bytes: int, pieces: int) -> None:
        if n_bytes:
            self._note_first()
        self._bytes += n_bytes
        self._pieces += pieces if n_bytes else 0

    def _note_first(self) -> None:
        if self._unseen_s is None:
            self._unseen_s = time.monotonic() - self._began_s

    def has_passed(self, limit: int) -> bool:
        """Return whether the answer has more than `limit` tokens: by pieces if they are like tokens, or else
        with a margin.
        """
        if self._pieces > limit and self._bytes >= BYTES_PER_TOKEN * self._pieces:
            return True
        return self._is_clearly_over(limit) or self._bytes > MOST_BYTES_PER_TOKEN * limit + MARGIN_BYTES

    def contradicts(self, output_tokens: int) -> bool:
        """Return whether the answer is too long to have only `output_tokens` tokens, as the server reports."""
        if not output_tokens:
            return self._bytes > 0
        too_long = self._bytes > LEAST_COUNT_BYTES * output_tokens + COUNT_MARGIN_BYTES
        return too_long or self._is_clearly_over(output_tokens)

    def _is_clearly_over(self, tokens: int) -> bool:
        least = max(self._likely, min(self._pieces, self._bytes / BYTES_PER_TOKEN))
        return least > MARGIN * tokens + MARGIN_TOKENS


def open_metered(
    account: ProviderAccount,
    call: Call,
    deltas: Callable[[Call, OutputMeter], AsyncGenerator[Delta]],
    *,
    summarizes_thoughts: bool,
) -> AbstractAsyncContextManager[Reply]:
    """Open a provider's answer as `Worker.open` does, with the output limit of `within_limit`."""
    thinks = account.accepts.thinks(call.sampling.effort)
    meter = OutputMeter(call, hides_thoughts=thinks, summarizes_thoughts=summarizes_thoughts)
    answer = within_limit(deltas(call, meter), meter)
    return open_reply(account.name, account.model, answer, account.price, meter)


async def within_limit(deltas: AsyncGenerator[Delta], meter: OutputMeter) -> AsyncGenerator[Delta]:
    """Yield `deltas`, and end the answer with the finish reason `length` if it exceeds a limit.

    A call is billed at its bound (the maximum that it may have cost) in these cases:

    - It is cut off, because its usage is then never reported.
    - Its final usage is too small for its text. An earlier usage that is too small is dropped.
    - The stream breaks before the first piece although a tool call had begun, and no output tokens were
      reported.

    If the stream breaks before the first piece, the server's last usage is yielded before the error is
    raised.
    """
    limit, is_shown = meter.limit, False
    async with aclosing(deltas):
        try:
            async for delta in deltas:
                meter.add(delta)
                is_shown = True
                if delta.finish:
                    yield _check_last(delta, meter, limit)
                    continue
                counted = delta.usage.output_tokens if delta.usage else 0
                if delta.usage and meter.contradicts(counted):
                    delta = replace(delta, usage=None)  # some servers report only the prompt with each piece
                yield delta
                if limit is not None and (counted > limit or meter.has_passed(limit)):
                    raise OutputPassed(f"The server exceeded max_output_tokens ({limit}).")
        except OutputPassed as exc:
            note = (
                f"{exc} The answer was cut off, and the call is billed at the maximum that it may have cost."
            )
            yield Delta(finish=FinishReason.LENGTH, notes=(note,), billed_at_bound=True)
        except WorkerError as exc:
            exc.streamed_bytes, exc.sent_bytes = meter.streamed_bytes, meter.sent_bytes
            if not is_shown:  # otherwise `Reply` computes the bill
                usage = meter.reported_usage
                exc.billed_at_bound |= meter.has_calls and not (usage and usage.output_tokens)
                if usage:
                    yield Delta(usage=usage)
            raise


def _check_last(last: Delta, meter: OutputMeter, limit: int | None) -> Delta:
    """Return the last delta, corrected and noted if finish reason or usage do not fit the text."""
    finish, notes, is_bound = last.finish, last.notes, last.billed_at_bound
    if limit is not None and finish is FinishReason.STOP and meter.has_passed(limit):
        finish = FinishReason.LENGTH
        notes += (f"The server exceeded max_output_tokens ({limit}).",)
    if last.usage is not None and not is_bound and meter.contradicts(last.usage.output_tokens):
        is_bound = True
        n_output = last.usage.output_tokens
        notes += (
            f"The server reported too few output tokens for the text ({n_output}), so the call is billed at the maximum that it may have cost.",
        )
    if (finish, notes, is_bound) == (last.finish, last.notes, last.billed_at_bound):
        return last
    return replace(last, finish=finish, notes=notes, billed_at_bound=is_bound)
