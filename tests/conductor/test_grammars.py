"""Grammars, checked with xgrammar, the decoder of vLLM."""

import json
import random
import time
from functools import cache
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from conductor.errors import InvalidPlan
from conductor.plan.grammars import CHARS_PER_WORD, REASONING_WORDS, SUBTASK_CHARS, WORD_CHARS, grammar
from conductor.plan.plan import Format, Plan, Step
from conductor.run.plan_requests import parser
from tests.conductor.plans import NAMES, plans, spoken
from tests.conductor.team import render_plan
from tests.lazy import lazy

xgrammar = lazy("xgrammar")
accepts = lazy("xgrammar.testing:_is_grammar_accept_string")

FORMATS: tuple[Format, ...] = get_args(Format)
both = pytest.mark.parametrize("format", FORMATS)
PIECES = [
    *(chr(code) for code in range(0x20, 0x7F)), "\n", "\t", "\u00a0", "\u3000", "\u2028", "\x7f", "\x85", "é", "世",
    '{"worker": ', ', "subtask": "', '", "access": [', "]}", '{"accept": true}', "model_id = [", "]\nsubtasks = [", "]\naccess_list = [",
    "[]", ", ", '", "', "\\n", '\\"', "\\\\", " do it",
]  # fmt: skip
END = "<end>"


def ebnf(format: Format, n_workers: int = 3, max_steps: int = 5, **facts: Any) -> "xgrammar.Grammar":
    return xgrammar.Grammar.from_ebnf(grammar(format, n_workers, max_steps, **facts).ebnf)


def compile_grammar(grammar: "xgrammar.Grammar", vocabulary: list[str]) -> "xgrammar.CompiledGrammar":
    tokens = xgrammar.TokenizerInfo([*vocabulary, END], stop_token_ids=[len(vocabulary)])
    return xgrammar.GrammarCompiler(tokens, max_threads=2, cache_enabled=False).compile_grammar(grammar)


@both
@pytest.mark.parametrize("may_accept", [False, True])
def test_every_size_compiles(format: Format, may_accept: bool) -> None:
    for n_workers in range(1, 8):
        for max_steps in range(1, 6):
            rules = ebnf(format, n_workers, max_steps, may_accept=may_accept)
            assert accepts(rules, render_plan(Plan((Step("alpha", "Do it."),)), NAMES, format))


@both
@given(plan=plans(spoken))
def test_a_plan_as_the_format_writes_it_is_accepted(format: Format, plan: Plan) -> None:
    text = render_plan(plan, NAMES, format)
    assert accepts(ebnf(format), text)
    assert accepts(ebnf(format, may_accept=True), text)
    assert accepts(ebnf(format, max_steps=len(plan.steps)), text)
    if len(plan.steps) > 1:
        assert not accepts(ebnf(format, max_steps=len(plan.steps) - 1), text)


@given(plan=plans(spoken))
def test_a_step_may_start_with_its_subtask_but_repeats_no_field(plan: Plan) -> None:
    steps = [json.loads(line) for line in render_plan(plan, NAMES, "steps").splitlines()]
    turned = [{name: step[name] for name in ("subtask", "worker", "access")} for step in steps]
    text = "\n".join(json.dumps(step, ensure_ascii=False) for step in turned)
    assert accepts(ebnf("steps"), text)
    assert parser("steps", NAMES, 5).feed(text + "\n") == list(plan.steps)
    assert not accepts(ebnf("steps"), text.replace('{"subtask"', '{"worker": 0, "subtask"', 1))


@both
@given(plan=plans(spoken), data=st.data())
def test_the_grammar_rejects_plans_that_cannot_run(format: Format, plan: Plan, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(plan.steps) - 1))
    forward = (*plan.steps[at].access, data.draw(st.integers(at, 9)))
    broken = list(plan.steps)
    broken[at] = Step(plan.steps[at].worker, plan.steps[at].subtask, forward)
    assert not accepts(ebnf(format), render_plan(Plan(tuple(broken)), NAMES, format))
    broken[at] = Step("stranger", plan.steps[at].subtask, plan.steps[at].access)
    assert not accepts(ebnf(format), render_plan(Plan(tuple(broken)), [*NAMES, "stranger"], format))
    broken[at] = Step(
        plan.steps[at].worker,
        data.draw(st.sampled_from([" ", "\u3000", " a", "a\n"])),
        plan.steps[at].access,
    )
    assert not accepts(ebnf(format), render_plan(Plan(tuple(broken)), NAMES, format).replace("\\n", "\n"))


