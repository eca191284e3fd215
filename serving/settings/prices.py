"""Prices of a worker's tokens in the settings."""

from decimal import Decimal

from pydantic import Field

from conductor.model.usage import LongPromptRates, Price
from serving.settings.access import Frozen


class RateSettings(Frozen):
    """US dollars per million tokens."""

    input_usd_per_mtok: Decimal = Field(ge=0)
    """Price of the prompt."""
    output_usd_per_mtok: Decimal = Field(ge=0)
    """Price of the answer, including thinking."""
    cached_input_usd_per_mtok: Decimal | None = Field(default=None, ge=0)
    """Price of the part of the prompt that is read from the provider's cache. If null, it costs the same as
    the rest of the prompt."""
    cache_write_usd_per_mtok: Decimal | None = Field(default=None, ge=0)
    """Price of the part of the prompt that is written to the provider's cache. If null, it costs the same as
    the rest of the prompt."""
    cache_write_1h_usd_per_mtok: Decimal | None = Field(default=None, ge=0)
    """Price of the part of the prompt that is cached for an hour. If null, it costs the same as other cache
    writes."""
    reasoning_usd_per_mtok: Decimal | None = Field(default=None, ge=0)
    """Price of the tokens spent on thinking. If null, they cost the same as the rest of the answer."""


class LongPromptSettings(RateSettings):
    """Prices for calls with a long prompt. They apply to all tokens of such a call."""

    above_input_tokens: int = Field(ge=1)
    """Length of the prompt, in tokens, above which these prices apply."""


class PriceSettings(RateSettings):
    """Prices in US dollars per million tokens. A price in the settings takes precedence over the price table
    that ships with Podium.
    """

    long_prompts: tuple[LongPromptSettings, ...] = ()
    """Other prices for calls with long prompts. If several entries apply, the one with the highest threshold
    is used."""

    def to_price(self) -> Price:
        """Return the price as workers and ledgers use it."""
        tiers = tuple(LongPromptRates(**tier.model_dump()) for tier in self.long_prompts)
        return Price(**self.model_dump(exclude={"long_prompts"}), long_prompts=tiers)
