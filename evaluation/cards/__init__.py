"""Cards written from measurements. A card tells the conductor what a worker is best and worst at.

    measured = measure_recorded("recorded:FILE?part=train")["openai_o3-mini"]
    write_card(measured)  # best at ... (96 %); worst at ... (41 %); 81 % of 300 overall
    vary_card(measured, random.Random(7))

`vary_card` varies the wording. This is for a conductor that learns to read cards.
"""

from evaluation.cards.measurement import CardMeasurement, measure_recorded
from evaluation.cards.wording import can_write, vary_card, write_card

__all__ = ["CardMeasurement", "can_write", "measure_recorded", "vary_card", "write_card"]
