import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.errors import InvalidPlan, Reason
from conductor.plan.plan import Plan, PlanBuilder, Step
from tests.conductor.plans import NAMES, plans

any_step = st.builds(
    Step,
    worker=st.sampled_from([*NAMES, "stranger"]),
    subtask=st.text(max_size=5),
    access=st.lists(st.integers(-2, 6), max_size=4).map(tuple),
)


@given(st.lists(any_step, max_size=7) | plans().map(lambda plan: list(plan.steps)), st.integers(1, 5))
def test_every_plan_object_can_run(steps: list[Step], max_steps: int) -> None:
    try:
        plan = Plan.of(steps, NAMES, max_steps)
    except InvalidPlan:
        return
    assert 1 <= len(plan.steps) <= max_steps
    for index, step in enumerate(plan.steps):
        assert step.worker in NAMES
        assert all(0 <= read < index for read in step.access)
        assert list(step.access) == sorted(set(step.access))
        assert set(step.access) == set(steps[index].access)


@given(plans())
def test_rebuilding_a_plan_returns_an_equal_plan(plan: Plan) -> None:
    assert Plan.of(plan.steps, NAMES, len(plan.steps)) == plan


@given(plans())
def test_the_reachable_steps_are_those_that_the_last_step_needs(plan: Plan) -> None:
    def reach(index: int) -> set[int]:
        return {index}.union(*(reach(read) for read in plan.steps[index].access))

    assert plan.reachable == reach(len(plan.steps) - 1)


@pytest.mark.parametrize(
    ("steps", "reason", "at"),
    [
        ([], Reason.NO_PLAN, None),
        ([Step("stranger", "x")], Reason.UNKNOWN_WORKER, 0),
        ([Step("alpha", "x", (0,))], Reason.READS_FORWARD, 0),
        ([Step("alpha", "x"), Step("alpha", "x", (0, 1))], Reason.READS_FORWARD, 1),
        ([Step("alpha", "x"), Step("alpha", "x", (-1,))], Reason.READS_FORWARD, 1),
        ([Step("alpha", "x")] * 4, Reason.TOO_MANY_STEPS, 3),
    ],
)
def test_each_fault_has_its_reason_and_names_its_step(
    steps: list[Step], reason: Reason, at: int | None
) -> None:
    with pytest.raises(InvalidPlan) as refused:
        Plan.of(steps, NAMES, 3)
    assert (refused.value.reason, refused.value.step) == (reason, at)


@given(plans(), any_step)
def test_a_rejected_step_does_not_change_the_draft(plan: Plan, step: Step) -> None:
    draft = PlanBuilder(NAMES, 5, list(plan.steps))
    try:
        draft.add(step)
    except InvalidPlan:
        assert tuple(draft.steps) == plan.steps
    else:
        assert len(draft.steps) == len(plan.steps) + 1
