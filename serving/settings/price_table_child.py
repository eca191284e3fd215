"""Child process that reads the packaged price table, because importing it takes a second and 70 MB, which no
router needs permanently. `price_table.py` starts it as a file, so it imports none of our modules.

Questions are JSON on standard input: `[[provider, address, model], ...]`. Standard output has one answer for
each: the model's prices at the different hours of the day, as `PriceSettings` reads them, or null if the
table does not have the full price of a call.
"""

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from genai_prices.data_snapshot import DataSnapshot, get_snapshot
from genai_prices.types import ConditionalPrice, ModelInfo, ModelPrice, TieredPrices, TimeOfDateConstraint

RATES = {
    "input_mtok": "input_usd_per_mtok",
    "output_mtok": "output_usd_per_mtok",
    "cache_read_mtok": "cached_input_usd_per_mtok",
    "cache_write_mtok": "cache_write_usd_per_mtok",
    "cache_write_1h_mtok": "cache_write_1h_usd_per_mtok",
    "output_reasoning_mtok": "reasoning_usd_per_mtok",
}
"""Names of prices in the table, and in the settings."""
NEVER_BILLED = ("web_searches_", "storage_searches_", "social_searches_", "code_executions_")
"""Prices of tools, which calls do not offer."""
NEVER_SENT = ("audio", "video")
"""Media that calls neither contain nor ask for."""
SEARCHING = frozenset({"perplexity"})
"""Providers whose models search the web on their own, at a price."""


def answer(snapshot: DataSnapshot, provider: str | None, address: str | None, model: str) -> list[Any] | None:
    try:
        known_provider, info = snapshot.find_provider_model(model, None, provider, address)
    except LookupError:
        return None
    if known_provider.id in SEARCHING:
        return None
    rates = [rates_of(each) for each in in_force(info, datetime.now(tz=UTC))]
    prices = [each for each in rates if each is not None]
    return prices if prices and len(prices) == len(rates) else None


def in_force(info: ModelInfo, now: datetime) -> Iterator[ModelPrice]:
    """Yield the current price, and those of other hours of the day."""
    if isinstance(info.prices, ModelPrice):
        yield info.prices
        return
    hourly = [each for each in info.prices if isinstance(each.constraint, TimeOfDateConstraint)]
    dated = [each for each in info.prices if each not in hourly]
    current: list[ConditionalPrice] = [
        each for each in dated if each.constraint is None or each.constraint.active(now)
    ]
    yield from (each.prices for each in (*(current or dated)[-1:], *hourly))


def rates_of(price: ModelPrice) -> dict[str, Any] | None:
    """Return a price for the settings, or None if they cannot express all that a call may cost."""
    rates = {name: value for name, value in vars(price).items() if value is not None and _may_cost(name)}
    if not {"input_mtok", "output_mtok"} <= rates.keys() <= RATES.keys():
        return None
    starts = sorted(
        {tier.start for value in rates.values() if isinstance(value, TieredPrices) for tier in value.tiers}
    )
    tiers = [_at(rates, start) | {"above_input_tokens": start} for start in starts]
    return _at(rates, -1) | {"long_prompts": tiers}


def _may_cost(name: str) -> bool:
    return not name.startswith(NEVER_BILLED) and not any(word in name for word in NEVER_SENT)


def _at(rates: dict[str, Any], start: int) -> dict[str, Any]:
    """Return the rates of a call whose prompt is a little longer than `start` tokens."""
    return {RATES[name]: str(_rate(value, start)) for name, value in rates.items()}


def _rate(value: Decimal | TieredPrices, start: int) -> Decimal:
    if isinstance(value, Decimal):
        return value
    passed = [tier for tier in value.tiers if tier.start <= start]
    return passed[-1].price if passed else value.base


if __name__ == "__main__":
    table = get_snapshot()
    json.dump([answer(table, *question) for question in json.load(sys.stdin)], sys.stdout)
