"""Exact money amounts in whole pico-dollars, rounded up."""

from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.model.usage import Price, Usage
from serving.accounts.money import MAX_PICO, MAX_USD, to_pico, to_usd

RATES = st.decimals(0, 1000, places=6, allow_nan=False)
TOKENS = st.integers(0, 2_000_000)


@given(st.integers(0, MAX_PICO))
def test_every_stored_amount_round_trips(pico: int) -> None:
    assert to_pico(to_usd(pico)) == pico


def test_the_threads_decimal_precision_does_not_change_amounts() -> None:
    with localcontext(prec=6):
        assert to_usd(12_000_000_000_001) == Decimal("12.000000000001")
        assert to_pico(Decimal("12.000000000001")) == 12_000_000_000_001


@given(st.decimals(0, 1_000_000, allow_nan=False, allow_infinity=False))
def test_a_fraction_of_a_pico_dollar_is_rounded_up(usd: Decimal) -> None:
    pico = to_pico(usd)
    assert to_usd(pico) >= usd
    assert pico == 0 or to_usd(pico - 1) < usd


@given(RATES, RATES, TOKENS, TOKENS)
def test_a_calls_cost_at_list_price_is_exact(fresh: Decimal, out: Decimal, read: int, written: int) -> None:
    cost_usd = Price(fresh, out).of(Usage(read, written))
    assert to_usd(to_pico(cost_usd)) == cost_usd


@pytest.mark.parametrize("text", ["-0.01", "NaN", "Infinity", "1e30", str(MAX_USD + 1)])
def test_an_invalid_amount_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="must be between 0 and"):
        to_pico(Decimal(text))


def test_a_number_with_a_million_digits_is_converted_quickly() -> None:
    assert to_pico(Decimal("1e-999999")) == 1
    assert to_pico(Decimal("0e-999999")) == to_pico(Decimal("0e999999")) == 0
