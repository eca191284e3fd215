"""Curriculum: its requests, its held-out part, and that its best plans give right answers."""

import asyncio
import random
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.plan.grammars import grammar
from tests.lazy import lazy
from tests.training.tiny_models import config
from training.curriculum.materials import FOLDER, HELD_OUT_DOMAINS, SMALL_TALK, Side, load
from training.curriculum.questions import RequestQuestion, lesson, request_questions
from training.curriculum.relevance import is_about, own_words
from training.curriculum.requests import SHARES, fill
from training.curriculum.teams import CHECKS_WELL, SIZES
from training.curriculum.verdicts import MAX_STEPS, judge
from training.examples import format_plan
from training.plan_runner import PlanRunner
from training.policy_eval import score_plan
from training.run_dir import RunDir

xgrammar = lazy("xgrammar")
accepts = lazy("xgrammar.testing:_is_grammar_accept_string")
TrainingRun = lazy("training.run:TrainingRun")

FIELDS = ("subtask", "worker", "access")
DRAWN: dict[Side, int] = {"train": 1500, "held_out": 900}


@cache
def _drawn(side: Side) -> list[RequestQuestion]:
    return request_questions(2, DRAWN[side])


def drawn(count: int, side: Side = "train") -> list[RequestQuestion]:
    """Return the first `count` requests of a seed, cached for all tests, because each takes milliseconds."""
    return _drawn(side)[:count]


def topics() -> set[str]:
    """Return the names of the narrow topics."""
    return {each.domain for each in load("train").topics}


def best_text(question: RequestQuestion) -> str:
    return format_plan(lesson(question)[0], "steps", FIELDS)


def test_the_curriculum_has_at_least_60_domains_60_phrasings_and_15_cards():
    sides = [load("train"), load("held_out")]
    names = (sides[0].domains.keys() | sides[1].domains.keys()) - topics()
    assert len(names) >= 60
    for name in names:
        both = [side.domains[name] for side in sides if name in side.domains]
        assert len({text for domain in both for text in domain.phrasings}) >= 60, name
        assert len({card for domain in both for card in domain.cards}) >= 15, name
    for role in {role.role for side in sides for role in side.roles}:
        cards = {card for side in sides for each in side.roles if each.role == role for card in each.cards}
        assert len(cards) >= 15, role


def test_topics_are_for_training_only_and_make_up_half_of_the_domains():
    train, held_out = load("train"), load("held_out")
    assert len(topics()) >= 400
    assert not held_out.topics
    assert not topics() & held_out.domains.keys()
    for topic in train.topics:
        assert len(set(topic.cards)) >= 8, topic.domain
        assert len(set(topic.phrasings)) >= 12, topic.domain
        assert len({topic.what, *topic.names}) >= 3, topic.domain
        assert topic.parts, topic.domain
        assert all("{it}" in text for text in topic.then), topic.domain
        for other in topic.near:
            assert topic.domain in train.domains[other].near, (topic.domain, other)
    domains = [part.domain for each in drawn(400) for part in each.request.parts]
    assert 0.35 < sum(name in topics() for name in domains) / len(domains) < 0.6
    mates = [mate for question in drawn(600) for mate in question.team.mates if mate.kind == "specialist"]
    assert 0.35 < sum(mate.can <= topics() for mate in mates) / len(mates) < 0.65


def test_no_topic_overlaps_a_held_out_domain():
    held_out = load("held_out").domains
    words_by_domain = {name: _words(held_out[name].what) for name in HELD_OUT_DOMAINS}
    for topic in load("train").topics:
        for what in (topic.what, *topic.names):
            assert not [name for name, words in words_by_domain.items() if len(words & _words(what)) > 1], (
                topic.domain
            )


def _words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]{4,}", text.lower())) - {"with", "from", "into"}


def test_no_team_member_can_do_another_specialists_work():
    for question in drawn(500):
        for mate in question.team.mates:
            others = [each for each in question.team.mates if each.can != mate.can]
            assert not any(mate.can & (each.can | each.might) for each in others)


