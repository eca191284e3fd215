from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation.routing import cascade, factorisation, logistic

Floats = npt.NDArray[np.float64]


def numeric(of: Callable[[], float], weights: Floats, at: tuple[int, ...]) -> float:
    held = weights[at]
    values = []
    for shift in (1e-6, -1e-6):
        weights[at] = held + shift
        values.append(of())
    weights[at] = held
    return (values[0] - values[1]) / 2e-6


def two_kinds(n: int) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Questions of two kinds along the first axis; worker 0 can the one, worker 1 the other, worker 2 nothing."""
    rng = np.random.default_rng(0)
    x = rng.normal(0, 0.1, (n, 6))
    kind = np.arange(n) % 2 == 0
    x[:, 0] += np.where(kind, 1.0, -1.0)
    return x, np.stack([kind, ~kind, np.zeros(n, dtype=bool)], axis=1)


def test_the_gradients_of_the_factorisation_are_those_of_its_loss():
    rng = np.random.default_rng(1)
    weights = {
        "v": rng.normal(size=(3, 4)),
        "p": rng.normal(size=(4, 6)),
        "head": rng.normal(size=4),
        "bias": rng.normal(size=3),
    }
    x, right = two_kinds(5)
    pairs = factorisation.pairs_of(right)
    found = factorisation.gradients(weights, x, pairs)
    for name, gradient in found.items():
        at = tuple(size // 2 for size in gradient.shape)
        assert gradient[at] == pytest.approx(
            numeric(lambda: factorisation.loss(weights, x, pairs), weights[name], at), abs=1e-5
        )


def test_pairs_are_the_workers_of_whom_one_was_right():
    right = np.array([[True, False, True], [False, False, False]])
    assert factorisation.pairs_of(right).tolist() == [[0, 0, 1], [0, 2, 1]]


def test_the_factorisation_learns_who_can_what():
    x, right = two_kinds(200)
    rates = factorisation.fitted(x, right, seed=0, inner=8, epochs=20, batch=32, rate=0.02).win_rate(x, 0, 1)
    assert ((rates > 0.5) == right[:, 0]).mean() > 0.95


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50, unique=True), st.floats(0, 1))
def test_the_threshold_calls_the_strong_worker_for_its_share(rates: list[float], share: float):
    threshold = factorisation.threshold(np.array(rates), share)
    assert sum(rate >= threshold for rate in rates) == round(share * len(rates))


def test_a_router_keeps_to_its_target_and_takes_the_best_where_it_may():
    x, right = two_kinds(200)
    chances, usd = logistic.fitted(x, right).chances(x), np.array([4.0, 1.0, 0.0])
    free = logistic.chosen(chances, usd, 0.0)
    assert right[np.arange(200), free].mean() > 0.95
    factor = logistic.factor_for(chances, usd, 1.0)
    assert usd[logistic.chosen(chances, usd, factor)].mean() <= 1.0
    assert logistic.factor_for(chances, usd, 4.0) == 0.0
    unseen = logistic.out_of_fold(x, right, seed=0)
    assert right[np.arange(200), logistic.chosen(unseen, usd, 0.0)].mean() > 0.95
    with pytest.raises(ValueError, match="even the cheapest"):
        logistic.factor_for(chances, usd + 1, 0.5)


def test_the_gradients_of_the_cascade_are_those_of_its_loss():
    made = cascade.Cascade.new(6, tasks=2, modes=3, agents=4, workers=3, seed=2)
    for weights in made.weights.values():
        weights += np.random.default_rng(3).normal(0, 0.3, weights.shape)
    x, _ = two_kinds(4)
    tasks, advantages = np.array([0, 1, 0, 1]), np.array([0.5, -1.0, 2.0, 0.1])
    choices = [
        cascade.Choice(0, (1,)),
        cascade.Choice(2, (0, 0, 2)),
        cascade.Choice(1, (2, 1)),
        cascade.Choice(0, (1, 1)),
    ]
    found = made.gradients(x, tasks, choices, advantages)
    for name in ("mode", "count", "worker", "mode_bias", "worker_bias"):
        at = tuple(size // 2 for size in found[name].shape)
        expected = numeric(lambda: made.loss(x, tasks, choices, advantages), made.weights[name], at)
        assert found[name][at] == pytest.approx(expected, abs=1e-5), name
    of_labels = np.zeros(4)  # the task head learns from labels alone
    found = made.gradients(x, tasks, choices, of_labels)
    for name in ("task", "in", "in_bias"):
        at = tuple(size // 2 for size in found[name].shape)
        expected = numeric(lambda: made.loss(x, tasks, choices, of_labels), made.weights[name], at)
        assert found[name][at] == pytest.approx(expected, abs=1e-5), name


def test_the_cascade_learns_the_choice_that_is_rewarded():
    made = cascade.Cascade.new(6, tasks=2, modes=2, agents=2, workers=3, seed=0)
    x, right = two_kinds(400)
    tasks = right[:, 1].astype(np.int64)
    for _ in range(3):
        for start in range(0, 400, 16):
            part = slice(start, start + 16)
            walks = [made.walk(each, sample=True) for each in x[part]]
            rewards = np.array(
                [
                    float(right[start + i, w.workers[0]] and len(w.workers) == 1 and w.mode == 1)
                    for i, w in enumerate(walks)
                ]
            )
            made.learn(x[part], tasks[part], walks, rewards)
    told = [made.walk(each, sample=False) for each in x]
    assert (
        np.mean([right[i, w.workers[0]] and len(w.workers) == 1 and w.mode == 1 for i, w in enumerate(told)])
        > 0.9
    )


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=6), st.integers(1, 6))
def test_agents_are_spread_by_chance_and_all_are_given(chances: list[float], agents: int):
    given_out = cascade.spread(np.array(chances) / sum(chances), agents)
    assert len(given_out) == agents
    assert set(given_out) <= set(range(len(chances)))
