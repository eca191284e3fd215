"""Amounts of money in the store, as whole pico-dollars (1e-12 USD).

The maximum is 9.2 million dollars, because the columns have 64 bits.

List prices have at most six decimals per million tokens, so the cost of a call is a whole number of
pico-dollars. Fractions can result from derived prices, and are rounded up.
"""

from decimal import Context, Decimal

PICO_PER_USD = 10**12
MAX_PICO = 2**63 - 1
EXACT = Context(prec=40)
"""Context with more digits than any amount has. It does not depend on the precision of the current thread."""
MAX_USD = EXACT.scaleb(Decimal(MAX_PICO), -12)


def to_pico(usd: Decimal) -> int:
    """Return `usd` in pico-dollars, rounded up. Raise ValueError if it is not in 0 to `MAX_USD`."""
    if not usd.is_finite() or usd < 0 or usd > MAX_USD:
        raise ValueError(f"must be between 0 and {MAX_USD:f} dollars")
    if usd and usd.adjusted() < -12:  # less than 1, and may have any number of digits
        return 1
    numerator, denominator = usd.as_integer_ratio()
    return -(-numerator * PICO_PER_USD // denominator)


def to_usd(pico: int) -> Decimal:
    return EXACT.add(EXACT.normalize(EXACT.scaleb(Decimal(pico), -12)), 0)
