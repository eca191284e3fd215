"""Decisions of the dispatcher as tables, without sending or waiting."""

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from conductor.errors import (
    AnswerInvalid,
    ContentFiltered,
    ContextOverflow,
    LineTooLong,
    WorkerBusy,
    WorkerError,
    WorkerRefused,
    WorkerUnavailable,
)
from conductor.model.call import Call, CallSite, Sampling
from conductor.model.failure import Attempt
from conductor.model.messages import File, Image, Message, Native, Text, Tool, Toolset
from conductor.model.operation import WireOptions
from conductor.model.terms import Permit, Terms
from serving.dispatch.model_parameters import ModelProfile
from serving.dispatch.policy import (
    QUICK_S,
    Action,
    Attempts,
    Change,
    FailedAttempt,
    Next,
    Retry,
    Stop,
    WorkerAttempts,
    candidates,
    drop_too_short,
    last_error,
    longest_wait_s,
    next_action,
    order,
    retry_wait_s,
)
from serving.dispatch.route import RetryRules, Route
from serving.dispatch.structured_output import Repair
from serving.health import FAILURES_BEFORE_OPEN
from serving.workers.scripted import ScriptedWorker
from tests.serving.dispatch.routes import route

CALL = Call((Message.of("user", "hi"),))
RULES = RetryRules(attempts=3, first_wait_s=0.5, max_wait_s=20.0, fallback_wait_s=5.0)
DOWN = WorkerUnavailable("It is down.")
LATE = WorkerUnavailable("It is late.", only_late=True)
REFUSED = WorkerRefused("It refused.")
FILTERED = ContentFiltered("It filtered the prompt.")
INVALID = AnswerInvalid("It is no JSON.")
WRONG = Repair("no JSON", "It is no JSON.")
ENDED_EMPTY = WorkerUnavailable("It said nothing.", only_this_call=True)


def busy(retry_after_s: float | None = None) -> WorkerBusy:
    return WorkerBusy("It is busy.", retry_after_s=retry_after_s)


def named(name: str, profile: ModelProfile | None = None) -> Route:
    return route(ScriptedWorker(name, ["x"]), profile=profile)


def after_failure(
    error: WorkerError,
    tries: WorkerAttempts | None = None,
    *,
    call: Call = CALL,
    others: int = 1,
    took_s: float = 0.1,
    wait_s: float = 0.2,
    has_fallback: bool = False,
    may_retry: bool = True,
    is_open: bool = False,
    reports_filter: bool = False,
    **state: Any,
) -> Action:
    """Return the action after the first failure at the first of several workers, at second 0.

    Args:
        error: error of the attempt.
        tries: attempts so far, or None for one.
        call: the call that failed.
        others: number of remaining workers.
        took_s: see `FailedAttempt`.
        wait_s: see `FailedAttempt`.
        has_fallback: see `FailedAttempt`.
        may_retry: see `FailedAttempt`.
        is_open: whether the circuit of the worker is open.
        reports_filter: see `ModelProfile`.
        state: fields of `Attempts`.
    """
    profile = ModelProfile(reports_filter=reports_filter)
    routes = [named(name, profile) for name in "abcd"[: 1 + others]]
    routes[0].retry = RULES
    if is_open:
        for _ in range(FAILURES_BEFORE_OPEN):
            routes[0].health.fail()
    attempts = Attempts(
        call, routes, [], is_first_paid_call=False, worker_attempts=tries or WorkerAttempts(number=1)
    )
    for name, value in state.items():
        setattr(attempts, name, value)
    return next_action(FailedAttempt(error, took_s, wait_s, has_fallback, may_retry), attempts, now_s=0.0)


def due(at_s: float) -> Call:
    return replace(CALL, terms=Terms(at_s))


