"""Plausibility check of the usage and cost that servers report, shared by all API workers.

- A token count may be up to `SLACK_FACTOR` times the maximum number of tokens of the prompt and the answer,
  plus `SLACK_TOKENS`. The slack is needed because providers add prompts of their own, a server may be a team
  that reads more than it was sent, and some models count a picture as tens of thousands of tokens.
- Output tokens may exceed the call's limit by a small margin, and are then billed as reported. The limit includes
  thoughts with every provider.
- Any other value (negative, not an integer, 10^30) makes the whole usage unknown. The call is then billed at
  its bound, which is the maximum that it may have cost, and the notes of the reply say why.

`output_limit.py` checks whether the text and the reported count agree.
"""

from decimal import Decimal
from math import isfinite

from msgspec.structs import replace

from conductor.errors import quote
from conductor.model.call import Call
from conductor.model.messages import File, Image
from conductor.model.reply import Delta, FinishReason
from conductor.model.usage import FREE, Price, Usage
from conductor.run.call_bound import input_bound
from serving.workers.output_limit import MARGIN, NO_LIMIT_TOKENS, OutputMeter

SLACK_FACTOR = 4
SLACK_TOKENS = 16_384
SLACK_TOKENS_PER_FILE = 2_000_000
"""Allowed number of tokens for a PDF, which may have many pages in few bytes. No model's context is larger.
"""
SLACK_TOKENS_PER_IMAGE = 49_152
"""Allowed tokens of a picture. Some models count 2,833, plus 5,667 for each of eight tiles."""
OUTPUT_SLACK_TOKENS = 256
"""Allowed number of output tokens beyond `MARGIN` times the call's limit."""
SLACK_USD = Decimal(1)
MOST_USD = Decimal(1000)
"""Highest plausible cost of a call if the price per token is unknown."""


class UsageCheck:
    """Check of the usage and cost that a server reports for one call. `meter` receives each valid usage."""

    def __init__(self, call: Call, price: Price | None, meter: OutputMeter | None = None) -> None:
        self._call, self._price, self._meter = call, price, meter or OutputMeter()
        self._notes: dict[str, None] = {}
        self._most_tokens = 0
        self._rejected = self._is_over = False
        self.writes_hour = False
        """True if all cache marks of the request have a lifetime of an hour."""

    def count(self, name: str, value: object) -> int | None:
        """Return `value` as tokens, or None. An implausible one rejects the whole usage, with a note by
        `name`.
        """
        if value is None:
            return None
        number = integer(value)
        if number is None or number < 0 or not self._is_possible(number):
            self.reject(f"Its {name} is {quote(value)}.")
            return None
        return number

    def cache_writes(self, total: int | None, short: int | None, hour: int | None) -> tuple[int, int]:
        """Return the tokens written to a cache, and how many of them for an hour.

        If the server does not report the lifetimes, they are those of the request's marks.

        Args:
            total: reported tokens, or None.
            short: those of them for five minutes, or None.
            hour: those of them for an hour, or None.
        """
        n_total = max(total or 0, (short or 0) + (hour or 0))
        return n_total, n_total - (short or 0) if self.writes_hour else hour or 0

    def usage(
        self,
        input_tokens: int | None,
        output_tokens: int | None,
        cached: int | None,
        reasoning: int | None,
        cache_write: int = 0,
        cache_write_1h: int = 0,
    ) -> Usage | None:
        """Build the usage from checked counts, of which cached and written input, and thoughts, are parts.
        Return None without prompt tokens or after a rejection.

        A part larger than its total is dropped. But tokens written to a cache cost more than others, so an
        implausible number of them rejects the whole usage.
        """
        if self._rejected or not input_tokens:
            return None
        total_out = output_tokens or 0
        if not self._fits(total_out):
            return None
        cached = self._part("cached input tokens", cached or 0, input_tokens)
        if cached + cache_write > input_tokens:
            self.reject(
                f"It counts {cache_write} tokens written to the cache and {cached} read from it, but only {input_tokens} input tokens."
            )
            return None
        reasoning = self._part("reasoning tokens", reasoning or 0, total_out)
        usage = Usage(input_tokens, total_out, cached, reasoning, cache_write, cache_write_1h)
        self._meter.reported_usage = usage
        return usage

    def reject(self, why: str) -> None:
        """Mark the usage as implausible or incomplete. `why` is a sentence. Only the first reason becomes a note."""
        if self._rejected:
            return
        self._rejected = True
        self._note(
            f"The server reported an implausible usage. {why} The call is billed at the maximum that it may have cost."
        )

    def cost_usd(self, value: object) -> Decimal | None:
        """Return the cost that the server reports, or None if it is missing or implausible."""
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= self._most_usd():
            return Decimal(str(value))
        self._note(f"The server reported an implausible cost ({quote(value)}), which was ignored.")
        return None

    def delta(self, last: Delta) -> Delta:
        if not self._notes:
            return last
        return replace(
            last,
            finish=FinishReason.LENGTH if self._is_over and last.finish is FinishReason.STOP else last.finish,
            notes=(*last.notes, *self._notes),
            billed_at_bound=last.billed_at_bound or self._rejected,
        )

    def _fits(self, output_tokens: int) -> bool:
        """Return whether `output_tokens` are plausible for the call's output limit. If not, reject the usage."""
        limit = self._call.sampling.max_output_tokens
        if limit is None or output_tokens <= limit:
            return True
        self._is_over = True
        if output_tokens <= MARGIN * limit + OUTPUT_SLACK_TOKENS:
            self._note(
                f"The server reported more output tokens than max_output_tokens ({limit}). The call is billed as reported."
            )
            return True
        self.reject(f"It counts {output_tokens} output tokens, although max_output_tokens is {limit}.")
        return False

    def _is_possible(self, number: int) -> bool:
        return number <= SLACK_TOKENS or number <= self._bound()

    def _bound(self) -> int:
        # measured once, and only for a large count, because the prompt may be long
        if not self._most_tokens:
            longest = self._call.sampling.max_output_tokens or NO_LIMIT_TOKENS
            parts = [part for each in self._call.messages for part in each.all_parts]
            pictures = sum(isinstance(part, Image) for part in parts)
            files = sum(isinstance(part, File) for part in parts)
            slack = SLACK_TOKENS + SLACK_TOKENS_PER_IMAGE * pictures + SLACK_TOKENS_PER_FILE * files
            self._most_tokens = SLACK_FACTOR * (input_bound(self._call) + longest) + slack
        return self._most_tokens

    def _most_usd(self) -> Decimal:
        if self._price is None or self._price == FREE:
            return MOST_USD
        return self._price.most(Usage(self._bound(), self._bound())) + SLACK_USD

    def _part(self, name: str, part: int, whole: int) -> int:
        if part <= whole:
            return part
        self._note(
            f"The server reported an implausible number of {name} ({part} of {whole}), which was ignored."
        )
        return 0

    def _note(self, note: str) -> None:
        self._notes[note] = None


def has_grown(before: Usage | None, now: Usage | None) -> bool:
    """Return whether the server reports more output than before. The model then works without text."""
    return before is not None and now is not None and now.output_tokens > before.output_tokens


def integer(value: object) -> int | None:
    """Return `value` as an integer if it is a whole number or a string of digits, else None."""
    match value:
        case bool():
            return None
        case int():
            return value
        case float() if isfinite(value) and value.is_integer():
            return int(value)
        case str() if value.isascii() and value.isdigit() and len(value) < 20:
            return int(value)
        case _:
            return None
