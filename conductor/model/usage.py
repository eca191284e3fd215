"""Token usage, prices and costs, reported by a server or estimated."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol

from msgspec.structs import replace

from conductor.model.value import Value

MILLION = Decimal(1_000_000)
MOST_TOKENS = 10**12
"""Largest plausible number of tokens in a call. Larger counts are rejected."""


class Usage(Value, frozen=True):
    """Token counts of one call. All other counts are parts of `input_tokens` or `output_tokens`."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    """Input tokens that were read from the provider's cache."""
    reasoning_tokens: int = 0
    """Output tokens that were spent on reasoning."""
    cache_write_tokens: int = 0
    """Input tokens that were written to the provider's cache."""
    cache_write_1h_tokens: int = 0
    """Part of `cache_write_tokens` that is cached for one hour."""

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(*(mine + theirs for mine, theirs in zip(self._counts, other._counts, strict=True)))

    def __sub__(self, other: "Usage") -> "Usage":
        """Return the difference, with every count at least 0."""
        return Usage(
            *(max(mine - theirs, 0) for mine, theirs in zip(self._counts, other._counts, strict=True))
        )

    @property
    def total_tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens

    @property
    def is_possible(self) -> bool:
        """True if every count is valid and no part exceeds its total. A custom worker may report any counts."""
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
    """Prices in US dollars per million tokens."""

    input_usd_per_mtok: Decimal
    output_usd_per_mtok: Decimal
    cached_input_usd_per_mtok: Decimal | None = None
    """Price of cache reads, or None if it equals `input_usd_per_mtok`."""
    cache_write_usd_per_mtok: Decimal | None = None
    """Price of cache writes, or None if it equals `input_usd_per_mtok`."""
    cache_write_1h_usd_per_mtok: Decimal | None = None
    """Price of cache writes with a lifetime of an hour, or None if it equals that of other cache writes."""
    reasoning_usd_per_mtok: Decimal | None = None
    """Price of reasoning tokens, or None if it equals `output_usd_per_mtok`."""

    @property
    def cached(self) -> Decimal:
        """Price of input tokens that are read from the cache."""
        return (
            self.input_usd_per_mtok
            if self.cached_input_usd_per_mtok is None
            else self.cached_input_usd_per_mtok
        )

    @property
    def write(self) -> Decimal:
        """Price of input tokens that are written to the cache."""
        return (
            self.input_usd_per_mtok
            if self.cache_write_usd_per_mtok is None
            else self.cache_write_usd_per_mtok
        )

    @property
    def write_1h(self) -> Decimal:
        """Price of input tokens that are written to the cache for one hour."""
        return self.write if self.cache_write_1h_usd_per_mtok is None else self.cache_write_1h_usd_per_mtok

    @property
    def reasoning(self) -> Decimal:
        return (
            self.output_usd_per_mtok if self.reasoning_usd_per_mtok is None else self.reasoning_usd_per_mtok
        )

    @property
    def dearest_input(self) -> Decimal:
        """Highest price of an input token, cached or not."""
        return max(self.input_usd_per_mtok, self.cached, self.write, self.write_1h)

    @property
    def dearest_output(self) -> Decimal:
        """Highest price of an output token, reasoning or not."""
        return max(self.output_usd_per_mtok, self.reasoning)


@dataclass(frozen=True, slots=True)
class LongPromptRates(Rates):
    """Prices of all tokens of a call whose prompt is longer than `above_input_tokens`."""

    above_input_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Price(Rates):
    """Price list of a worker."""

    long_prompts: tuple[LongPromptRates, ...] = ()
    """Rates for long prompts. The tier with the highest threshold below the prompt's length applies."""

    def of(self, usage: Usage) -> Decimal:
        """Return the cost of `usage` in US dollars. It is never negative, nor below the cost of any part."""
        rates = self.rates_for(usage.input_tokens)
        write_1h_tokens = usage.cache_write_1h_tokens
        write_tokens = max(0, usage.cache_write_tokens - write_1h_tokens)
        fresh = max(0, usage.input_tokens - usage.cached_input_tokens - write_tokens - write_1h_tokens)
        visible = max(0, usage.output_tokens - usage.reasoning_tokens)
        return (
            fresh * rates.input_usd_per_mtok
            + usage.cached_input_tokens * rates.cached
            + write_tokens * rates.write
            + write_1h_tokens * rates.write_1h
            + visible * rates.output_usd_per_mtok
            + usage.reasoning_tokens * rates.reasoning
        ) / MILLION

    def savings(self, usage: Usage, cost_usd: Decimal | None = None) -> Decimal:
        """Return what the provider's cache saved: the price of the same tokens without a cache, minus their cost.

        It is negative if cache writes cost more than cache reads saved. `cost_usd` is the cost if it is not the price of
        `usage`.
        """
        if self == FREE or not (usage.cached_input_tokens or usage.cache_write_tokens):
            return Decimal(0)
        uncached = replace(usage, cached_input_tokens=0, cache_write_tokens=0, cache_write_1h_tokens=0)
        return self.of(uncached) - (self.of(usage) if cost_usd is None else cost_usd)

    def rates_for(self, input_tokens: int) -> Rates:
        """Return the rates that apply to a prompt of this length."""
        tiers = [tier for tier in self.long_prompts if input_tokens > tier.above_input_tokens]
        return max(tiers, key=lambda tier: tier.above_input_tokens, default=self)

    def rates_from(self, start: int) -> list[Rates]:
        """Return the rates that can apply to a prompt that is one token longer than `start`."""
        tiers = [tier for tier in self.long_prompts if tier.above_input_tokens == start]
        return [self.rates_for(start + 1), *tiers]

    def most(self, bound: Usage) -> Decimal:
        """Return the highest possible cost of a call that uses at most `bound`, in any tier."""
        input_rate, output_rate = self.dearest(bound.input_tokens)
        return (bound.input_tokens * input_rate + bound.output_tokens * output_rate) / MILLION

    def dearest(self, input_tokens: int) -> tuple[Decimal, Decimal]:
        """Return the highest input and output price per million tokens, for prompts up to this length."""
        rates: list[Rates] = [self]
        rates += [tier for tier in self.long_prompts if input_tokens > tier.above_input_tokens]
        return max(each.dearest_input for each in rates), max(each.dearest_output for each in rates)