@both
def test_reads_are_ascending_and_unique(format: Format) -> None:
    def spell(*reads: int) -> str:
        return render_plan(
            Plan((*[Step("alpha", "Do it.")] * 4, Step("alpha", "Do it.", reads))), NAMES, format
        )

    for reads in ((), (0,), (3,), (0, 1), (1, 3), (0, 1, 2, 3)):
        assert accepts(ebnf(format), spell(*reads))
    for reads in ((0, 0), (1, 0), (0, 2, 1), (0, 1, 2, 3, 3)):
        assert not accepts(ebnf(format), spell(*reads))


@both
def test_whitespace_is_not_a_subtask(format: Format) -> None:
    plan = render_plan(Plan((Step("alpha", "x"),)), NAMES, format)
    blanks = [chr(code) for code in range(0x110000) if chr(code).isspace()]
    assert [blank for blank in blanks if accepts(ebnf(format), plan.replace('"x"', f'"{blank}"'))] == []


@both
def test_a_subtask_may_be_empty(format: Format) -> None:
    plan = Plan((Step("alpha", ""), Step("beta", "x"), Step("gamma", "", (0, 1))))
    assert accepts(ebnf(format), render_plan(plan, NAMES, format))
    one = Plan((Step("gamma", ""),))
    assert accepts(ebnf(format, max_steps=1), render_plan(one, NAMES, format))


@both
def test_a_sixth_step_is_not_accepted(format: Format) -> None:
    six = Plan((Step("alpha", "Do it."),) * 6)
    assert not accepts(ebnf(format), render_plan(six, NAMES, format))
    assert accepts(ebnf(format, max_steps=6), render_plan(six, NAMES, format))


def test_only_a_further_round_may_accept() -> None:
    for format, text in (
        ("steps", '{"accept": true}'),
        ("lists", "model_id = []\nsubtasks = []\naccess_list = []"),
    ):
        assert accepts(ebnf(format, may_accept=True), text)
        assert not accepts(ebnf(format), text)
        assert parser(format, NAMES, 5).feed(text) == []


def test_lists_may_start_with_reasoning_of_limited_length() -> None:
    plan = render_plan(Plan((Step("alpha", "Do it."),)), NAMES, "lists")
    assert accepts(
        ebnf("lists"), f"The question has two parts (one easy), so: no, one.\n{plan}".replace(":", ",")
    )
    assert accepts(ebnf("lists"), " ".join(["word"] * REASONING_WORDS) + "\n" + plan)
    assert not accepts(ebnf("lists"), " ".join(["word"] * (REASONING_WORDS + 1)) + "\n" + plan)
    assert not accepts(ebnf("lists"), f"model_id = [\n{plan}")


@both
def test_a_subtasks_length_is_limited(format: Format) -> None:
    def spell(subtask: str) -> str:
        return render_plan(Plan((Step("alpha", subtask),)), NAMES, format)

    words = SUBTASK_CHARS // CHARS_PER_WORD
    assert accepts(ebnf(format), spell(" ".join(["words"] * words)))
    assert not accepts(ebnf(format), spell(" ".join(["words"] * (words + 1))))
    assert accepts(ebnf(format), spell("a" * WORD_CHARS))
    assert not accepts(ebnf(format), spell("a" * (WORD_CHARS + 1)))
    assert accepts(ebnf(format, subtask_chars=1), spell("a"))


def test_a_step_may_start_with_its_needs() -> None:
    step = render_plan(Plan((Step("alpha", "Do it."),)), NAMES, "steps")
    for opening in ('{"needs": "chess", ', '{"needs": "chess and board games", '):
        assert accepts(ebnf("steps"), opening + step.removeprefix("{"))
    assert not accepts(ebnf("steps"), step.removesuffix("}") + ', "needs": "chess"}'), "it comes too late"