BEGUN = replace(CALL, prefix="It is")
RETRY = Retry(0.2)
ACTIONS: dict[str, tuple[WorkerError, dict[str, Any], Action]] = {
    "an outage": (DOWN, {}, RETRY),
    "a busy worker": (busy(), {}, RETRY),
    "a refusal": (REFUSED, {}, Next()),
    "a prompt that is too long": (ContextOverflow("It is too long."), {}, Next()),
    "a refusal of the last worker": (REFUSED, {"others": 0}, Stop()),
    "the last attempt": (DOWN, {"tries": WorkerAttempts(number=3)}, Next()),
    "the last attempt at the last worker": (DOWN, {"tries": WorkerAttempts(number=3), "others": 0}, Stop()),
    "no retry budget": (DOWN, {"may_retry": False}, Next()),
    "a queue that is too long": (LineTooLong("It has too many calls."), {}, Next()),
    "a wait within Retry-After": (busy(20), {"wait_s": 20.0}, Retry(20.0)),
    "a Retry-After that is too long": (busy(21), {"wait_s": 21.0}, Next()),
    "a wait of half of the caller's time": (busy(5), {"wait_s": 5.0, "call": due(10.0)}, Next()),
    "a wait of less than half of it": (busy(4), {"wait_s": 4.0, "call": due(10.0)}, Retry(4.0)),
    "a quick failure beside a fallback": (DOWN, {"has_fallback": True}, RETRY),
    "a slow failure beside a fallback": (DOWN, {"has_fallback": True, "took_s": QUICK_S}, Next()),
    "a slow wait beside a fallback": (DOWN, {"has_fallback": True, "wait_s": QUICK_S}, Next()),
    "a short Retry-After beside a fallback": (busy(5), {"has_fallback": True, "wait_s": 5.0}, Retry(5.0)),
    "a longer one beside a fallback": (busy(6), {"has_fallback": True, "wait_s": 6.0}, Next()),
    "a second short one beside a fallback": (
        busy(3),
        {"has_fallback": True, "wait_s": 3.0, "tries": WorkerAttempts(number=2, waited_s=3.0)},
        Next(),
    ),
    "an open circuit beside a fallback": (DOWN, {"has_fallback": True, "is_open": True}, Next()),
    "an open circuit alone": (DOWN, {"is_open": True}, RETRY),
    "a late first token beside a fallback": (LATE, {"has_fallback": True}, Next()),
    "a late first token alone": (LATE, {}, RETRY),
    "an answer without a word": (ENDED_EMPTY, {"may_ask_again": True}, RETRY),
    "another one": (ENDED_EMPTY, {"may_ask_again": False}, Next()),
    "an answer that broke off while it was read": (DOWN, {"had_answer": True}, Next()),
    "a wrong answer": (
        INVALID,
        {"had_answer": True, "invalid_answer": WRONG},
        Change(WorkerAttempts(repair=WRONG)),
    ),
    "a wrong answer of the last worker": (
        INVALID,
        {"had_answer": True, "invalid_answer": WRONG, "others": 0},
        Change(WorkerAttempts(repair=WRONG)),
    ),
    "a wrong answer to a call to go on": (
        INVALID,
        {
            "had_answer": True,
            "invalid_answer": WRONG,
            "call": BEGUN,
            "tries": WorkerAttempts("ask", number=1),
        },
        Change(WorkerAttempts("ask", WRONG)),
    ),
    "a wrong repair": (
        INVALID,
        {"had_answer": True, "invalid_answer": WRONG, "tries": WorkerAttempts(number=1, repair=WRONG)},
        Next(),
    ),
    "a refused turn at the end": (
        REFUSED,
        {"call": BEGUN, "tries": WorkerAttempts("prefill", number=1)},
        Change(WorkerAttempts("ask")),
    ),
    "a refused call to go on": (REFUSED, {"call": BEGUN, "tries": WorkerAttempts("ask", number=1)}, Next()),
    "an outage at a turn at the end": (
        DOWN,
        {"call": BEGUN, "tries": WorkerAttempts("prefill", number=1)},
        RETRY,
    ),
    "a filtered turn at the end": (
        FILTERED,
        {"call": BEGUN, "tries": WorkerAttempts("prefill", number=1)},
        Next(),
    ),
    "a filter": (FILTERED, {}, Next()),
    "a filter that clients are told of": (FILTERED, {"reports_filter": True}, Stop(is_final=True)),
}


def is_same(one: Action, other: Action) -> bool:
    if isinstance(one, Change) and isinstance(other, Change):
        mine, expected = one.worker_attempts, other.worker_attempts
        return (mine.form, mine.repair, mine.number) == (expected.form, expected.repair, expected.number)
    return one == other


@pytest.mark.parametrize(("error", "state", "action"), ACTIONS.values(), ids=ACTIONS.keys())
def test_each_error_has_the_expected_next_action(error: WorkerError, state: dict[str, Any], action: Action):
    next_one = after_failure(error, **state)
    assert is_same(next_one, action), next_one


ERRORS = st.sampled_from([DOWN, LATE, busy(), busy(1), busy(30), REFUSED, FILTERED, INVALID])


