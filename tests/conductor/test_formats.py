import ast
import gc
import json
from collections.abc import Sequence
from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from conductor.errors import InvalidPlan, Reason
from conductor.plan.plan import Format, Plan, Step
from conductor.run.plan_requests import parser
from tests.conductor.plans import NAMES, cut, plans, words
from tests.conductor.team import render_plan

FORMATS: tuple[Format, ...] = get_args(Format)
both = pytest.mark.parametrize("format", FORMATS)


def read(
    format: Format, pieces: Sequence[str], max_steps: int = 5, *, cut_off: bool = False
) -> tuple[list[Step], Plan | None]:
    parsing = parser(format, NAMES, max_steps)
    steps = [step for piece in pieces for step in parsing.feed(piece)]
    return steps, parsing.finish(cut_off=cut_off)


def refusal(format: Format, text: str, max_steps: int = 3, *, cut_off: bool = False) -> InvalidPlan:
    with pytest.raises(InvalidPlan) as refused:
        read(format, [text], max_steps, cut_off=cut_off)
    return refused.value


@both
@given(st.data(), plans())
def test_a_plan_round_trips_however_its_text_is_split(
    format: Format, data: st.DataObject, plan: Plan
) -> None:
    text = render_plan(plan, NAMES, format)
    pieces = data.draw(cut(text))
    assert read(format, pieces) == (list(plan.steps), plan)
    assert read(format, list(text)) == (list(plan.steps), plan)
    assert read(format, [text]) == (list(plan.steps), plan)


@given(plans())
def test_in_steps_each_step_is_returned_at_its_last_byte(plan: Plan) -> None:
    text = render_plan(plan, NAMES, "steps")
    parsing, given_at = parser("steps", NAMES, 5), list[int]()
    for at, char in enumerate(text):
        given_at += [at] * len(parsing.feed(char))
    lines = text.split("\n")
    assert given_at == [sum(len(line) + 1 for line in lines[: index + 1]) - 2 for index in range(len(lines))]


@given(plans())
def test_in_lists_a_step_is_returned_at_the_end_of_its_last_element(plan: Plan) -> None:
    text = render_plan(plan, NAMES, "lists")
    first = (
        text.index("subtasks = [")
        + len("subtasks = [")
        + len(json.dumps(plan.steps[0].subtask, ensure_ascii=False))
    )
    expected, at = [first], text.rindex("access_list = [") + len("access_list = [")
    for index, step in enumerate(plan.steps):
        at += len(str(list(step.access)))
        expected += [at] if index else []
        at += 2
    parsing, given_at = parser("lists", NAMES, 5), list[int]()
    for place, char in enumerate(text):
        given_at += [place] * len(parsing.feed(char))
    assert given_at == expected


@given(st.lists(words, min_size=1, max_size=4))
def test_python_quotes_and_escapes_are_parsed(subtasks: list[str]) -> None:
    count = len(subtasks)
    text = f"model_id = {[0] * count}\nsubtasks = {subtasks!r}\naccess_list = {[[]] * count}"
    assert [step.subtask for step in read("lists", list(text))[0]] == subtasks


@given(plans(), st.booleans())
def test_worker_names_may_replace_numbers(plan: Plan, escaped: bool) -> None:
    rows = [{"subtask": s.subtask, "worker": s.worker, "access": list(s.access)} for s in plan.steps]
    assert read("steps", [json.dumps(rows, ensure_ascii=escaped, indent=2)])[1] == plan
    names = [step.worker for step in plan.steps]
    text = f"model_id: {names}\nsubtask: {[s.subtask for s in plan.steps]}\naccess: {[list(s.access) for s in plan.steps]}"
    assert read("lists", [text])[1] == plan


@given(plans())
def test_all_means_every_earlier_step(plan: Plan) -> None:
    count = len(plan.steps)
    expected = tuple(Step(s.worker, s.subtask, tuple(range(i))) for i, s in enumerate(plan.steps))
    for word in ("all", ["all"]):
        rows = [json.dumps({"worker": s.worker, "subtask": s.subtask, "access": word}) for s in plan.steps]
        assert read("steps", rows)[0] == list(expected)
        text = f"model_id = {[s.worker for s in plan.steps]} subtasks = {[s.subtask for s in plan.steps]} access_list = "
        assert read("lists", [text + str([word] * count)])[0] == list(expected)


