"""Money of the store: whole pico-dollars (1e-12), which 64 bits hold up to 9.2 million dollars.

Every list price has at most six decimals a million tokens, so what a call costs is a whole number of them. A
fraction, as of a derived price, counts as a whole one: never too little.
"""

from decimal import Context, Decimal

PICO_PER_USD = 10**12
MAX_PICO = 2**63 - 1
EXACT = Context(prec=40)
"""More digits than an amount has, whatever precision somebody has given this thread."""
MAX_USD = EXACT.scaleb(Decimal(MAX_PICO), -12)


def to_pico(usd: Decimal) -> int:
    """`usd` in pico-dollars, rounded up.

    Raises:
        ValueError: it is no amount: negative, not finite, or above what the store can count.
    """
    if not usd.is_finite() or usd < 0 or usd > MAX_USD:
        raise ValueError(f"is no amount from 0 to {MAX_USD:f} dollars")
    if usd and usd.adjusted() < -12:  # below one, however many digits it has
        return 1
    numerator, denominator = usd.as_integer_ratio()
    return -(-numerator * PICO_PER_USD // denominator)


def to_usd(pico: int) -> Decimal:
    """Pico-dollars as dollars, exactly."""
    return EXACT.add(EXACT.normalize(EXACT.scaleb(Decimal(pico), -12)), 0)