def test_held_out_domains_and_cards_are_not_trained():
    train, held_out = load("train"), load("held_out")
    assert not train.domains.keys() & HELD_OUT_DOMAINS
    assert held_out.domains.keys() >= HELD_OUT_DOMAINS
    for name in train.domains.keys() - topics():
        domain, other = train.domains[name], held_out.domains[name]
        for texts in ("phrasings", "parts", "then"):
            assert not set(getattr(domain, texts)) & set(getattr(other, texts)), name
        assert len(set(domain.phrasings)) >= (100 if name != SMALL_TALK else 40), name
        assert not set(domain.cards) & set(other.cards)
        assert not {turns[-1] for turns in domain.conversations} & {
            turns[-1] for turns in other.conversations
        }
    cards = {card for side in (train, held_out) for role in side.roles for card in role.cards}
    assert len(cards) == sum(len(role.cards) for side in (train, held_out) for role in side.roles)
    for kind in type(train.joints).model_fields.keys() - {"slots"}:
        assert not set(getattr(train.joints, kind)) & set(getattr(held_out.joints, kind)), kind
    for kind in type(train.generalists).model_fields:
        assert not set(getattr(train.generalists, kind)) & set(getattr(held_out.generalists, kind))
    for question in drawn(400):
        assert not question.is_new
        assert not {mate.card for mate in question.team.mates} & {
            card for name in HELD_OUT_DOMAINS for card in held_out.domains[name].cards
        }


def test_clauses_are_joined_in_many_ways_and_each_appears_once():
    clauses = {"chain": "ab", "join": "abj", "check": "a", "check_subtasks": "a"}
    for side in (load("train"), load("held_out")):
        for kind, names in clauses.items():
            for way in getattr(side.joints, kind):
                assert sorted(re.findall(r"\{(\w)\}", way.lower())) == sorted(names), way
        for last in side.joints.join_last:
            assert set(re.findall(r"\{(\w+)\}", last.text)) <= side.joints.slots.keys(), last.text
    learned = load("train").joints
    assert min(len(set(ways)) for ways in (learned.chain, learned.join, learned.check)) >= 180
    assert len(set(learned.check_subtasks)) >= 50
    assert len({last.text for last in learned.join_last}) >= 100


def test_every_slot_is_filled():
    for question in [*drawn(500), *drawn(500, "held_out")]:
        for text in (*question.request.turns, *(part.clause for part in question.request.parts)):
            assert not re.search(r"\{\w+\}", text), text


def test_every_kind_of_request_is_drawn_for_teams_of_every_size():
    questions = drawn(1500)
    kinds = Counter(question.request.kind for question in questions)
    assert kinds.keys() == SHARES.keys()
    assert kinds["one"] > 600
    assert min(kinds.values()) > 50
    assert {len(question.team.mates) for question in questions} == set(SIZES)
    specialists = [sum(mate.kind == "specialist" for mate in question.team.mates) for question in questions]
    without = [len(q.team.mates) for q, count in zip(questions, specialists, strict=True) if not count]
    assert {2, 5, 9} <= set(without)
    turns = [len(question.request.turns) > 1 for question in questions if question.request.kind == "one"]
    assert 0.04 < sum(turns) / len(turns) < 0.16


@given(st.integers(0, 2**30), st.sampled_from(["train", "held_out"]))
def test_the_best_plan_is_judged_right_and_is_short_for_easy_requests(seed: int, side: str):
    for question in request_questions(seed, 3, side):
        verdict = judge(question, best_text(question))
        assert verdict.is_right
        assert verdict.about == 1
        if len(question.request.parts) == 1:
            assert verdict.steps == verdict.empty == 1
    once, again = (
        [(each.question, each.team, each.request) for each in request_questions(seed, 3, side)]
        for _ in range(2)
    )
    assert once == again


