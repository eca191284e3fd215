"""Hypothesis strategies for plans."""

from hypothesis import strategies as st

from conductor.plan.plan import Plan, Step

NAMES = ("alpha", "beta", "gamma")
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=30).map(str.strip)
spoken = st.text("abc ,.'()[]{}:=é世-", max_size=24).map(lambda text: " ".join(text.split()))
"""Subtasks that the grammar can express, the empty one included."""


@st.composite
def plans(draw: st.DrawFn, subtasks: st.SearchStrategy[str] = words, max_steps: int = 5) -> Plan:
    count = draw(st.integers(1, max_steps))
    accesses = [sorted(draw(st.sets(st.integers(0, index - 1)))) if index else [] for index in range(count)]
    return Plan(
        tuple(Step(draw(st.sampled_from(NAMES)), draw(subtasks), tuple(access)) for access in accesses)
    )


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    """Split `text` into random pieces."""
    places = sorted(draw(st.sets(st.integers(1, max(len(text) - 1, 1)), max_size=12)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
