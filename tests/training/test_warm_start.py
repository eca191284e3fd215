import json
import random
from pathlib import Path
from statistics import mean
from tempfile import mkdtemp
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from conductor.model.worker import PoolMember
from conductor.plan.plan import Format
from conductor.run.plan_requests import parser
from evaluation.synthetic.skills import Skill
from tests.lazy import lazy
from tests.training.tiny_models import POOL, config
from training.exact_plan import is_exact_plan
from training.examples import DrawnPlan, Example, best, random_plan, subtask, success_rates
from training.run_dir import RunDir
from training.supervised_config import WarmStartConfig

TrainingRun = lazy("training.run:TrainingRun")

TEAM = [
    PoolMember(name, Skill(name, None), card)
    for name, card in (("a", "arithmetic: sums"), ("b", ""), ("c", "logic"))
]


@given(st.integers(0, 2**30), st.sampled_from(["steps", "lists"]), st.booleans(), st.integers(1, 3))
def test_every_plan_of_the_warm_start_is_valid_without_additional_text(
    seed: int, format: Format, names: bool, most: int
):
    config = WarmStartConfig(names=names, subtask="Do the {card} part.", step_shares=(0.4, 0.3, 0.3))
    text = random_plan(random.Random(seed), config, TEAM, most, format)
    reader = parser(format, ["a", "b", "c"], most)
    reader.feed(text)
    plan = reader.finish()
    assert plan is not None
    assert 1 <= len(plan.steps) <= most
    assert is_exact_plan(format, text, ["a", "b", "c"], most)


def test_workers_are_drawn_uniformly():
    rng, config = random.Random(0), WarmStartConfig(step_shares=(1.0,))
    drawn = [json.loads(random_plan(rng, config, TEAM, 3, "steps"))["worker"] for _ in range(3000)]
    assert all(900 < drawn.count(worker) < 1100 for worker in range(3))


def test_shares_apply_first_and_the_rest_is_uniform():
    rng, config = random.Random(0), WarmStartConfig(step_shares=(1.0,))
    texts = [random_plan(rng, config, TEAM, 3, "steps", shares={"b": 0.7}) for _ in range(3000)]
    drawn = [json.loads(text)["worker"] for text in texts]
    assert 2300 < drawn.count(1) < 2500  # 0.7, and a third of the other 0.3
    assert all(250 < drawn.count(worker) < 350 for worker in (0, 2))


def test_rewarded_examples_are_right_and_others_are_random(tmp_path: Path):
    assert share_right(drawn_examples(tmp_path, rewarded_share=1.0)) == 1.0
    assert 0.5 < share_right(drawn_examples(tmp_path, rewarded_share=0.5)) < 1.0


def test_the_example_is_the_first_cheapest_or_surest_right_plan():
    lucky, dear, cheap = (
        DrawnPlan("lucky", ("any",), True, 0.5),
        DrawnPlan("dear", ("one",), True, 0.2),
        DrawnPlan("cheap", ("two",), True, 0.1),
    )
    wrong = DrawnPlan("wrong", ("two",), False, 0.01)
    assert best([wrong, lucky, dear, cheap], {}, "first") is lucky
    rates = success_rates([wrong, lucky, dear, cheap])
    assert rates == {("two",): 0.5, ("any",): 1, ("one",): 1}
    assert best([wrong, lucky, dear, cheap], rates, "cheapest") is cheap
    assert best([wrong, lucky, dear, cheap], {("any",): 0.3, ("one",): 0.9, ("two",): 0.5}, "surest") is dear
    assert best([wrong, wrong], rates, "cheapest") is wrong
    unpriced = [DrawnPlan("a", ("two",), True), DrawnPlan("b", ("one",), True)]
    assert best(unpriced, rates, "cheapest").plan == "b"


def test_the_cheapest_right_plan_uses_the_specialist(tmp_path: Path):
    """A third worker does both kinds at ten times the price and is always right: `first` shows it, `cheapest` does
    not.
    """
    dear = """
  - {name: both, kind: python, factory: "evaluation.synthetic.skills:Skill", card: both,
     price: {input_usd_per_mtok: 10, output_usd_per_mtok: 10}}
models:"""
    priced = POOL.replace(
        "card: arith", "price: &p {input_usd_per_mtok: 1, output_usd_per_mtok: 1}, card: arith"
    )
    pool = priced.replace("card: strings", "price: *p, card: strings").replace("\nmodels:", dear)
    examples = {
        choose: drawn_examples(tmp_path, rewarded_share=1.0, pool=pool, choose=choose)
        for choose in ("first", "cheapest")
    }
    assert any("both" in each.plan for each in examples["first"])
    assert not any("both" in each.plan for each in examples["cheapest"])
    assert share_right(examples["cheapest"]) == 1.0


def test_the_same_config_gives_the_same_examples(tmp_path: Path):
    assert drawn_examples(tmp_path, rewarded_share=0.5) == drawn_examples(tmp_path, rewarded_share=0.5)


def drawn_examples(path: Path, pool: str = POOL, **warm: Any) -> list[Example]:
    run_config = config(path, pool, warm_start={"examples": 60, "best_of": 30} | warm)
    run = TrainingRun(run_config, RunDir.begin(Path(mkdtemp(dir=path)) / "run", run_config, resume=False))
    return run.examples()


def share_right(examples: list[Example]) -> float:
    """Return the share of plans (each names only its worker's card) that use the question's specialist."""
    about_strings = [
        any(word in each.prompt[-1]["content"] for word in ("spell", "Spell", "letters")) for each in examples
    ]
    return mean(
        about == ("strings" in each.plan) for about, each in zip(about_strings, examples, strict=True)
    )


def test_a_plan_may_repeat_the_parts_of_the_question():
    config = WarmStartConfig(matching_share=1.0, subtask="{part}")
    text = random_plan(random.Random(1), config, TEAM, 3, "steps", ["Spell it.", "Sort it."])
    assert [json.loads(line)["subtask"] for line in text.splitlines()] == ["Spell it.", "Sort it."]


def test_a_subtask_names_the_card_or_the_whole_question():
    config = WarmStartConfig(subtask="Do the {card} part.")
    assert subtask(config, "Arithmetic: sums") == "Do the arithmetic part."
    assert subtask(config, "") == "Answer the question."
    assert subtask(WarmStartConfig(subtask="{part}"), "x", "") == "Answer the question."