def run_plans(path: Path, questions: Sequence[RequestQuestion], texts: Sequence[str]) -> list[float | None]:
    run = TrainingRun(config(path, pool=POOL), RunDir(path))

    async def rewards(runner: PlanRunner) -> list[float | None]:
        scores = [await score_plan(runner, *each) for each in zip(questions, texts, strict=True)]
        await runner.aclose()
        return [score.reward for score in scores]

    return asyncio.run(rewards(run.runner()))


POOL = """
conductor: {worker: conductor, constrained: false}
workers:
  - {name: conductor, kind: scripted, in_pool: false}
  - {name: nobody, kind: scripted}
models: {m: {max_steps: 5}}
"""


def certain(questions: Sequence[RequestQuestion]) -> list[RequestQuestion]:
    """Return the questions of which each part has a worker that is always right."""
    return [
        question
        for question in questions
        if all(
            max(mate.quality(part.domain) for mate in question.team.mates) == 1
            and (not part.checks or question.team.critics)
            for part in question.request.parts
        )
    ]


def test_the_best_plans_score_right_when_they_run(tmp_path: Path):
    questions = certain(drawn(400))
    assert {question.request.kind for question in questions} == SHARES.keys()
    assert set(run_plans(tmp_path, questions, [best_text(each) for each in questions])) == {1.0}


def test_independent_parts_may_be_in_either_order():
    joins = [each for each in certain(drawn(900)) if each.request.kind == "join"][:5]
    assert len(joins) == 5
    for question in joins:
        (first, second, last), _ = lesson(question)
        swapped = format_plan([second, first, last], "steps", FIELDS)
        assert judge(question, swapped) == judge(question, best_text(question))
        crossed = [{**first, "worker": second["worker"]}, {**second, "worker": first["worker"]}, last]
        if first["worker"] != second["worker"]:
            assert not judge(question, format_plan(crossed, "steps", FIELDS)).is_right
            vague = [{**step, "subtask": "Do it."} for step in (second, first)]
            assert not judge(question, format_plan([*vague, last], "steps", FIELDS)).is_right


def test_every_taught_plan_matches_the_grammar():
    taught = [(each, best_text(each)) for each in drawn(600)]
    foreign = [(question, plan) for question, plan in taught if not plan.isascii()]
    assert foreign
    for question, plan in [*foreign[:6], *taught[:6]]:
        plan_grammar = xgrammar.Grammar.from_ebnf(
            grammar("steps", len(question.workers), MAX_STEPS, subtask_chars=180).ebnf
        )
        assert accepts(plan_grammar, plan), plan


def test_a_wrong_worker_missing_access_or_vague_subtask_is_a_wrong_answer(tmp_path: Path):
    chains = [each for each in certain(drawn(600)) if each.request.kind == "chain"][:10]
    wrong: list[tuple[RequestQuestion, str]] = []
    for question in chains:
        steps, rewards = lesson(question)
        worst = rewards[1].index(min(rewards[1]))
        changes: list[dict[str, object]] = [{"access": []}, {"subtask": "Do your part."}, {"worker": worst}]
        wrong += [
            (question, format_plan([steps[0], {**steps[1], **change}], "steps", FIELDS)) for change in changes
        ]
    questions, texts = zip(*wrong, strict=True)
    assert set(run_plans(tmp_path, questions, texts)) == {0.5}
    assert not any(
        judge(question, text).is_right and judge(question, text).about == 1 for question, text in wrong
    )


def test_a_check_must_be_done_by_another_worker_with_a_specific_subtask(tmp_path: Path):
    checks = [each for each in certain(drawn(900)) if each.request.kind == "check"][:8]
    wrong: list[tuple[RequestQuestion, str]] = []
    for question in checks:
        (first, second), _ = lesson(question)
        whole = {**first, "subtask": ""}
        wrong += [
            (question, format_plan(steps, "steps", FIELDS))
            for steps in ([whole], [first, {**second, "subtask": "Sing me a song."}])
        ]
    questions, texts = zip(*wrong, strict=True)
    assert len(questions) == 16
    assert set(run_plans(tmp_path, questions, texts)) == {0.5}