@given(
    ERRORS,
    st.integers(1, 4),
    st.integers(0, 3),
    st.floats(0, 30),
    st.floats(0, 30),
    st.booleans(),
    st.booleans(),
)
def test_calls_are_limited_by_the_settings_and_continue_while_workers_remain(
    error: WorkerError,
    number: int,
    others: int,
    took_s: float,
    wait_s: float,
    has_fallback: bool,
    may_retry: bool,
):
    step = after_failure(
        error,
        WorkerAttempts(number=number),
        others=others,
        took_s=took_s,
        wait_s=wait_s,
        has_fallback=has_fallback,
        may_retry=may_retry,
    )
    if isinstance(step, Retry):
        assert number < RULES.attempts
        assert may_retry
        assert error.retryable
    else:
        assert step == (Next() if others else Stop())


@given(st.integers(1, 8), st.floats(0.1, 60))
def test_a_wait_lies_between_retry_after_and_its_maximum(number: int, retry_after_s: float):
    bound_s = min(RULES.max_wait_s, RULES.first_wait_s * 2 ** (number - 1))
    assert 0 <= retry_wait_s(number, DOWN, RULES) <= bound_s
    assert retry_after_s <= retry_wait_s(number, busy(retry_after_s), RULES) <= max(retry_after_s, bound_s)


def test_half_of_the_remaining_time_is_reserved_after_a_wait():
    assert longest_wait_s(Terms(), 5.0) == inf
    assert longest_wait_s(Terms(deadline_at_s=25.0), 5.0) == 10.0


# Choice of workers


SHOWN = Call((Message("user", (Text("hi"), Image("data:image/png;base64,AAAA"))),))
READ = Call((Message("user", (Text("hi"), File("a.pdf", "data:application/pdf;base64,AAAA"))),))
TOOLED = replace(CALL, tools=Toolset((Tool("read"),)))
LESS: dict[str, ModelProfile] = {
    "sees nothing": ModelProfile(sees_images=False),
    "reads no PDF": ModelProfile(reads_pdfs=False),
    "calls no tools": ModelProfile(calls_tools=False),
    "any": ModelProfile(calls_tools=True),
    "short": ModelProfile(context_tokens=1000),
    "middle": ModelProfile(context_tokens=4000),
    "long": ModelProfile(context_tokens=100_000),
}
LONG = Call((Message.of("user", "word " * 2000),))


def wrote(*names: str) -> Call:
    turns = [Message("assistant", (Text("I look."),), Native(name, "", {})) for name in names]
    return Call((*CALL.messages, *turns))


CANDIDATES: dict[str, tuple[Call, Sequence[str], list[str]]] = {
    "plain": (CALL, ["any", "sees nothing", "reads no PDF", "calls no tools"], ["a", "b", "c", "d"]),
    "a picture": (SHOWN, ["any", "sees nothing", "any"], ["a", "c"]),
    "a picture, and the first sees none": (SHOWN, ["sees nothing", "sees nothing", "any"], ["a", "b", "c"]),
    "a PDF": (READ, ["any", "reads no PDF", "any"], ["a", "c"]),
    "tools": (TOOLED, ["any", "calls no tools", "any"], ["a", "c"]),
    "tools, and the first calls none": (TOOLED, ["calls no tools", "any"], ["a", "b"]),
    "a turn of another worker": (wrote("b", "c"), ["any", "any", "any"], ["c", "a", "b"]),
    "a turn of none of them": (wrote("elsewhere"), ["any", "any"], ["a", "b"]),
    "embeddings": (replace(CALL, site=CallSite(operation="embeddings")), ["any", "any"], ["a"]),
    "a prompt of tokens": (
        replace(CALL, sampling=Sampling(options=WireOptions(token_prompt=True))),
        ["any", "any"],
        ["a"],
    ),
    "a permit": (replace(CALL, terms=Terms(permit=Permit(("c", "b")))), ["any", "any", "any"], ["b", "c"]),
    "a short context": (CALL, ["any", "short"], ["a", "b"]),
    "a prompt that is longer": (LONG, ["any", "short", "long", "any"], ["a", "c", "d"]),
    "a prompt that is longer for the first": (LONG, ["short", "short", "long"], ["a", "c"]),
    "a prompt that is longer for all": (LONG, ["short", "short"], ["a"]),
    "an answer that is longer": (
        replace(CALL, terms=Terms(answer_tokens=1000)),
        ["any", "short", "middle"],
        ["a", "c"],
    ),
    "a PDF that is longer": (READ, ["any", "middle", "long"], ["a", "c"]),
    "a permit for none of them": (replace(CALL, terms=Terms(permit=Permit(()))), ["any", "any"], ["a"]),
}


@pytest.mark.parametrize(("call", "kinds", "names"), CANDIDATES.values(), ids=CANDIDATES.keys())
def test_only_suitable_workers_are_candidates(call: Call, kinds: Sequence[str], names: list[str]):
    routes = [named(name, LESS[kind]) for name, kind in zip("abcd", kinds, strict=False)]
    assert [each.name for each in candidates(routes, call)] == names