ONE = '{"worker": 0, "subtask": "a", "access": []}'
TWO = '{"worker": "beta", "subtask": "b {[\\"}", "access": [0, 0]}'
STEPS_OF_ONE_AND_TWO = [Step("alpha", "a"), Step("beta", 'b {["}', (0,))]


@pytest.mark.parametrize(
    "text",
    [
        f"{ONE}\n{TWO}", f"{ONE}{TWO}", f"{ONE},\n{TWO}", f"[{ONE}, {TWO}]", f"```json\n{ONE}\n{TWO}\n```",
        f'{{"steps": [{ONE}, {TWO}]}}', f'{{ "steps" :\n[\n{ONE},\n{TWO}\n]\n}}\n', f'{{"accept": false, "steps": [{ONE}, {TWO}]}}',
        f"Here is the plan.\n1. {ONE}\n2. {TWO}\nThat will do it.", f"<think>hm, [two] steps</think>\n{ONE}\n{TWO}",
        f"<think>Perhaps {{1, 2}} or {ONE}?</think>\n{ONE}\n{TWO}",
    ],
)  # fmt: skip
def test_text_around_steps_is_ignored(text: str) -> None:
    for pieces in ([text], list(text)):
        steps, plan = read("steps", pieces)
        assert steps == STEPS_OF_ONE_AND_TWO
        assert plan == Plan(tuple(steps))


@given(
    plans(), st.text() | st.just('"steps": [{ "accept": true, \\'), st.booleans(), st.sampled_from([None, 1])
)
def test_in_one_object_the_thinking_field_is_ignored(
    plan: Plan, thought: str, may_accept: bool, indent: int | None
) -> None:
    accept: dict[str, object] = {"accept": False} if may_accept else {}
    rows = [
        {"worker": NAMES.index(s.worker), "subtask": s.subtask, "access": list(s.access)} for s in plan.steps
    ]
    text = json.dumps({"thinking": thought, **accept, "steps": rows}, indent=indent)
    parsing, given_at = parser("steps", NAMES, 5), list[int]()
    for place, char in enumerate(text):
        given_at += [place] * len(parsing.feed(char))
    assert parsing.finish() == plan
    assert [text[place] for place in given_at] == ["}"] * len(plan.steps)
    assert len(json.loads(text[: given_at[0] + 1] + "]}")["steps"]) == 1, (
        "the first came before the second began"
    )


def test_a_thinking_field_may_precede_an_acceptance() -> None:
    assert read("steps", list('{"thinking": "It is [well] done.", "accept": true, "steps": []}')) == (
        [],
        None,
    )
    text = '{"thinking": "Well.", "accept": true, "steps": [' + ONE + "]}"
    assert refusal("steps", text).reason is Reason.MALFORMED


LISTS = 'model_id = [0, "beta"]\nsubtasks = ["a", "b {[\\"}"]\naccess_list = [[], [0, 0]]'


@pytest.mark.parametrize(
    "text",
    [
        LISTS, f"```python\n{LISTS}\n```", f"Two parts, [0] and [1].\n\n{LISTS}\nThat is model_id = [9].",
        f"<think>model_id = [7, 7, 7, 7]; subtasks = [</think>{LISTS}", LISTS.replace("\n", "; "),
        'model id: [0,"beta",]\nSubtasks: ["a",\n\'b {["}\',\n]\naccess lists: [[],[0,0,],]',
        "`model_id`: [0, 'beta']\n`subtasks`: ['a', 'b ' '{[\"}']\n`access_list`: [[], ['all']]",
    ],
)  # fmt: skip
def test_text_around_lists_is_ignored(text: str) -> None:
    for pieces in ([text], list(text)):
        steps, plan = read("lists", pieces)
        assert steps == STEPS_OF_ONE_AND_TWO
        assert plan == Plan(tuple(steps))


def test_a_text_may_accept_the_answer() -> None:
    for text in ('{"accept": true}', 'Good.\n{"accept": true}', '{"accept": true, "steps": []}'):
        assert read("steps", list(text)) == ([], None)
    assert read("steps", ['{"accept": true}'], cut_off=True) == ([], None)
    assert read("lists", ["All is well.\nmodel_id = []\nsubtasks = []\naccess_list = []"]) == ([], None)