def write_randomly(matcher: "xgrammar.GrammarMatcher", vocabulary: list[str], chance: random.Random) -> str:
    """Write random tokens that the grammar allows."""
    mask, text = xgrammar.allocate_token_bitmask(1, len(vocabulary) + 1), ""
    while True:
        matcher.fill_next_token_bitmask(mask)
        allowed = [at for at in range(len(vocabulary) + 1) if int(mask[0, at // 32]) >> (at % 32) & 1]
        token = chance.choice(allowed)
        assert matcher.accept_token(token)
        if token == len(vocabulary):
            return text
        text += vocabulary[token]


@cache
def rules_of(format: Format, may_accept: bool) -> Any:
    return compile_grammar(ebnf(format, may_accept=may_accept, subtask_chars=6), PIECES)


@both
@pytest.mark.parametrize("may_accept", [False, True])
@given(seed=st.integers(0, 2**32))
def test_every_text_that_the_grammar_permits_is_a_valid_plan(
    format: Format, may_accept: bool, seed: int
) -> None:
    text = write_randomly(xgrammar.GrammarMatcher(rules_of(format, may_accept)), PIECES, random.Random(seed))
    reading = parser(format, NAMES, 5)
    try:
        steps, plan = reading.feed(text), reading.finish()
    except InvalidPlan as exc:
        raise AssertionError(f"{exc.reason} in {text!r}") from exc
    assert may_accept if plan is None else tuple(steps) == plan.steps


@both
def test_the_grammar_adds_almost_no_time_per_token(format: Format) -> None:
    """A long repeat of characters can cost xgrammar hundreds of milliseconds per token."""
    chance = random.Random(7)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = {
        chance.choice([" ", ""]) + "".join(chance.choices(letters, k=chance.randint(1, 8)))
        for _ in range(20_000)
    }
    vocabulary = [*PIECES, *sorted(words)]
    began_s = time.process_time()
    matcher = xgrammar.GrammarMatcher(compile_grammar(ebnf(format, 7, 5, may_accept=True), vocabulary))
    compile_s = time.process_time() - began_s
    mask = xgrammar.allocate_token_bitmask(1, len(vocabulary) + 1)
    slowest_s = 0.0
    for char in render_plan(Plan((Step("alpha", "Work out the formula."),)), NAMES, format):
        took_s: list[float] = []
        for _ in range(3):  # other processes make some of them slow
            began_s = time.thread_time()
            matcher.fill_next_token_bitmask(mask)
            took_s.append(time.thread_time() - began_s)
        slowest_s = max(slowest_s, min(took_s))
        assert matcher.accept_string(char)
    assert compile_s < 2
    assert slowest_s < 0.02


@both
def test_only_json_has_a_schema(format: Format) -> None:
    plan_grammar = grammar(format, 3, 5, may_accept=True)
    assert (plan_grammar.json_schema is None) == (format == "lists")


def test_the_schema_defines_workers_and_fields() -> None:
    schema = grammar("steps", 2, 3).json_schema
    assert schema is not None
    Draft202012Validator.check_schema(schema)
    valid = Draft202012Validator(schema).is_valid
    step = {"worker": 1, "subtask": "a", "access": [0]}
    assert valid({"steps": [step]})
    for fault in (
        {"worker": 2},
        {"worker": "1"},
        {"subtask": 1},
        {"access": [2]},
        {"access": "all"},
        {"more": 1},
    ):
        assert not valid({"steps": [step | fault]})
    assert not valid({"steps": [{"worker": 1, "subtask": "a"}]})
    assert valid({"steps": [step | {"subtask": ""}]}), "the user's own words"
    assert Draft202012Validator(grammar("steps", 2, 3, may_accept=True).json_schema).is_valid(
        {"accept": True, "steps": []}
    )


def test_the_schema_limits_the_number_of_steps_and_reads() -> None:
    def is_valid(max_steps: int, *reads: list[int]) -> bool:
        steps = [{"worker": 0, "subtask": "a", "access": access} for access in reads]
        return Draft202012Validator(grammar("steps", 1, max_steps).json_schema).is_valid({"steps": steps})

    assert is_valid(1, [])
    assert not is_valid(1, [0]), "there is nothing to read"
    assert not is_valid(1, [], [])
    assert is_valid(2, [], [0])
    assert not is_valid(2, [], [0], [0])


def test_the_schema_may_start_with_a_thinking_field() -> None:
    for may_accept in (False, True):
        schema = grammar("steps", 1, 2, may_accept=may_accept, thinking=True).json_schema
        assert schema is not None
        assert next(iter(schema["properties"])) == "thinking"  # type: ignore[call-overload]
        assert list(schema["properties"]) == schema["required"], "providers' strict modes want all of them"  # type: ignore[call-overload]
    assert "thinking" not in str(grammar("steps", 1, 2).json_schema)
    assert "thinking" not in grammar("steps", 1, 2, thinking=True).ebnf, (
        "the grammar that adapters learned under"
    )
