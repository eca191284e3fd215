"""Tokens, prices and costs, reported or estimated."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol

from msgspec.structs import replace

from conductor.model.value import Value

MILLION = Decimal(1_000_000)
MOST_TOKENS = 10**12
"""No call takes more: a larger count is none."""


class Usage(Value, frozen=True):
    """Tokens of one call. All others are parts of the two totals, not added to them."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    """Of the input: read from the provider's cache."""
    reasoning_tokens: int = 0
    """Of the output: thoughts."""
    cache_write_tokens: int = 0
    """Of the input: written to the provider's cache."""
    cache_write_1h_tokens: int = 0
    """Of those written: to be kept for an hour."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(*(mine + theirs for mine, theirs in zip(self._counts, other._counts, strict=True)))

    def __sub__(self, other: "Usage") -> "Usage":
        """What came after `other`; nothing is less than 0."""
        return Usage(
            *(max(mine - theirs, 0) for mine, theirs in zip(self._counts, other._counts, strict=True))
        )

    @property
    def total_tokens(self) -> int:
        """Read and written together."""
        return self.input_tokens + self.output_tokens

    @property
    def is_possible(self) -> bool:
        """Whether every field is a count of tokens, and no part is larger than its whole: a worker of one's own
        may put in anything.
        """
        return (
            all(type(count) is int and 0 <= count <= MOST_TOKENS for count in self._counts)
            and self.cached_input_tokens + self.cache_write_tokens <= self.input_tokens
            and self.cache_write_1h_tokens <= self.cache_write_tokens
            and self.reasoning_tokens <= self.output_tokens
        )

    @property
    def _counts(self) -> tuple[int, ...]:
        return (
            self.input_tokens,
            self.output_tokens,
            self.cached_input_tokens,
            self.reasoning_tokens,
            self.cache_write_tokens,
            self.cache_write_1h_tokens,
        )


@dataclass(frozen=True, slots=True)
class Rates:
    """Dollars per million tokens."""

    input_usd_per_mtok: Decimal
    output_usd_per_mtok: Decimal
    cached_input_usd_per_mtok: Decimal | None = None
    """None: cached tokens cost what fresh ones do."""
    cache_write_usd_per_mtok: Decimal | None = None
    """None: likewise."""
    cache_write_1h_usd_per_mtok: Decimal | None = None
    """None: what other writes cost."""
    reasoning_usd_per_mtok: Decimal | None = None
    """None: thoughts cost what words do."""

    @property
    def cached(self) -> Decimal:
        """What reading a million tokens from the cache costs."""
        return (
            self.input_usd_per_mtok
            if self.cached_input_usd_per_mtok is None
            else self.cached_input_usd_per_mtok
        )

    @property
    def write(self) -> Decimal:
        """What writing them to it costs."""
        return (
            self.input_usd_per_mtok
            if self.cache_write_usd_per_mtok is None
            else self.cache_write_usd_per_mtok
        )

    @property
    def write_1h(self) -> Decimal:
        """What writing them for an hour costs."""
        return self.write if self.cache_write_1h_usd_per_mtok is None else self.cache_write_1h_usd_per_mtok

    @property
    def reasoning(self) -> Decimal:
        """What thinking them costs."""
        return (
            self.output_usd_per_mtok if self.reasoning_usd_per_mtok is None else self.reasoning_usd_per_mtok
        )

    @property
    def dearest_input(self) -> Decimal:
        """What a million tokens of the prompt cost at most."""
        return max(self.input_usd_per_mtok, self.cached, self.write, self.write_1h)

    @property
    def dearest_output(self) -> Decimal:
        """What a million tokens of the answer cost at most."""
        return max(self.output_usd_per_mtok, self.reasoning)


@dataclass(frozen=True, slots=True)
class LongPromptRates(Rates):
    """What all tokens of a call cost whose prompt is longer than `above_input_tokens`."""

    above_input_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Price(Rates):
    """What a worker takes."""

    long_prompts: tuple[LongPromptRates, ...] = ()
    """Other rates for long prompts. The highest threshold that is passed counts."""

    def of(self, usage: Usage) -> Decimal:
        """What `usage` costs. Never below 0, and never less than any of its parts."""
        rates = self.rates_for(usage.input_tokens)
        written_1h = usage.cache_write_1h_tokens
        written = max(0, usage.cache_write_tokens - written_1h)
        fresh = max(0, usage.input_tokens - usage.cached_input_tokens - written - written_1h)
        said = max(0, usage.output_tokens - usage.reasoning_tokens)
        return (
            fresh * rates.input_usd_per_mtok
            + usage.cached_input_tokens * rates.cached
            + written * rates.write
            + written_1h * rates.write_1h
            + said * rates.output_usd_per_mtok
            + usage.reasoning_tokens * rates.reasoning
        ) / MILLION

    def rates_for(self, input_tokens: int) -> Rates:
        """What tokens cost in a call with so long a prompt."""
        passed = [tier for tier in self.long_prompts if input_tokens > tier.above_input_tokens]
        return max(passed, key=lambda tier: tier.above_input_tokens, default=self)

    def rates_from(self, start: int) -> list[Rates]:
        """What may hold in a call whose prompt is one token longer than `start`."""
        begun = [tier for tier in self.long_prompts if tier.above_input_tokens == start]
        return [self.rates_for(start + 1), *begun]

    def most(self, bound: Usage) -> Decimal:
        """The most that a call can cost that takes no more input and output than `bound`: in whichever tier,
        cached or written to a cache, thought or said.
        """
        input_rate, output_rate = self.dearest(bound.input_tokens)
        return (bound.input_tokens * input_rate + bound.output_tokens * output_rate) / MILLION

    def dearest(self, input_tokens: int) -> tuple[Decimal, Decimal]:
        """The most that a million tokens cost, of the prompt and of the answer, where the prompt is no longer
        than `input_tokens`.
        """
        reached: list[Rates] = [self]
        reached += [tier for tier in self.long_prompts if input_tokens > tier.above_input_tokens]
        return max(rates.dearest_input for rates in reached), max(rates.dearest_output for rates in reached)


FREE = Price(Decimal(0), Decimal(0))
"""Nobody bills by the token: one's own machines, and the scripted worker."""


