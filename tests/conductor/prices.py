"""Hypothesis strategies for prices and usages."""

from decimal import Decimal

from hypothesis import strategies as st

from conductor.model.usage import LongPromptRates, Price, Usage

rates = st.integers(0, 10**9).map(lambda millionths: Decimal(millionths) / 10**6)
"""USD per million tokens, with the decimals of a price list."""
ALL_RATES = (rates, rates, *[st.none() | rates] * 4)


@st.composite
def possible_usages(draw: st.DrawFn, most_in: int = 10**6, most_out: int = 10**6) -> Usage:
    """Draw a usage in which no part exceeds its total."""
    input_tokens, output_tokens = draw(st.integers(0, most_in)), draw(st.integers(0, most_out))
    cached = draw(st.integers(0, input_tokens))
    cache_write_tokens = draw(st.integers(0, input_tokens - cached))
    return Usage(
        input_tokens,
        output_tokens,
        cached,
        draw(st.integers(0, output_tokens)),
        cache_write_tokens,
        draw(st.integers(0, cache_write_tokens)),
    )


prices = st.builds(
    Price,
    *ALL_RATES,
    st.lists(st.builds(LongPromptRates, *ALL_RATES, st.integers(0, 10**6)), max_size=3).map(tuple),
)
