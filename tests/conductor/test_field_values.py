"""Copies of frozen dataclasses are what the standard library makes of them."""

from dataclasses import replace

import pytest

from conductor.model.call import Call, CallSite, Sampling
from conductor.model.field_values import copy_with
from conductor.model.messages import Message
from conductor.model.usage import Usage

CALL = Call((Message.of("user", "hi"),), Sampling(temperature=0.5), site=CallSite("wf_1"))
"""Without slots; a `Usage` has some."""


@pytest.mark.parametrize(
    ("value", "changes"),
    [
        (CALL, {"coalesce": True, "prefix": "It"}),
        (CALL, {}),
        (Usage(3, 4), {"output_tokens": 5}),
        (Usage(3, 4), {}),
    ],
)
def test_a_copy_has_the_changes_and_all_else_and_the_original_stays(
    value: Call | Usage, changes: dict[str, object]
):
    before = repr(value)
    copied = copy_with(value, **changes)
    assert (copied, repr(copied)) == (replace(value, **changes), repr(replace(value, **changes)))  # type: ignore[arg-type]
    assert hash(copied) == hash(replace(value, **changes))  # type: ignore[arg-type]
    assert repr(value) == before


@pytest.mark.parametrize("value", [CALL, Usage(3, 4)])
def test_a_field_that_is_not_there_is_told(value: Call | Usage):
    with pytest.raises(KeyError, match="colour"):
        copy_with(value, colour="red")