@pytest.mark.parametrize("number", ["0x" + "f" * 4000, "-0b" + "1" * 20_000])
def test_a_number_too_long_to_print_is_rejected_with_a_short_message(number: str) -> None:
    for text, reason in (
        (f'model_id = [{number}]\nsubtasks = ["a"]\naccess_list = [[]]', Reason.UNKNOWN_WORKER),
        (f'model_id = [0]\nsubtasks = ["a"]\naccess_list = [[{number}]]', Reason.READS_FORWARD),
    ):
        with pytest.raises(InvalidPlan) as caught:
            read("lists", [text])
        assert caught.value.reason is reason
        assert len(caught.value.message) < 200


def test_a_long_unknown_name_is_shortened_in_the_message() -> None:
    with pytest.raises(InvalidPlan) as caught:
        read("steps", [one(worker="x" * 500_000)])
    assert len(caught.value.message) < 300


def one(**fields: object) -> str:
    return json.dumps({"worker": 0, "subtask": "a", "access": []} | fields)


@pytest.mark.parametrize(
    ("text", "reason", "at"),
    [
        ("", Reason.NO_PLAN, None), ("The sky is blue.", Reason.NO_PLAN, None), ('{"steps": []}', Reason.NO_PLAN, None),
        ("{worker: 0}", Reason.MALFORMED, 0), ("{'worker': 0}", Reason.MALFORMED, 0), ("{}]" + "{1}", Reason.MISSING_FIELD, 0),
        (f"{ONE} {{]", Reason.MALFORMED, 1), (f'{ONE} {{"accept": true}}', Reason.MALFORMED, None),
        (f'{{"accept": true}} {ONE}', Reason.MALFORMED, None), (f'{{"accept": true, "steps": [{ONE}]}}', Reason.MALFORMED, None),
        (ONE[:-1], Reason.TRUNCATED, 0), (ONE + TWO[:20], Reason.TRUNCATED, 1), ("{", Reason.TRUNCATED, 0),
        ('{"subtask": "a", "access": []}', Reason.MISSING_FIELD, 0), ('{"worker": 0, "access": []}', Reason.MISSING_FIELD, 0),
        ('{"worker": 0, "subtask": "a"}', Reason.MISSING_FIELD, 0), ('{"accept": false}', Reason.MISSING_FIELD, 0),
        (one(worker=True), Reason.WRONG_TYPE, 0), (one(worker=0.0), Reason.WRONG_TYPE, 0), (one(worker=None), Reason.WRONG_TYPE, 0),
        (one(subtask=5), Reason.WRONG_TYPE, 0), (one(access=0), Reason.WRONG_TYPE, 0), (one(access="none"), Reason.WRONG_TYPE, 0),
        (one(access=["0"]), Reason.WRONG_TYPE, 0), (one(access=[False]), Reason.WRONG_TYPE, 0), (one(access=None), Reason.WRONG_TYPE, 0),
        (one(access=["all", 0]), Reason.WRONG_TYPE, 0),
        (one(worker=3), Reason.UNKNOWN_WORKER, 0), (one(worker=-1), Reason.UNKNOWN_WORKER, 0), (one(worker=10**30), Reason.UNKNOWN_WORKER, 0),
        (one(worker="delta"), Reason.UNKNOWN_WORKER, 0), (f"{ONE}{one(worker='0')}", Reason.UNKNOWN_WORKER, 1),
        (one(access=[0]), Reason.READS_FORWARD, 0), (f"{ONE}{one(access=[1])}", Reason.READS_FORWARD, 1),
        (f"{ONE}{one(access=[0, -1])}", Reason.READS_FORWARD, 1), (f"{ONE}{one(access=[10**30])}", Reason.READS_FORWARD, 1),
        (ONE * 4, Reason.TOO_MANY_STEPS, 3),
    ],
)  # fmt: skip
def test_each_fault_of_steps_has_its_reason(text: str, reason: Reason, at: int | None) -> None:
    error = refusal("steps", text)
    assert (error.reason, error.step) == (reason, at), error


def lists(models: str = "[0, 1]", subtasks: str = '["a", "b"]', access: str = "[[], [0]]") -> str:
    return f"model_id = {models}\nsubtasks = {subtasks}\naccess_list = {access}"


