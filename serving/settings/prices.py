"""What the tokens of a worker cost, as the settings say it."""

from decimal import Decimal

from pydantic import Field

from conductor.model.usage import LongPromptRates, Price
from serving.settings.access import Frozen


class RateSettings(Frozen):
    """Dollars per million tokens."""

    input_usd_per_mtok: Decimal = Field(ge=0)
    """Of the prompt."""
    output_usd_per_mtok: Decimal = Field(ge=0)
    """Of the answer, thoughts included."""
    cached_input_usd_per_mtok: Decimal | None = Field(default=None, ge=0)
    """Of the part of the prompt that comes from the provider's cache. null: as the rest of it."""
    cache_write_usd_per_mtok: Decimal | None = Field(default=None, ge=0)
    """Of the part that is written to it. null: as the rest of it."""
    cache_write_1h_usd_per_mtok: Decimal | None = Field(default=None, ge=0)
    """Of what is written to be kept for an hour. null: as other writes."""
    reasoning_usd_per_mtok: Decimal | None = Field(default=None, ge=0)
    """Of thoughts. null: as the rest of the answer."""


class LongPromptSettings(RateSettings):
    """What all tokens of a call cost whose prompt is long."""

    above_input_tokens: int = Field(ge=1)
    """Longer than this."""


class PriceSettings(RateSettings):
    """Dollars per million tokens. A price here is used in place of the packaged price table's."""

    long_prompts: tuple[LongPromptSettings, ...] = ()
    """Other rates for calls with long prompts; of several, those of the highest threshold that is passed."""

    def to_price(self) -> Price:
        """As workers and ledgers take it."""
        tiers = tuple(LongPromptRates(**tier.model_dump()) for tier in self.long_prompts)
        return Price(**self.model_dump(exclude={"long_prompts"}), long_prompts=tiers)