def dearest_of(prices: Sequence[Price]) -> Price:
    """A price that is never below any of `prices`, whatever a call takes."""
    if len(set(prices)) == 1:
        return prices[0]
    starts = sorted({tier.above_input_tokens for price in prices for tier in price.long_prompts})
    tiers = [
        LongPromptRates(*_dearest([rates for price in prices for rates in price.rates_from(start)]), start)
        for start in starts
    ]
    return Price(*_dearest(prices), tuple(tiers))


RateValues = tuple[Decimal, Decimal, Decimal | None, Decimal | None, Decimal | None, Decimal | None]


def _dearest(rates: Sequence[Rates]) -> RateValues:
    """The fields of `Rates`, each at its highest."""
    inputs = max(each.input_usd_per_mtok for each in rates)
    outputs = max(each.output_usd_per_mtok for each in rates)
    cached, write = max(each.cached for each in rates), max(each.write for each in rates)
    write_1h, reasoning = max(each.write_1h for each in rates), max(each.reasoning for each in rates)
    return (
        inputs,
        outputs,
        None if cached == inputs else cached,
        None if write == inputs else write,
        None if write_1h == write else write_1h,
        None if reasoning == outputs else reasoning,
    )


def cost_of(price: Price | None, usage: Usage | None) -> Decimal | None:
    """What a call cost; None where its price or its usage is unknown and the answer is not surely 0."""
    if price == FREE:
        return Decimal(0)
    if price is None or usage is None:
        return None
    return price.of(usage)


def dearer(one: Decimal | None, other: Decimal | None) -> Decimal | None:
    """The larger of two costs, the known one where one is; None where none is."""
    return max((cost for cost in (one, other) if cost is not None), default=None)