@pytest.mark.parametrize(
    ("text", "reason", "at"),
    [
        ("", Reason.NO_PLAN, 0), ("The sky is blue [1].", Reason.NO_PLAN, 0), ("<think>" + lists(), Reason.NO_PLAN, 0),
        (lists(models="[zero]"), Reason.MALFORMED, 0), (lists(models="[0 1]"), Reason.MALFORMED, 0),
        (lists(models="[0,, 1]"), Reason.MALFORMED, 1), (lists(subtasks="[a, b]"), Reason.MALFORMED, 0),
        (lists(subtasks='["a", b("c")]'), Reason.MALFORMED, 1), (lists(models="[0, {[]: 1}]"), Reason.MALFORMED, 1),
        (lists(models="[0, 1)"), Reason.MALFORMED, 1),
        ("model_id = [0, 1", Reason.TRUNCATED, 0), ("model_id = [0, 1]\nsubtasks", Reason.TRUNCATED, 0),
        (lists()[:-1], Reason.TRUNCATED, 1), (lists(subtasks='["a'), Reason.TRUNCATED, 0), (lists(subtasks='["a", "b'), Reason.TRUNCATED, 1),
        (lists(models="[0]"), Reason.LENGTH_MISMATCH, 1), (lists(subtasks='["a"]'), Reason.LENGTH_MISMATCH, 1),
        (lists(access="[[]]"), Reason.LENGTH_MISMATCH, 1), (lists(access="[[], [0], [1]]"), Reason.LENGTH_MISMATCH, 2),
        (lists(models="[]"), Reason.LENGTH_MISMATCH, 0), (lists(subtasks="[]"), Reason.LENGTH_MISMATCH, 0),
        (lists(models="[True, 1]"), Reason.WRONG_TYPE, 0), (lists(models="[0, 1.0]"), Reason.WRONG_TYPE, 1), (lists(models="[[0], 1]"), Reason.WRONG_TYPE, 0),
        (lists(subtasks='[b"a", "b"]'), Reason.WRONG_TYPE, 0), (lists(access="[0, 1]"), Reason.WRONG_TYPE, 0),
        (lists(access='[[], ["0"]]'), Reason.WRONG_TYPE, 1), (lists(access="[[], (0,)]"), Reason.WRONG_TYPE, 1),
        (lists(models="[3, 0]"), Reason.UNKNOWN_WORKER, 0), (lists(models="[0, -1]"), Reason.UNKNOWN_WORKER, 1),
        (lists(models='["delta", 0]'), Reason.UNKNOWN_WORKER, 0),
        (lists(access="[[0], []]"), Reason.READS_FORWARD, 0), (lists(access="[[], [1]]"), Reason.READS_FORWARD, 1),
        (lists(access="[[], [-1]]"), Reason.READS_FORWARD, 1), (lists(models="[0, 0, 0, 0"), Reason.TRUNCATED, 0),
        (lists(models="[0, 0, 0, 0]"), Reason.TOO_MANY_STEPS, 3),
    ],
)  # fmt: skip
def test_each_fault_of_lists_has_its_reason(text: str, reason: Reason, at: int | None) -> None:
    error = refusal("lists", text)
    assert (error.reason, error.step) == (reason, at), error


def test_every_reject_reason_is_tested() -> None:
    tables = [test_each_fault_of_steps_has_its_reason, test_each_fault_of_lists_has_its_reason]
    given_reasons = {row[1] for table in tables for mark in table.pytestmark for row in mark.args[1]}  # type: ignore[attr-defined]
    assert given_reasons == set(Reason) - {Reason.EMPTY_SUBTASK, Reason.NO_TOOLS}, (
        "of older records, and of requests"
    )


@pytest.mark.parametrize("empty", ["", " \n\u00a0"])
def test_an_empty_subtask_means_the_users_question(empty: str) -> None:
    assert read("steps", [one(subtask=empty)]) == ([Step("alpha", "")], Plan((Step("alpha", ""),)))
    wrapped = '{"thinking": "Small talk.", "steps": [' + one(worker="beta", subtask=empty) + "]}"
    assert read("steps", list(wrapped))[0] == [Step("beta", "")]
    both_empty = lists(subtasks=repr([empty, empty]))
    assert read("lists", list(both_empty))[0] == [Step("alpha", ""), Step("beta", "", (0,))]


def test_a_step_may_have_a_needs_field() -> None:
    (step,), plan = read("steps", [one(needs=" chess and board games\n")])
    assert step.needs == "chess and board games"
    assert plan is not None
    assert plan.steps[0].needs == "chess and board games"
    assert step == Step("alpha", "a"), "no worker is shown it, so it makes no other call"
    assert refusal("steps", one(needs=3)).reason is Reason.WRONG_TYPE
    assert (
        refusal("steps", '{"worker": 0, "subtask": "a", "access": [], "needs": "\\ud83d"}').reason
        is Reason.MALFORMED
    )


