"""Amounts of money in the store: whole pico-dollars (1e-12 USD), which 64 bits hold up to 9.2 million
dollars.

List prices have at most six decimals per million tokens, so costs are whole numbers of pico-dollars.
Fractions, as of derived prices, are rounded up.
"""

from decimal import Context, Decimal

PICO_PER_USD = 10**12
MAX_PICO = 2**63 - 1
EXACT = Context(prec=40)
"""Context with more digits than any amount has, independent of the thread's precision."""
MAX_USD = EXACT.scaleb(Decimal(MAX_PICO), -12)


def to_pico(usd: Decimal) -> int:
    """Return `usd` in pico-dollars, rounded up.

    Raises:
        ValueError: the amount is negative, not finite, or above what the store can count.
    """
    if not usd.is_finite() or usd < 0 or usd > MAX_USD:
        raise ValueError(f"is not an amount from 0 to {MAX_USD:f} dollars")
    if usd and usd.adjusted() < -12:  # less than 1, and may have any number of digits
        return 1
    numerator, denominator = usd.as_integer_ratio()
    return -(-numerator * PICO_PER_USD // denominator)


def to_usd(pico: int) -> Decimal:
    """Return pico-dollars as dollars, exactly."""
    return EXACT.add(EXACT.normalize(EXACT.scaleb(Decimal(pico), -12)), 0)
