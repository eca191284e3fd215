import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lazy import lazy

torch = lazy("torch")
cascade = lazy("evaluation.routing.cascade")
factorisation = lazy("evaluation.routing.factorisation")
logistic = lazy("evaluation.routing.logistic")


Floats = npt.NDArray[np.float64]


def two_kinds(n: int) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Return questions of two kinds along the first axis. Worker 0 answers one kind, worker 1 the other, worker 2
    none.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(0, 0.1, (n, 6))
    kind = np.arange(n) % 2 == 0
    x[:, 0] += np.where(kind, 1.0, -1.0)
    return x, np.stack([kind, ~kind, np.zeros(n, dtype=bool)], axis=1)


def test_win_pairs_contain_exactly_one_correct_worker():
    right = np.array([[True, False, True], [False, False, False]])
    assert factorisation.win_pairs(right).tolist() == [[0, 0, 1], [0, 2, 1]]


def test_the_score_follows_the_formula():
    rng = np.random.default_rng(1)
    model = factorisation.Factorisation(inputs=6, workers=3, inner=4, rng=rng)
    x, (v, p, head, bias) = rng.normal(size=6), [each.detach().numpy() for each in model.parameters()]
    by_hand = [head @ (v[w] / np.linalg.norm(v[w]) * (p @ x)) + bias[w] for w in range(3)]
    assert model(torch.from_numpy(x)[None])[0].tolist() == pytest.approx(by_hand)
    assert model.win_rate(x[None], 0, 1)[0] == pytest.approx(1 / (1 + np.exp(by_hand[1] - by_hand[0])))


def test_the_factorisation_learns_which_worker_solves_which_kind():
    x, right = two_kinds(200)
    rates = factorisation.fit(x, right, seed=0, inner=8, epochs=20, batch=32, rate=0.02).win_rate(x, 0, 1)
    assert ((rates > 0.5) == right[:, 0]).mean() > 0.95


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50, unique=True), st.floats(0, 1))
def test_the_threshold_sends_the_configured_share_to_the_strong_worker(rates: list[float], share: float):
    threshold = factorisation.threshold(np.array(rates), share)
    assert sum(rate >= threshold for rate in rates) == round(share * len(rates))


def test_a_router_meets_its_cost_target_and_otherwise_chooses_the_best():
    x, right = two_kinds(200)
    chances, usd = logistic.fit(x, right).chances(x), np.array([4.0, 1.0, 0.0])
    free = logistic.choose(chances, usd, 0.0)
    assert right[np.arange(200), free].mean() > 0.95
    factor = logistic.factor_for(chances, usd, 1.0)
    assert usd[logistic.choose(chances, usd, factor)].mean() <= 1.0
    assert logistic.factor_for(chances, usd, 4.0) == 0.0
    unseen = logistic.out_of_fold(x, right, seed=0)
    assert right[np.arange(200), logistic.choose(unseen, usd, 0.0)].mean() > 0.95
    with pytest.raises(ValueError, match="even the cheapest"):
        logistic.factor_for(chances, usd + 1, 0.5)


def test_the_task_head_learns_only_from_labels_and_the_others_only_from_rewards():
    heads = cascade.Cascade(6, tasks=2, modes=3, agents=4, workers=3, seed=2)
    x, _ = two_kinds(2)
    choices = [cascade.TeamChoice(0, (1,)), cascade.TeamChoice(2, (0, 0, 2))]

    def gradients(tasks: list[int], advantages: list[float]) -> "dict[str, torch.Tensor]":
        heads.zero_grad()
        heads.loss(x, np.array(tasks), choices, np.array(advantages)).backward()
        return {name: each.grad.clone() for name, each in heads.named_parameters() if each.grad is not None}

    one, other_reward, other_label = (
        gradients([0, 1], [0.5, -1.0]),
        gradients([0, 1], [2.0, 0.1]),
        gradients([1, 1], [0.5, -1.0]),
    )
    for head, differs in (
        ("task", other_label),
        ("mode", other_reward),
        ("count", other_reward),
        ("worker", other_reward),
    ):
        same = other_reward if differs is other_label else other_label
        assert torch.equal(one[f"{head}.weight"], same[f"{head}.weight"]), head
        assert not torch.allclose(one[f"{head}.weight"], differs[f"{head}.weight"]), head


def test_the_loss_is_the_sum_of_all_choices():
    heads = cascade.Cascade(6, tasks=2, modes=2, agents=2, workers=4, seed=0)
    for name, weights in heads.named_parameters():
        if not name.startswith("hidden"):
            weights.data.zero_()  # gives all choices of a head the same probability
    x, _ = two_kinds(1)
    loss = heads.loss(x, np.array([0]), [cascade.TeamChoice(1, (3, 3))], np.array([2.0]))
    assert loss.item() == pytest.approx(np.log(2) + 2.0 * (np.log(2) + np.log(2) + 2 * np.log(4)))


def test_the_cascade_learns_the_rewarded_choice():
    heads = cascade.Cascade(6, tasks=2, modes=2, agents=2, workers=3, seed=0)
    x, right = two_kinds(400)
    tasks = right[:, 1].astype(np.int64)

    def reward(at: int, choice: "cascade.TeamChoice") -> float:
        return float(right[at, choice.workers[0]] and len(choice.workers) == 1 and choice.mode == 1)

    for _ in range(3):
        for start in range(0, 400, 16):
            part = slice(start, start + 16)
            walks = [heads.walk(each, sample=True) for each in x[part]]
            rewards = np.array([reward(start + i, walk) for i, walk in enumerate(walks)])
            heads.learn(x[part], tasks[part], walks, rewards)
    assert np.mean([reward(i, heads.walk(each, sample=False)) for i, each in enumerate(x)]) > 0.9


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=6), st.integers(1, 6))
def test_agents_are_distributed_by_probability(chances: list[float], agents: int):
    team = cascade.spread(np.array(chances) / sum(chances), agents)
    assert len(team) == agents
    assert set(team) <= set(range(len(chances)))
