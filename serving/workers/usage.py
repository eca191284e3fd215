"""What a server says a call took, checked where it crosses the wire: one check for all API workers.

A count is believed up to `SLACK_FACTOR` times what prompt and answer can hold, and `SLACK_TOKENS` beyond:
providers add prompts of their own, a server that is a team itself reads more than it was sent, and some models
count a picture as tens of thousands. An answer's tokens have a bound of their own, a little above the call's limit, which counts thoughts with every
provider; what passes the limit below it is billed as reported. Whatever else is no count (below zero, no
integer, 10^30) makes the whole usage unknown; the call is then billed at its bound, and the reply's notes
say why. Whether words and count go together is for `output_limit.py`. It knows no provider's field names.
"""

from decimal import Decimal
from math import isfinite

from msgspec.structs import replace

from conductor.errors import quote
from conductor.model.call import Call
from conductor.model.messages import File, Image
from conductor.model.reply import Delta, FinishReason
from conductor.model.usage import FREE, Price, Usage
from conductor.run.call import input_bound
from serving.workers.output_limit import MARGIN, NO_LIMIT_TOKENS, OutputMeter

SLACK_FACTOR = 4
SLACK_TOKENS = 16_384
TOKENS_PER_FILE = 2_000_000
"""No model's context is larger: a PDF of few bytes may have many pages."""
TOKENS_PER_IMAGE = 49_152
"""Believed of a picture: a model that counts one as 2,833 tokens and 5,667 for each of eight tiles is in use."""
OUTPUT_SLACK_TOKENS = 256
"""Believed of an answer beyond its limit, and `MARGIN` of it."""
SLACK_USD = Decimal(1)
MOST_USD = Decimal(1000)
"""No single call costs more; the bound where the price per token is not known."""


class UsageCheck:
    """The accounts of one call.

    Args:
        call: what was asked.
        price: what the worker takes, if that is known.
        meter: of its answer, which is told each usage.
    """

    def __init__(self, call: Call, price: Price | None, meter: OutputMeter | None = None) -> None:
        self._call, self._price, self._meter = call, price, meter or OutputMeter()
        self._notes: dict[str, None] = {}
        self._most_tokens = 0
        self._rejected = self._is_over = False

    def count(self, name: str, value: object) -> int | None:
        """`value` as a number of tokens; None where it is missing, and where it cannot be true, which rejects
        the usage.
        """
        if value is None:
            return None
        number = integer(value)
        if number is None or number < 0 or not self._is_possible(number):
            self.reject(f"{name} is {quote(value)}")
            return None
        return number

    def usage(
        self,
        input_tokens: int | None,
        output_tokens: int | None,
        cached: int | None,
        reasoning: int | None,
        written: int | None = None,
        written_1h: int | None = None,
    ) -> Usage | None:
        """The usage, from checked counts; None where there is none, where it counts no prompt, which every call
        has, or where one of them was rejected.

        A part that is larger than its whole is dropped: the whole is billed. What is written to a cache costs
        more than the whole, so there the usage is rejected.
        """
        if self._rejected or not input_tokens:
            return None
        total_out = output_tokens or 0
        if not self._fits(total_out):
            return None
        cached = self._part("cached input tokens", cached or 0, input_tokens)
        written = max(written or 0, written_1h or 0)
        if cached + written > input_tokens:
            self.reject(
                f"{written} tokens written to the cache of {input_tokens}, {cached} of them read from it"
            )
            return None
        reasoning = self._part("reasoning tokens", reasoning or 0, total_out)
        usage = Usage(input_tokens, total_out, cached, reasoning, written, written_1h or 0)
        self._meter.told = usage
        return usage

    def reject(self, why: str) -> None:
        """The usage cannot be true, or is not whole. The first reason is noted."""
        if self._rejected:
            return
        self._rejected = True
        self._note(f"The server's usage is not believed, {why}: billed at the call's bound.")

    def cost_usd(self, value: object) -> Decimal | None:
        """What the server says the call cost; None where it says nothing, or what cannot be true."""
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= self._most_usd():
            return Decimal(str(value))
        self._note(f"The server's cost is not believed: {quote(value)}.")
        return None

    def delta(self, last: Delta) -> Delta:
        """`last`, the answer's last piece, with what the record must know of its accounts."""
        if not self._notes:
            return last
        return replace(
            last,
            finish=FinishReason.LENGTH if self._is_over and last.finish is FinishReason.STOP else last.finish,
            notes=(*last.notes, *self._notes),
            billed_at_bound=last.billed_at_bound or self._rejected,
        )

    def _fits(self, output_tokens: int) -> bool:
        """Whether an answer held to the call's limit can have taken `output_tokens`; where not, the usage is
        rejected.
        """
        limit = self._call.sampling.max_output_tokens
        if limit is None or output_tokens <= limit:
            return True
        self._is_over = True
        if output_tokens <= MARGIN * limit + OUTPUT_SLACK_TOKENS:
            self._note(f"The server's usage passes max_output_tokens ({limit}): billed as told.")
            return True
        self.reject(f"{output_tokens} output tokens where max_output_tokens is {limit}")
        return False

    def _is_possible(self, number: int) -> bool:
        return number <= SLACK_TOKENS or number <= self._bound()

    def _bound(self) -> int:
        """Measured once, and only where a count is large: the prompt may be."""
        if not self._most_tokens:
            longest = self._call.sampling.max_output_tokens or NO_LIMIT_TOKENS
            parts = [part for each in self._call.messages for part in each.all_parts]
            pictures = sum(isinstance(part, Image) for part in parts)
            files = sum(isinstance(part, File) for part in parts)
            slack = SLACK_TOKENS + TOKENS_PER_IMAGE * pictures + TOKENS_PER_FILE * files
            self._most_tokens = SLACK_FACTOR * (input_bound(self._call) + longest) + slack
        return self._most_tokens

    def _most_usd(self) -> Decimal:
        if self._price is None or self._price == FREE:
            return MOST_USD
        return self._price.most(Usage(self._bound(), self._bound())) + SLACK_USD

    def _part(self, name: str, part: int, whole: int) -> int:
        if part <= whole:
            return part
        self._note(f"The server's {name} are not believed: {part} of {whole}.")
        return 0

    def _note(self, note: str) -> None:
        self._notes[note] = None


def has_grown(before: Usage | None, now: Usage | None) -> bool:
    """Whether a server counts more output than it did before: it is at work, though it shows no word of it."""
    return before is not None and now is not None and now.output_tokens > before.output_tokens


def integer(value: object) -> int | None:
    """`value`, where it is an integer, as a number or in digits."""
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
