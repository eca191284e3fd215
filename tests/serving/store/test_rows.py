"""Packing of rows. Every value must round-trip, even if the fast JSON encoder rejects it."""

import pytest

from conductor.model.reply import FinishReason
from conductor.run.events import RunFinished
from serving.store.rows import Item, event_row, load_items

ODD = ["half a character: \ud800", "nothing odd: é ☃"]


@pytest.mark.parametrize("text", ODD, ids=["half", "whole"])
def test_a_text_round_trips(text: str) -> None:
    items = [Item(1, "wf_1", RunFinished(0.5, text, FinishReason.STOP))]
    assert load_items("wf_1", [event_row("wf_1", items).body]) == items


@pytest.mark.parametrize("at_s", [float("inf"), float("-inf"), 1e300, 5e-324])
def test_a_number_that_json_cannot_represent_round_trips(at_s: float) -> None:
    items = [Item(2**70, "wf_1", RunFinished(at_s, "", FinishReason.STOP))]
    assert load_items("wf_1", [event_row("wf_1", items).body]) == items
