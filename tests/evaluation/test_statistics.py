import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.aggregate import percentiles
from evaluation.statistics import accuracy, bootstrap_difference, pareto

RIGHTS = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60)


def test_the_standard_error_of_an_accuracy_is_binomial():
    estimate = accuracy([True] * 64 + [False] * 36)
    assert (estimate.mean, estimate.standard_error) == (0.64, pytest.approx(0.048))  # sqrt(.64 * .36 / 100)
    assert (estimate.low, estimate.high) == (
        pytest.approx(0.5424, abs=1e-4),
        pytest.approx(0.7273, abs=1e-4),
    )  # Wilson interval by hand


def test_a_perfect_accuracy_still_has_an_interval():
    estimate = accuracy([True] * 10)
    assert (estimate.standard_error, estimate.high) == (0, pytest.approx(1))
    assert estimate.low == pytest.approx(0.7225, abs=1e-4)  # 1 / (1 + 1.96² / 10)


def test_the_accuracy_over_no_questions_is_not_a_number():
    assert math.isnan(accuracy([]).mean)


def test_a_strategy_does_not_differ_from_itself():
    same = [True, False, True]
    difference = bootstrap_difference(same, same)
    assert (difference.mean, difference.low, difference.high, difference.p) == (0, 0, 0, 1)


def test_a_strategy_that_is_right_whenever_the_other_is_wrong_is_significantly_better():
    difference = bootstrap_difference([True] * 50, [False] * 50, resamples=999)
    assert (difference.mean, difference.low, difference.high, difference.p) == (1, 1, 1, 2 / 1000)


def test_for_many_questions_the_interval_is_that_of_the_normal_distribution():
    first, second = [True] * 600 + [False] * 400, [False] * 200 + [True] * 400 + [False] * 400
    difference = bootstrap_difference(first, second)
    error = math.sqrt((0.2 - 0.2**2) / 1000)  # 200 wins, 800 ties
    assert difference.mean == 0.2
    assert (difference.low, difference.high) == (
        pytest.approx(0.2 - 1.96 * error, abs=2e-3),
        pytest.approx(0.2 + 1.96 * error, abs=2e-3),
    )


@given(RIGHTS)
def test_swapping_the_two_strategies_negates_the_difference(pairs: list[tuple[bool, bool]]):
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    one, other = (
        bootstrap_difference(first, second, resamples=400),
        bootstrap_difference(second, first, resamples=400),
    )
    assert one.mean == -other.mean
    assert one.low - 1e-9 <= one.mean <= one.high + 1e-9 or abs(one.mean) < 0.1 or len(pairs) < 30
    assert 0 < one.p <= 1


@given(RIGHTS, st.randoms())
def test_question_order_and_repetition_do_not_change_the_estimate(
    pairs: list[tuple[bool, bool]], random: object
):
    shuffled = sorted(pairs)
    estimates = [
        bootstrap_difference([a for a, _ in each], [b for _, b in each], 3, 300)
        for each in (pairs, shuffled, pairs)
    ]
    assert estimates[0] == estimates[1] == estimates[2]


def test_answers_of_different_questions_cannot_be_paired():
    with pytest.raises(ValueError, match="cannot be paired"):
        bootstrap_difference([True], [True, False])


def test_a_percentile_is_the_nearest_rank():
    assert percentiles([4, 1, 3, 2]) == {"p50": 2, "p95": 4}
    assert percentiles([3, 1, 2]) == {"p50": 2, "p95": 3}
    assert percentiles([*range(1, 101)]) == {"p50": 50, "p95": 95}
    assert percentiles([]) == {"p50": None, "p95": None}


def test_the_pareto_front_omits_dominated_points():
    assert pareto([(1, 0.5), (2, 0.4), (2, 0.7), (3, 0.7), (0.5, 0.1)]) == [4, 0, 2]


@given(st.lists(st.tuples(st.floats(0, 9), st.floats(0, 1)), max_size=20))
def test_a_point_is_on_the_front_exactly_if_none_dominates_it(points: list[tuple[float, float]]):
    front = pareto(points)

    def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
        return one[0] <= other[0] and one[1] >= other[1] and one != other

    assert not any(beats(points[i], points[j]) for i in range(len(points)) for j in front)
    front_points = {points[j] for j in front}
    assert all(any(beats(points[j], p) for j in front) or p in front_points for p in points)