def test_a_plan_cut_at_its_token_limit_is_not_finished() -> None:
    assert refusal("steps", ONE, cut_off=True).reason is Reason.TRUNCATED
    assert refusal("steps", "Let me think", cut_off=True).reason is Reason.TRUNCATED
    assert refusal("lists", "Let me think", cut_off=True).reason is Reason.TRUNCATED
    assert read("steps", [ONE], 1, cut_off=True)[0] == [Step("alpha", "a")], "nothing more could have come"
    assert len(read("lists", [lists() + " and furthermore"], cut_off=True)[0]) == 2


def test_the_steps_before_a_fault_are_returned() -> None:
    for format, text in (("steps", ONE + one(access=[5])), ("lists", lists(access="[[], [5]]"))):
        parsing, steps = parser(format, NAMES, 3), list[Step]()
        steps += (step for char in text[:-2] for step in parsing.feed(char))
        with pytest.raises(InvalidPlan):
            parsing.feed(text[-2:])
        assert steps == [Step("alpha", "a")]


strange = st.one_of(
    st.text(max_size=60),
    st.text("{}[]()\"'\\,:= \n01ab<>/-é", max_size=60),
    st.lists(
        st.sampled_from(
            ['{"worker": ', '"subtask": ', '"access": ', "[", "]", "}", "{", "0", ",", '"', "'a'", "model_id = [", "subtasks = [",
             "access_list = [", '"all"', '{"accept": true}', '{"steps": [', "<think>", "</think>", "\\", "1e999", "NaN", ONE, "b'x'",
             "\\ud800", "\x00", "{[]}", "1j", "-", "f'{0}'", "#", "..."]
        ),
        max_size=25,
    ).map("".join),
)  # fmt: skip


@both
@given(text=strange, cut_off=st.booleans())
@example(text="model_id = [{[]}, 0]", cut_off=False)
@example(text='model_id = ["\ud800"]', cut_off=False)
def test_no_text_raises_anything_but_an_invalid_plan(format: Format, text: str, cut_off: bool) -> None:
    outcomes: list[object] = []
    for pieces in ([text], list(text)):
        try:
            outcomes.append(read(format, pieces, cut_off=cut_off))
        except InvalidPlan as exc:
            outcomes.append((exc.reason, exc.step, exc.message))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    "text",
    [
        "{" * 20_000, '{"a":' * 20_000 + "1" + "}" * 20_000, '{"worker": 0, "subtask": "a", "access": ' + "[" * 20_000 + "]" * 20_000 + "}",
        '{"subtask": "' + "[" * 3_000 + '"}', "model_id = [" + "[" * 3_000 + "]" * 3_000 + "]", "model_id = [" + "-" * 20_000 + "1]",
        "model_id = [" + "(" * 5_000, "[" * 3_000, "model_id = [" + "9" * 5_000 + "]", '{"worker": ' + "9" * 5_000 + "}",
        "model_id = [" + "1+" * 3_000 + "1]", "a" * 50_000, "model_id = [" + "0," * 20_000 + "]",
    ],
    ids=lambda text: text[:20],
)  # fmt: skip
@both
def test_deeply_nested_or_long_texts_are_rejected(format: Format, text: str) -> None:
    with pytest.raises(InvalidPlan):
        read(format, [text])


def test_invalid_surrogates_are_not_a_subtask() -> None:
    for format, text in (("steps", one(subtask="a \ud800")), ("lists", lists(subtasks=r'["a \ud800", "b"]'))):
        assert refusal(format, text).reason is Reason.MALFORMED


def test_a_traceback_logged_while_a_list_is_parsed_does_not_break_the_plan() -> None:
    """Finalizers that the garbage collector runs may format a traceback, which parses Python inside the parser."""

    def parse_once(phase: str, info: dict[str, int]) -> None:
        if gc.callbacks:
            gc.callbacks.clear()
            ast.parse("[1, 2, [3]]")

    callbacks, thresholds = list(gc.callbacks), gc.get_threshold()
    try:
        for skipped in range(30):
            gc.callbacks[:] = [parse_once]
            gc.set_threshold(skipped + 1)
            assert read("lists", ["model_id = [0]\nsubtasks = ['It is so.']\naccess_list = [[]]"])[1]
    finally:
        gc.callbacks[:] = callbacks
        gc.set_threshold(*thresholds)