def total(costs: Sequence[Decimal | None]) -> Decimal | None:
    """The sum; None as soon as one of them is unknown."""
    known = [cost for cost in costs if cost is not None]
    return sum(known, Decimal(0)) if len(known) == len(costs) else None


ESTIMATE_BYTES_PER_TOKEN = 2
"""Prose has about four bytes to a token, so an estimate is about twice the truth. That is its margin."""
ESTIMATE_SLACK_TOKENS = 16
"""Tokens that the model wrote and that were not received when the stream broke."""
ESTIMATE_SUMMARY_FACTOR = 10
"""Length of a thought over the length of its summary."""
THOUGHT_TOKENS_PER_S = 400
"""Rate of thoughts that are not shown: about twice the rate of fast models."""


class Meter(Protocol):
    """Counts that a worker keeps of a call while its answer streams."""

    @property
    def hides_thoughts(self) -> bool:
        """The model may think unseen: it has shown no thought so far."""
        ...

    @property
    def summarizes_thoughts(self) -> bool:
        """Thoughts that are shown may be summaries of longer ones."""
        ...

    @property
    def told(self) -> Usage | None:
        """The server's newest count. It may cover the prompt alone."""
        ...

    @property
    def sent_bytes(self) -> int | None:
        """Size of the prompt that was sent, or None if it is not known."""
        ...

    @property
    def streamed_bytes(self) -> int:
        """Size of the answer so far, with thoughts and unfinished calls."""
        ...


def estimate(bound: Usage, n_bytes: int, told: Usage | None = None, sent_bytes: int | None = None) -> Usage:
    """Return the estimated usage of a call whose stream broke. It is never more than `bound`.

    Args:
        bound: the most that the call can take, with one prompt token for each byte.
        n_bytes: size of the answer so far, with thoughts and the arguments of calls.
        told: the server's newest count, for example of the prompt and of its cached part.
        sent_bytes: size of the prompt. None: not known, so `bound` is used.
    """
    written = min(bound.output_tokens, n_bytes // ESTIMATE_BYTES_PER_TOKEN + ESTIMATE_SLACK_TOKENS)
    if told is None or not told.input_tokens:
        sent = bound.input_tokens if sent_bytes is None else min(sent_bytes, bound.input_tokens)
        return Usage(-(-sent // ESTIMATE_BYTES_PER_TOKEN), written)
    return replace(told, output_tokens=max(written, told.output_tokens))


def estimate_answer(
    bound: Usage, n_bytes: int, thought_bytes: int, unseen_s: float, meter: Meter | None
) -> tuple[Usage, str]:
    """Return the estimated usage of a call whose stream broke, and a sentence for the record that explains it.

    Args:
        bound: the most that the call can take.
        n_bytes: size of words and calls.
        thought_bytes: size of thoughts.
        unseen_s: time to the first token.
        meter: the worker's counts. None: the worker keeps none.
    """
    how = f"Estimated from what was sent and what streamed, one token for {ESTIMATE_BYTES_PER_TOKEN} bytes (about twice what prose takes) and {ESTIMATE_SLACK_TOKENS} more."
    if meter is None:
        return estimate(bound, n_bytes + thought_bytes), how
    if meter.summarizes_thoughts:
        thought_bytes *= ESTIMATE_SUMMARY_FACTOR
    if meter.hides_thoughts and not thought_bytes:
        thought_bytes = unseen_bytes(unseen_s)
        how += f" Its model may have thought unseen for {unseen_s:.1f} s: {THOUGHT_TOKENS_PER_S} tokens a second."
    n_bytes = max(n_bytes + thought_bytes, meter.streamed_bytes)
    return estimate(bound, n_bytes, meter.told, meter.sent_bytes), how


def unseen_bytes(time_s: float) -> int:
    """Return the estimated size of the thoughts that a model does not show in `time_s` before its first word."""
    return int(time_s * THOUGHT_TOKENS_PER_S) * ESTIMATE_BYTES_PER_TOKEN