FREE = Price(Decimal(0), Decimal(0))
"""Price of workers that are not billed by the token: local models and the scripted worker."""


def dearest_of(prices: Sequence[Price]) -> Price:
    """Return a price list under which each call costs at least as much as under any of `prices`."""
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
    """Return the fields of `Rates`, each at its maximum."""
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
    """Return the cost of a call, or None if its price or usage is unknown. A free worker always costs 0."""
    if price == FREE:
        return Decimal(0)
    if price is None or usage is None:
        return None
    return price.of(usage)


def dearer(one: Decimal | None, other: Decimal | None) -> Decimal | None:
    """Return the larger of two costs. If one is unknown, return the other. Return None if both are unknown."""
    return max((cost for cost in (one, other) if cost is not None), default=None)


def total(costs: Sequence[Decimal | None]) -> Decimal | None:
    known_costs = [cost for cost in costs if cost is not None]
    return sum(known_costs, Decimal(0)) if len(known_costs) == len(costs) else None


ESTIMATE_BYTES_PER_TOKEN = 2
"""Prose has about four bytes per token. Estimates are about twice the real count, as a safety margin."""
ESTIMATE_SLACK_TOKENS = 16
"""Allowance for tokens that were generated but not received when the stream broke."""
ESTIMATE_SUMMARY_FACTOR = 10
"""Assumed length of the reasoning divided by the length of its summary."""
THOUGHT_TOKENS_PER_S = 400
"""Assumed rate of hidden reasoning, in tokens per second: about twice the rate of fast models."""


class Meter(Protocol):
    """Counts that a worker keeps while an answer streams, to estimate usage if the server does not report it."""

    @property
    def hides_thoughts(self) -> bool:
        """True if the model may be reasoning without showing it, because it has shown no reasoning so far."""
        ...

    @property
    def summarizes_thoughts(self) -> bool:
        """True if visible reasoning may be a summary of longer reasoning."""
        ...

    @property
    def reported_usage(self) -> Usage | None:
        """Newest usage that the server reported, possibly for the prompt only. None if it reported none."""
        ...

    @property
    def sent_bytes(self) -> int | None:
        """Size of the sent prompt in bytes, or None if it is not known."""
        ...

    @property
    def streamed_bytes(self) -> int:
        """Size of the answer so far in bytes, including reasoning and unfinished tool calls."""
        ...


def estimate(
    bound: Usage, n_bytes: int, reported_usage: Usage | None = None, sent_bytes: int | None = None
) -> Usage:
    """Return the estimated usage of an interrupted call, at most `bound`. `n_bytes` include reasoning and
    tool arguments.

    Without `sent_bytes`, the prompt counts as in `bound`: one token per byte.
    """
    output_tokens = min(bound.output_tokens, n_bytes // ESTIMATE_BYTES_PER_TOKEN + ESTIMATE_SLACK_TOKENS)
    if reported_usage is None or not reported_usage.input_tokens:
        prompt_bytes = bound.input_tokens if sent_bytes is None else min(sent_bytes, bound.input_tokens)
        return Usage(-(-prompt_bytes // ESTIMATE_BYTES_PER_TOKEN), output_tokens)
    return replace(reported_usage, output_tokens=max(output_tokens, reported_usage.output_tokens))


def estimate_answer(
    bound: Usage,
    n_bytes: int,
    thought_bytes: int,
    unseen_s: float,
    meter: Meter | None,
    prompt: Usage | None = None,
) -> tuple[Usage, str]:
    """Return the estimated usage of a call whose stream broke, and a note for the record that explains it.

    `unseen_s` is the time until the first token. `thought_bytes` is the size of the reasoning, `n_bytes` that
    of the rest. `prompt` is the probable usage of the prompt, which counts until the server has reported it.
    """
    note = f"The usage is estimated from the bytes sent and streamed: one token per {ESTIMATE_BYTES_PER_TOKEN} bytes (about twice the tokens of normal prose), plus {ESTIMATE_SLACK_TOKENS} tokens."
    if meter is None:
        return estimate(bound, n_bytes + thought_bytes, prompt), note
    if meter.summarizes_thoughts:
        thought_bytes *= ESTIMATE_SUMMARY_FACTOR
    if meter.hides_thoughts and not thought_bytes:
        thought_bytes = unseen_bytes(unseen_s)
        note += f" The model may have reasoned for {unseen_s:.1f} s without streaming, which counts as {THOUGHT_TOKENS_PER_S} tokens per second."
    n_bytes = max(n_bytes + thought_bytes, meter.streamed_bytes)
    if prompt and prompt.cached_input_tokens and meter.reported_usage is None:
        note += f" The prompt counts as {prompt.input_tokens:,} tokens, of which the provider has probably cached {prompt.cached_input_tokens:,}."
    return estimate(bound, n_bytes, meter.reported_usage or prompt, meter.sent_bytes), note


def unseen_bytes(time_s: float) -> int:
    """Estimate the size, in bytes, of the hidden reasoning that a model can write in `time_s` seconds."""
    return int(time_s * THOUGHT_TOKENS_PER_S) * ESTIMATE_BYTES_PER_TOKEN
