"""Replays of recorded answers as conversations."""

import gzip
import json
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from conductor.model.usage import Price
from conductor.model.worker import PoolMember
from evaluation import EvaluationError
from evaluation.recordings import key_of, side_of
from evaluation.stickiness import (
    STICKINESS,
    TURNS,
    Conversations,
    Questions,
    choices,
    interval,
    largest_harmless,
    mean_usd,
    read_prices,
    read_side,
    rows_of,
)
from tests.conductor.team import Player

SONNET = Price(Decimal(3), Decimal(15), Decimal("0.3"), Decimal("3.75"))
OPUS = Price(Decimal(5), Decimal(25), Decimal("0.5"), Decimal("6.25"))
POOL = {name: PoolMember(name, Player(name), price=price) for name, price in (("a", SONNET), ("b", OPUS))}
# Worker a is right on even questions, and b on odd ones.
QUESTIONS = Questions(
    [f"question {n}" for n in range(40)],
    ["sums" if n % 2 == 0 else "words" for n in range(40)],
    np.full(40, 100),
    np.array([[n % 2 == 0, n % 2 == 1] for n in range(40)]),
    np.full((40, 2), 50),
)
RIGHT = np.arange(40) % 2
REPLAYS = Conversations(QUESTIONS, POOL, np.array([0, 0]), context_tokens=20_000)


def test_a_conversation_keeps_its_category_unless_it_changes() -> None:
    for change, expected in ((0.0, 1), (1.0, 2)):
        for drawn in REPLAYS.draw(20, change, seed=1):
            assert len(drawn) == TURNS
            assert len({QUESTIONS.categories[question] for question in drawn}) == expected
    again = [drawn.tolist() for drawn in REPLAYS.draw(5, 0.3, seed=1)]
    assert again == [drawn.tolist() for drawn in REPLAYS.draw(5, 0.3, seed=1)]


def test_a_replay_costs_the_price_of_its_tokens() -> None:
    rights, usd, switches = REPLAYS.replay(np.array([0, 2]), RIGHT, 1.0)
    first = 20_100 * Decimal("3.75") + 50 * 15
    second = 20_100 * Decimal("0.3") + 150 * Decimal("3.75") + 50 * 15
    assert (rights, usd, switches) == (2, (first + second) / 10**6, 0)


def test_stickiness_0_follows_the_router_and_infinity_the_first_worker() -> None:
    conversation = np.array([0, 1, 2, 3])
    assert REPLAYS.replay(conversation, RIGHT, 0.0)[::2] == (4, 3)
    rights, usd, switches = REPLAYS.replay(conversation, RIGHT, float("inf"))
    assert (rights, switches) == (2, 0)
    assert usd < REPLAYS.replay(conversation, RIGHT, 0.0)[1]


def test_the_rows_show_the_cost_of_stickiness() -> None:
    rows = rows_of(REPLAYS, RIGHT, 30, seed=0)
    by_case = {(row["change"], row["stickiness"]): row for row in rows}
    assert {row["right"] for row in rows if row["stickiness"] == 0} == {1.0}
    assert {row["right"] for row in rows if row["change"] == 0} == {1.0}
    assert by_case[1.0, float("inf")]["high"] < 0
    assert by_case[1.0, float("inf")]["switches"] == 0
    assert largest_harmless(rows) < max(STICKINESS)
    assert largest_harmless([row for row in rows if row["change"] == 0]) == max(STICKINESS)


def test_the_interval_contains_the_mean() -> None:
    values = np.random.default_rng(0).normal(0.1, 0.3, 200)
    low, high = interval(values, seed=0)
    assert low < values.mean() < high
    assert interval(np.zeros(5), seed=0) == (0, 0)


def test_both_routers_choose_among_all_workers() -> None:
    usd_W = mean_usd(QUESTIONS, {"a": SONNET, "b": OPUS}, np.array([0, 0]))
    assert usd_W == pytest.approx([(100 * 3 + 50 * 15) / 1e6, (100 * 5 + 50 * 25) / 1e6])
    axis = {text: 1.0 if n % 2 == 0 else -1.0 for n, text in enumerate(QUESTIONS.texts)}
    chosen = choices(
        QUESTIONS,
        QUESTIONS,
        usd_W,
        lambda texts: np.array([[axis[text]] for text in texts]),  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType, reportUnknownVariableType]
        seed=0,
    )
    assert chosen["oracle"].tolist() == RIGHT.tolist()
    assert len(chosen["router"]) == 40


def test_the_recorded_pools_parts_and_prices_are_parsed(tmp_path: Path) -> None:
    prices, reasoning_W = read_prices()
    assert prices["anthropic_claude-sonnet-4"] == SONNET
    assert prices["google_gemma-3-27b-it"].cached == prices["google_gemma-3-27b-it"].input_usd_per_mtok
    assert reasoning_W[list(prices).index("openai_o3-mini")] == 5_000
    rows = [
        {"category": "sums", "dataset": "d", "question": f"What is {n} + 1?", "expected": "", "models": {"a": {"s": 1.0, "a": "x", "n": 9}, "b": {"s": 0.5, "a": None}}}
        for n in range(20)
    ]  # fmt: skip
    path = tmp_path / "pool.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    test = read_side(path, "test", ["a", "b"])
    assert test.texts == [row["question"] for row in rows if side_of(key_of(str(row["question"]))) == "test"]
    assert test.right_Q_W.all(axis=0).tolist() == [True, False]
    assert test.shown_Q_W[0].tolist() == [3, 0]
    with pytest.raises(EvaluationError, match="no questions of the side test"):
        read_side(path, "test", ["a", "c"])