@pytest.mark.parametrize("side", ["train", "held_out"])
def test_only_a_worker_good_at_the_domain_may_check(side: Side):
    checks = [each for each in drawn(DRAWN[side], side) if each.request.kind == "check"]
    assert len(checks) > 30
    for question in checks:
        (_, second), _ = lesson(question)
        mate = question.team.mates[int(str(second["worker"]))]
        assert mate.kind == "critic" or mate.quality(question.request.parts[1].domain) >= CHECKS_WELL


def test_a_subtask_that_copies_the_request_names_no_part():
    chains = [each for each in drawn(300) if each.request.kind == "chain"]
    for question in chains:
        copied = [{**step, "subtask": question.question.text} for step in lesson(question)[0]]
        assert judge(question, format_plan(copied, "steps", FIELDS)).about == 0


def test_small_talk_goes_to_one_of_the_cheapest_workers():
    talks = [each for each in drawn(1500) if each.request.kind == "small_talk"]
    priced = [each for each in talks if each.team.shows_facts]
    assert len(priced) > 20
    for question in talks:
        assert question.request.parts[0].domain == SMALL_TALK
    for question in priced:
        (step,), _ = lesson(question)
        mate = question.team.mates[int(str(step["worker"]))]
        chats = [each for each in question.team.mates if each.quality(SMALL_TALK)]
        cheapest = min(each.price.output_usd_per_mtok for each in chats)
        assert cheapest <= mate.price.output_usd_per_mtok < 2 * cheapest


@pytest.mark.parametrize(
    ("subtask", "is_so"),
    [
        ("find a recipe for lentil soup", True),
        ("recipe for soup with lentil", True),
        ("Answer the question.", False),
        ("Do your part.", False),
        ("", False),
    ],
)
def test_a_subtask_names_its_part_by_its_specific_words(subtask: str, is_so: bool):
    assert is_about(subtask, "find a recipe for lentil soup") == is_so
    assert own_words("find a recipe for lentil soup") == {"recipe", "lentil", "soup"}


@pytest.mark.parametrize(
    "phrase",
    [
        "Find the answer.",
        "Write it.",
        "Make it.",
        "Tell me the result.",
        "Check whether the answer is right and correct mistakes",
    ],
)
def test_a_generic_phrase_names_no_part(phrase: str):
    assert not own_words(phrase)
    for clause in ("find a joke that connects the two", "write it up for a child", "check it for mistakes"):
        assert not is_about(phrase, clause)


def test_every_part_has_specific_words():
    rng = random.Random(0)
    for side in (load("train"), load("held_out")):
        clauses = [
            (text, domain) for domain in side.domains.values() for text in (*domain.parts, *domain.then)
        ]
        for text, domain in clauses:
            assert own_words(fill(rng, text, domain.slots).replace("{it}", "it")), (domain.domain, text)
        for last in side.joints.join_last:
            assert own_words(fill(rng, last.text, side.joints.slots)), last.text


def test_an_invalid_plan_or_a_wrong_shape_is_judged_as_such():
    question = next(each for each in drawn(200) if each.request.kind == "chain")
    right = best_text(question)
    assert not judge(question, "I would ask somebody.").parsed
    assert not judge(question, right + " and so on").parsed
    first = judge(question, right.splitlines()[0])
    assert first.parsed
    assert not first.has_shape
    assert first.steps == 1
    steps, rewards = lesson(question)
    wrong = [
        step | {"worker": worths.index(min(worths))} for step, worths in zip(steps, rewards, strict=True)
    ]
    asked_others = judge(question, format_plan(wrong, "steps", FIELDS))
    assert asked_others.has_shape
    assert asked_others.workers == 0
    assert not asked_others.is_right


def test_every_file_of_the_curriculum_is_named_after_its_domain():
    for path in (FOLDER / "domains").glob("*.yaml"):
        assert path.stem in {*load("train").domains, *load("held_out").domains}
