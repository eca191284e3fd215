"""Edits of worker fields in the text of a settings file. The rest of the text must not change."""

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from serving.settings.edit import edit_workers
from serving.settings.settings import SettingsError, load, parse

ROOT = Path(__file__).parents[2]
SHIPPED = [
    path
    for path in sorted([*ROOT.glob("cluster/*.yaml"), *ROOT.glob("training/pools/*.yaml")])
    if re.search("^workers:", path.read_text("utf-8"), re.MULTILINE)
]
BLOCK = """\
# the team
workers:
  - name: a   # the first
    kind: scripted
    card: >- # why
      Folded
      over lines.

    # about its price
    price: {input_usd_per_mtok: 1, output_usd_per_mtok: 2}
  - {kind: scripted, name: b, replies: ["x"]} # the second
  - kind: scripted
    name: c"""


def test_the_shipped_files_exist():
    assert len(SHIPPED) >= 6


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_an_edit_changes_only_the_edited_fields_of_a_shipped_file(path: Path):
    text = path.read_text("utf-8")
    names = [worker.name for worker in load(path).workers if worker.tokens_per_s is None]
    edited = edit_workers(text, {name: {"tokens_per_s": 98765} for name in names})
    assert edited.count("98765") == len(names) > 0
    assert re.sub(r"(, |\n +)tokens_per_s: 98765", "", edited) == text


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_replacing_the_cards_of_a_shipped_file_keeps_its_comments(path: Path):
    text = path.read_text("utf-8")
    cards = {worker.name: f'its {number} %: "all"' for number, worker in enumerate(load(path).workers)}
    edited = edit_workers(text, {name: {"card": card} for name, card in cards.items()})
    assert {worker.name: worker.card for worker in parse(yaml.safe_load(edited)).workers} == cards
    assert re.findall(r"(?:^|\s)#.*", edited) == re.findall(r"(?:^|\s)#.*", text)


def test_values_are_replaced_and_new_fields_follow_the_name():
    fields = {"a": {"card": "new", "tokens_per_s": 80}, "b": {"card": "2"}, "c": {"card": "3"}}
    assert (
        edit_workers(BLOCK, fields)
        == """\
# the team
workers:
  - name: a   # the first
    tokens_per_s: 80
    kind: scripted
    card: "new" # why

    # about its price
    price: {input_usd_per_mtok: 1, output_usd_per_mtok: 2}
  - {kind: scripted, name: b, card: "2", replies: ["x"]} # the second
  - kind: scripted
    name: c
    card: "3\""""
    )


def test_windows_line_ends_are_kept():
    edited = edit_workers("workers:\r\n  - name: a\r\n    kind: scripted\r\n", {"a": {"card": "x"}})
    assert edited == 'workers:\r\n  - name: a\r\n    card: "x"\r\n    kind: scripted\r\n'


@pytest.mark.parametrize(
    "text", ["workers: [{name: a, card: }]", "workers:\n- name: a\n  card:\n  kind: openai\n"]
)
def test_an_empty_value_is_filled_in(text: str):
    assert edit_workers(text, {"a": {"card": "x"}}) == text.replace("card:", 'card: "x"')


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=60))
def test_any_text_can_be_a_card(card: str):
    for text in (BLOCK, "workers: [{name: a, kind: scripted, card: old}]"):
        assert yaml.safe_load(edit_workers(text, {"a": {"card": card}}))["workers"][0]["card"] == card


MERGED = """\
workers:
  - &first {name: a, kind: scripted, card: old}
  - {<<: *first, name: b}
"""


def test_a_value_that_another_worker_inherits_is_not_changed_for_both():
    with pytest.raises(SettingsError, match=r"also change other fields of worker 'b'"):
        edit_workers(MERGED, {"a": {"card": "new"}})
    both = edit_workers(MERGED, {"a": {"card": "new"}, "b": {"card": "own"}})
    assert [worker["card"] for worker in yaml.safe_load(both)["workers"]] == ["new", "own"]
    assert yaml.safe_load(edit_workers(MERGED, {"b": {"card": "own"}}))["workers"][0]["card"] == "old"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shared: &c old\nworkers: [{name: a, card: *c}]", "alias"),
        ("workers: [{name: a, card: &c old}, {name: b, card: *c}]", "make the file invalid YAML"),
        ("workers: [{name: b}]", "No worker is named 'a'. Known workers: b"),
        ("workers: {a: 1}", "must have a list named `workers`"),
        ("workers: [", "not valid YAML"),
    ],
)
def test_an_invalid_edit_is_rejected(text: str, message: str):
    with pytest.raises(SettingsError, match=message):
        edit_workers(text, {"a": {"card": "new"}})
