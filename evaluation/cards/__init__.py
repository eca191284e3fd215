"""Cards written from measurements. A card tells the conductor what a worker is best and worst at.

    pool = "recorded:FILE?part=train"
    write_recorded_cards(pool)  # by model: best at ... (96 %); worst at ... (41 %); 81 % of 300 overall
    write_recorded_cards(pool, random.Random(7))
    vary_card(measure_recorded(pool)["openai_o3-mini"], random.Random(7), ["80 tokens/s"])

With a random generator, the wording varies. This is for a conductor that learns to read cards.
"""

from evaluation.cards.measurement import CardMeasurement, measure_recorded
from evaluation.cards.wording import can_write, vary_card, write_card, write_recorded_cards

__all__ = [
    "CardMeasurement",
    "can_write",
    "measure_recorded",
    "vary_card",
    "write_card",
    "write_recorded_cards",
]