@pytest.mark.parametrize(
    ("kinds", "names"),
    [
        (["short", "short", "long", "any", "short"], ["a", "c", "d"]),
        (["long", "short", "long"], ["a"]),
        (["any", "short", "long"], ["a", "b", "c"]),
    ],
)
def test_after_a_prompt_was_too_long_only_longer_contexts_are_tried(kinds: list[str], names: list[str]):
    queue = [named(name, LESS[kind]) for name, kind in zip("abcde", kinds, strict=False)]
    attempts = Attempts(CALL, queue, [], is_first_paid_call=False)
    drop_too_short(attempts)
    assert [each.name for each in attempts.queue] == names


def resting(candidate: Route) -> None:
    candidate.health.skip(60)


def slow(candidate: Route) -> None:
    """Make the queue longer than is acceptable while another worker is free."""
    candidate.limiter.max_wait_s = -1.0


ASKS_OTHERS = Terms(has_fallback=True)
ORDERS: dict[str, tuple[dict[str, Callable[[Route], None]], Terms, list[str], list[str]]] = {
    "all are well": ({}, Terms(), ["a", "b", "c"], []),
    "the first rests": ({"a": resting}, Terms(), ["b", "c", "a"], ["a"]),
    "a later one rests": ({"b": resting}, Terms(), ["a", "c", "b"], []),
    "the first two rest": ({"a": resting, "b": resting}, Terms(), ["c", "a", "b"], ["a", "b"]),
    "all rest": ({"a": resting, "b": resting, "c": resting}, Terms(), ["a", "b", "c"], []),
    "the first has a long queue": ({"a": slow}, Terms(), ["b", "c", "a"], ["a"]),
    "batch work may wait in it": ({"a": slow}, Terms(priority="batch"), ["a", "b", "c"], []),
    "the first broke off": ({}, Terms(broken=frozenset({("a", "")})), ["b", "c", "a"], ["a"]),
    "the caller has a fallback": ({"b": resting}, ASKS_OTHERS, ["a", "c"], ["b"]),
    "it has one, and a long queue": ({"a": slow}, ASKS_OTHERS, ["a", "b", "c"], []),
}


@pytest.mark.parametrize(("states", "terms", "names", "skipped"), ORDERS.values(), ids=ORDERS.keys())
def test_workers_are_tried_in_the_expected_order_and_skipped_ones_are_recorded(
    states: dict[str, Callable[[Route], None]], terms: Terms, names: list[str], skipped: list[str]
):
    routes = [named(name) for name in "abc"]
    for each in routes:
        states.get(each.name, lambda _: None)(each)
    queue, failed = order(routes, replace(CALL, terms=terms))
    assert [each.name for each in queue] == names
    assert [(each.worker, each.outcome) for each in failed] == [(name, "left_alone") for name in skipped]


def test_an_only_worker_is_tried_whatever_its_health():
    alone = named("a")
    resting(alone)
    assert order([alone], CALL) == ([alone], [])


def test_an_error_lists_all_unhealthy_workers():
    routes = [named(name) for name in "ab"]
    for each in routes:
        resting(each)
    with pytest.raises(WorkerUnavailable) as caught:
        order(routes, replace(CALL, terms=ASKS_OTHERS))
    assert [each.worker for each in caught.value.attempts] == ["a", "b"]
    assert caught.value.worker == "a"


def test_rerouted_calls_count_as_traffic_of_unhealthy_workers():
    first, second = named("a"), named("b")
    resting(first)
    order([first, second], replace(CALL, terms=Terms(payer="key", team="team")))
    assert first.health.witnesses.traffic.has_others("another")
    assert not first.health.witnesses.traffic.has_others("team"), "keys of a team are one tenant"
    assert not second.health.witnesses.traffic.has_others("another")


def test_a_prompt_too_long_for_one_worker_is_the_reported_error():
    before = Attempt("a", "ContextOverflow", "It is too long.")
    overflow = ContextOverflow("It is too long.", worker="a")
    last = WorkerUnavailable("It is down.", worker="b", cost_usd=1)
    error = last_error(last, [DOWN, overflow], [before], took_s=2.0)
    assert isinstance(error, ContextOverflow)
    assert (error.worker, error.cost_usd) == ("a", 1)
    assert [(each.worker, each.took_s, each.cost_usd) for each in error.attempts] == [
        ("a", None, None),
        ("b", 2.0, None),
    ]
    assert last_error(last, [DOWN], [before], took_s=2.0) is last
    assert last.attempts == (before,)
