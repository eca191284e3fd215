import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.workers.programs.process import NotForProgram
from serving.workers.programs.question import read_question
from serving.workers.programs.text_tools import TextTools
from tests.serving.workers.programs.phrasings import NOT_FOR_ANY, check, check_refusals, never_fails, say

TOOLS = TextTools("tools")
ANSWERS = {
    "Sort these numbers: 5, 3, 10, 1": "1, 3, 5, 10",
    "sort the numbers from largest to smallest: 5, 3, 10": "10, 5, 3",
    "Put these in order: banana, apple": "apple, banana",
    "sort alphabetically in reverse order:\nb\na\nc": "c\nb\na",
    "Convert to uppercase: hello world": "HELLO WORLD",
    "write \"hello world\" in capital letters": "HELLO WORLD",
    "make this title case: the quick brown fox's den": "The Quick Brown Fox's Den",
    "lowercase this: HELLO There": "hello there",
    "How many words are in this sentence: The quick brown fox": "The text has 4 words.",
    "count the words in \"I am here now\"": "The text has 4 words.",
    "how many sentences are in this text: One. Two! Three?": "The text has 3 sentences.",
    "Extract the email addresses from this text: write to a@b.com or c.d@e.org.": "a@b.com\nc.d@e.org",
    "extract all numbers: I have 3 cats, 1,200 dogs and 2.5 birds": "3\n1,200\n2.5",
    "find all dates in this text: Born 3 May 1990, moved 2001-02-03.": "3 May 1990\n2001-02-03",
    "extract the urls: see https://a.example/x?y=1, or not": "https://a.example/x?y=1",
    "extract the hashtags: nothing here": "The text contains no hashtags.",
    "remove duplicates: a, b, a, c": "a, b, c",
    "lowercase: HELLO WORLD.": "hello world.",
    "uppercase: a) one b) two": "A) ONE B) TWO",
    "convert this CSV to JSON:\none,two\na. 0,b. 0": "[\n  {\n    \"one\": \"a. 0\",\n    \"two\": \"b. 0\"\n  }\n]",
    "reverse the words: one two three": "three two one",
    "convert this CSV to JSON:\nname,age\nAnn,3": "[\n  {\n    \"name\": \"Ann\",\n    \"age\": \"3\"\n  }\n]",
    "convert this json to csv: [{\"a\": 1.50, \"b\": \"x\"}, {\"a\": 2, \"b\": null}]": "a,b\n1.50,x\n2,",
    "make a table:\nname,age\nAnn,3": "| name | age |\n| --- | --- |\n| Ann | 3 |",
    "minify this json: { \"a\": [1, 2.500] }": "{\"a\":[1,2.500]}",
    "pretty print this json: {\"a\":[1,{\"b\":[]}]}": "{\n  \"a\": [\n    1,\n    {\n      \"b\": []\n    }\n  ]\n}",
    "is this valid json: {\"a\":}": "No. The text is not valid JSON: Expecting value: line 1 column 6 (char 5).",
    "Summarize this text in 1 sentence: Cats are small animals. Cats like milk and cats sleep. Dogs bark. The end is near.": "Cats are small animals.",
}  # fmt: skip
REFUSED = (
    "Sort these from smallest to biggest: elephant, mouse, dog", "translate this: hello", "write a table of contents: for my book",
    'Is "hello" a noun?', "sort my life out", "summarize: Too short.", "Summarize the plot of Hamlet", "convert this csv to json: hello",
    "convert this json to csv: 5", "pretty print this json: {,}", "convert this CSV to JSON:\na,a\n1,2", "uppercase", "Extract the main idea: a b c",
    "count the sheep: one two", "Rewrite this text in a formal tone: hey", "make it shorter: a long text", "fix the grammar: me is here",
    "reply to this email: Dear Ann, come", "continue this story: Once upon a time", "sort these numbers: one, two, 3x", "list the items:",
)  # fmt: skip
CELLS = st.text("abcXYZ 0123é.-", min_size=1, max_size=8).map(str.strip).filter(bool)


def test_ordinary_phrasings_have_exact_answers():
    check(TOOLS, ANSWERS)


def test_questions_outside_its_scope_are_rejected():
    check_refusals(TOOLS, (*NOT_FOR_ANY, *REFUSED))


def test_no_input_raises_an_unexpected_error():
    never_fails(TOOLS)


@given(st.lists(st.integers(-(10**9), 10**9), min_size=2, max_size=30))
def test_numbers_are_sorted_as_python_sorts_them(numbers: list[int]):
    question = f"sort these numbers: {', '.join(map(str, numbers))}"
    assert say(TOOLS, question) == ", ".join(map(str, sorted(numbers)))


@given(st.lists(st.lists(CELLS, min_size=2, max_size=2), min_size=1, max_size=6))
def test_csv_round_trips_through_json(rows: list[list[str]]):
    table = "\n".join(",".join(row) for row in [["one", "two"], *rows])
    as_json = say(TOOLS, f"convert this CSV to JSON:\n{table}")
    assert [list(row.values()) for row in json.loads(as_json)] == rows
    assert say(TOOLS, f"convert this JSON to CSV:\n{as_json}") == table


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(st.characters(codec="ascii", min_codepoint=32, blacklist_characters="`"), max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text("xyz", max_size=3), JSON, min_size=1, max_size=3))
def test_formatting_json_does_not_change_its_value(value: object):
    for verb in ("pretty print", "minify"):
        assert json.loads(say(TOOLS, f"{verb} this json:\n{json.dumps(value)}")) == value


def test_the_output_of_an_earlier_step_can_be_transformed():
    question = read_question("Convert the text above to uppercase.", ["an answer"])
    assert TOOLS.reply(question) == "AN ANSWER"


OUTPUTS = ("The capital of Peru is Lima.", "17 % of 2,450 is 416.5.")


@pytest.mark.parametrize(
    "wish", ["list both answers", "Then list both.", "combine the results", "put them together"]
)
def test_the_outputs_of_several_steps_are_joined(wish: str):
    assert TOOLS.reply(read_question(wish, OUTPUTS)) == "\n".join(OUTPUTS)


@pytest.mark.parametrize("wish", ["write one sentence with both", "sum both up in one sentence"])
def test_the_outputs_of_several_steps_become_one_sentence(wish: str):
    joined = "The capital of Peru is Lima; 17 % of 2,450 is 416.5."
    assert TOOLS.reply(read_question(wish, OUTPUTS)) == joined


@pytest.mark.parametrize("outputs", [(), OUTPUTS[:1]])
def test_a_wish_to_join_outputs_needs_several(outputs: tuple[str, ...]):
    with pytest.raises(NotForProgram):
        TOOLS.reply(read_question("list both answers", outputs))
