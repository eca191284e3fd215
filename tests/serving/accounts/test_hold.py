"""Admission of holds, property-tested without a database."""

from hypothesis import given
from hypothesis import strategies as st

from serving.accounts.hold import HoldRequest, Window, days_and_months, decide, sums

AMOUNTS = st.integers(0, 100)
REQUESTS = st.lists(
    st.builds(
        HoldRequest, st.uuids().map(str), st.just("r"), st.just(1), st.sampled_from("ab"), st.sampled_from(["t", None]),
        st.just(1), st.just(1), st.just("w"), AMOUNTS, st.just("o"), st.just(0), st.booleans(),
    ),
    unique_by=lambda request: request.id,
    max_size=12,
)  # fmt: skip


@st.composite
def hold_cases(draw: st.DrawFn) -> tuple[list[HoldRequest], dict[object, Window]]:
    requests = draw(REQUESTS)
    caps = st.one_of(st.none(), st.integers(0, 200))
    return requests, {id: Window(draw(caps), draw(AMOUNTS), draw(AMOUNTS)) for id in sums(requests)}


@given(hold_cases())
def test_a_hold_succeeds_exactly_if_it_fits_every_window(
    case: tuple[list[HoldRequest], dict[object, Window]],
) -> None:
    requests, windows = case
    holds = {id: window.held for id, window in windows.items()}
    for request, refusal in zip(requests, decide(requests, windows), strict=True):  # pyright: ignore[reportArgumentType]
        caps = {id: windows[id].cap for id in request.windows}
        rooms = {id: cap - windows[id].spent - holds[id] for id, cap in caps.items() if cap is not None}
        fits = all(request.amount <= room for room in rooms.values()) and not (request.is_unpriced and rooms)
        assert (refusal is None) == fits
        if refusal is None:
            holds |= {id: holds[id] + request.amount for id in request.windows}
        else:
            assert rooms[refusal.id] == min(rooms.values()) == refusal.window.room


def test_days_and_months_are_counted_in_utc_from_1970() -> None:
    day_us = 86_400_000_000
    assert days_and_months(0) == (0, 0)
    assert days_and_months(31 * day_us - 1) == (30, 0)
    assert days_and_months(31 * day_us) == (31, 1)
    assert days_and_months(365 * day_us) == (365, 12)
