import json
import random
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conductor.formats import Format, parser
from conductor.worker import Member
from evaluation.synthetic.skills import Skill
from training.config import WarmStartConfig
from training.strict import nothing_else
from training.warm_start import IGNORED, drill, random_plan, subtask, weighted_loss

TEAM = [
    Member(name, Skill(name, None), card)
    for name, card in (("a", "arithmetic: sums"), ("b", ""), ("c", "logic"))
]


@settings(deadline=None)
@given(st.integers(0, 2**30), st.sampled_from(["steps", "lists"]), st.booleans(), st.integers(1, 3))
def test_every_plan_of_the_warm_start_can_run_and_has_nothing_beside_it(
    seed: int, format: Format, names: bool, most: int
):
    config = WarmStartConfig(names=names, subtask="Do the {card} part.", step_shares=(0.4, 0.3, 0.3))
    text = random_plan(random.Random(seed), config, TEAM, most, format)
    reader = parser(format, ["a", "b", "c"], most)
    reader.feed(text)
    plan = reader.finish()
    assert plan is not None
    assert 1 <= len(plan.steps) <= most
    assert nothing_else(format, text, ["a", "b", "c"], most)


def test_workers_are_drawn_alike_so_that_nothing_is_said_about_who_is_right():
    rng, config = random.Random(0), WarmStartConfig(step_shares=(1.0,))
    drawn = [json.loads(random_plan(rng, config, TEAM, 3, "steps"))["worker"] for _ in range(3000)]
    assert all(900 < drawn.count(worker) < 1100 for worker in range(3))


def test_a_plan_may_restate_the_parts_of_the_question_and_have_as_many_steps():
    config = WarmStartConfig(matching_share=1.0, subtask="{part}")
    text = random_plan(random.Random(1), config, TEAM, 3, "steps", ["Spell it.", "Sort it."])
    assert [json.loads(line)["subtask"] for line in text.splitlines()] == ["Spell it.", "Sort it."]


def test_a_subtask_speaks_of_the_card_or_of_the_whole_where_there_is_none():
    config = WarmStartConfig(subtask="Do the {card} part.")
    assert subtask(config, "Arithmetic: sums") == "Do the arithmetic part."
    assert subtask(config, "") == "Answer the question."
    assert subtask(WarmStartConfig(subtask="{part}"), "x", "") == "Answer the question."


def test_a_drill_names_everybody_once_with_the_number_of_their_card():
    lines = [
        json.loads(line)
        for line in drill(random.Random(0), WarmStartConfig(subtask="{card}"), TEAM, "steps").splitlines()
    ]
    assert sorted((line["worker"], line["subtask"]) for line in lines) == [
        (0, "arithmetic"),
        (1, "Answer the question."),
        (2, "logic"),
    ]


def test_the_loss_is_the_weighted_mean_worked_by_hand():
    probabilities = torch.tensor(
        [[[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6], [1 / 3, 1 / 3, 1 / 3]]]
    )
    tokens = torch.tensor([[2, 1, 1, IGNORED]])  # after the first: .25 at weight .3, .8 at weight 1, padding
    weights = torch.tensor([[300, 300, 1000, 0]])
    loss = weighted_loss(SimpleNamespace(logits=probabilities.log()), torch.stack([tokens, weights], -1))
    by_hand = -(0.3 * torch.tensor(0.25).log() + 1.0 * torch.tensor(0.8).log()) / 1.3
    assert loss.item() == pytest.approx(by_hand.item(), abs=1e-6)
