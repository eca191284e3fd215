"""Cards from measurements: what a worker is best and worst at, as a conductor reads it.

measured = measure_recorded("recorded:FILE?part=train")["openai_o3-mini"]
write_card(measured)                    # best at ... (96 %); worst at ... (41 %); 81 % of 300 overall
vary_card(measured, random.Random(7))   # the same in other words, for a conductor that learns to read cards
"""

from evaluation.cards.measurement import Measurement, measure_recorded
from evaluation.cards.wording import can_write, vary_card, write_card

__all__ = ["Measurement", "can_write", "measure_recorded", "vary_card", "write_card"]
