"""Tokens, prices, and what a call costs.

Unknown is None, never 0. Money is `Decimal` dollars; token counts are integers. This file knows no model
and no price list.
"""

from dataclasses import dataclass
from decimal import Decimal

MILLION = Decimal(1_000_000)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call. Cached and reasoning tokens are parts of the totals, not added to them."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_input_tokens + other.cached_input_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )

    @property
    def total_tokens(self) -> int:
        """Read and written together."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars per million tokens."""

    input_usd_per_mtok: Decimal
    output_usd_per_mtok: Decimal
    cached_input_usd_per_mtok: Decimal | None = None
    """None: cached tokens cost what fresh ones do."""

    def of(self, usage: Usage) -> Decimal:
        """What `usage` costs."""
        cached_rate = (
            self.input_usd_per_mtok
            if self.cached_input_usd_per_mtok is None
            else self.cached_input_usd_per_mtok
        )
        fresh_tokens = usage.input_tokens - usage.cached_input_tokens
        return (
            fresh_tokens * self.input_usd_per_mtok
            + usage.cached_input_tokens * cached_rate
            + usage.output_tokens * self.output_usd_per_mtok
        ) / MILLION


FREE = Price(Decimal(0), Decimal(0))
"""Nobody bills by the token: one's own machines, and the scripted worker."""


def cost_of(price: Price | None, usage: Usage | None) -> Decimal | None:
    """What a call cost; None where its price or its usage is unknown and the answer is not surely 0."""
    if price == FREE:
        return Decimal(0)
    if price is None or usage is None:
        return None
    return price.of(usage)


def total(costs: list[Decimal | None]) -> Decimal | None:
    """The sum; None as soon as one of them is unknown."""
    known = [cost for cost in costs if cost is not None]
    return sum(known, Decimal(0)) if len(known) == len(costs) else None
