"""Everyday questions, and the grader of answers by people and small models."""

import asyncio
import re
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluation import EvaluationError
from evaluation.answer_extraction import OPENING_WORDS
from evaluation.graders import extract, grade
from evaluation.grading_mentions import RULES
from evaluation.questions import Question
from evaluation.sources import load
from evaluation.sources.everyday import FAMILIES

EVERY = load("everyday")
BY_TEXT = {question.text: question for question in EVERY}
QUESTIONS = st.sampled_from(EVERY)
CHOSEN = st.sampled_from([q for q in EVERY if q.facts.get("rule", "one") in ("one", "start")])
ELSEWHERE = "\n\nI hope that this helps you with your work. Let us talk about kangaroos."


def is_right(question: Question, answer: str) -> bool:
    return asyncio.run(grade(question, answer)).correct


def spell(item: str) -> str:
    """Return an accepted or rejected item as people write it."""
    return re.sub(r"\((\w+)\)", r"\1", item)


def right_answer(question: Question, pick: int = 0) -> str:
    """Return one of the accepted answers, and nothing else."""
    accepted = [spell(item) for item in question.facts["accepted"]]
    match question.facts.get("rule", "one"):
        case "sequence":
            return ", ".join(accepted)
        case "several":
            first = pick % len(accepted)
            return " and ".join((accepted + accepted)[first : first + question.facts["count"]])
        case _:
            return accepted[pick % len(accepted)]


def test_two_hundred_questions_are_for_tests_and_share_no_text_with_the_others():
    test, train = load("everyday?part=test"), load("everyday?part=train")
    words = [{" ".join(re.findall(r"\w+", q.text.casefold())) for q in part} for part in (test, train)]
    assert (len(test), len(words[0])) == (200, 200)
    assert len(train) == len(words[1]) >= 60
    assert words[0].isdisjoint(words[1])
    assert {q.id for q in EVERY} == {q.id for q in test} | {q.id for q in train}


@pytest.mark.parametrize("part", ["test", "train"])
def test_each_part_has_every_family_in_the_same_shares(part: str):
    whole, questions = Counter(q.family for q in EVERY), load(f"everyday?part={part}")
    for family, number in Counter(q.family for q in questions).items():
        assert abs(number / len(questions) - whole[family] / len(EVERY)) < 0.01
    assert {q.family for q in questions} == set(FAMILIES)


def test_questions_may_be_limited_to_one_family():
    assert {q.family for q in load("everyday?family=sums&part=test")} == {"sums"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("everyday?part=dev", "part='dev' must be one of all, train, test"),
        ("everyday?family=poems", "family='poems' must be one of all, facts"),
        ("everyday:facts", "does not accept 'facts'"),
        ("everyday?seed=1", "no option 'seed'"),
    ],
)
def test_an_invalid_option_is_an_error_with_the_valid_ones(name: str, message: str):
    with pytest.raises(EvaluationError) as caught:
        load(name)
    assert message in caught.value.message


def test_every_question_has_the_facts_of_its_rule():
    for question in EVERY:
        facts = question.facts
        rule = facts.get("rule", "one")
        assert rule in RULES, question.id
        assert ("count" in facts) == (rule == "several"), question.id
        assert not set(facts["accepted"]) & set(facts.get("refused", [])), question.id
        assert "<answer>" not in question.text
        assert not re.search(r"\b(today|current|this year|recent|20\d\d)\b", question.text), question.id


@given(
    QUESTIONS,
    st.integers(0, 50),
    st.sampled_from([str, str.upper, str.title, "**{}**".format, " {}.\n".format]),
)
def test_an_answer_of_only_the_requested_item_is_correct(
    question: Question, pick: int, write: Callable[[str], str]
):
    assert is_right(question, write(right_answer(question, pick)))


@given(QUESTIONS, st.text(alphabet=" \n\t.,!?*\"'()", max_size=30))
def test_an_answer_without_words_is_wrong(question: Question, blank: str):
    assert not is_right(question, blank)


@given(QUESTIONS)
def test_repeating_the_question_is_wrong(question: Question):
    assert not is_right(question, question.text)
    assert not is_right(question, question.text.rstrip("?") + ".")


@given(st.data(), st.sampled_from([", ", " or ", " and ", "\n", "\n- ", "/"]))
def test_an_answer_that_lists_every_candidate_is_wrong(data: st.DataObject, joint: str):
    question = data.draw(
        QUESTIONS.filter(lambda q: bool(q.facts.get("refused")) and q.facts.get("rule") != "sequence")
    )
    every = [spell(item) for item in question.facts["accepted"] + question.facts["refused"]]
    listed = data.draw(st.permutations(every))
    assert not is_right(question, f"- {joint.join(listed)}" if joint == "\n- " else joint.join(listed))


@given(st.data())
def test_an_excluded_answer_is_wrong_even_before_a_correct_one(data: st.DataObject):
    question = data.draw(QUESTIONS.filter(lambda each: bool(each.facts.get("refused"))))
    refused = spell(data.draw(st.sampled_from(question.facts["refused"])))
    assert not is_right(question, f"{refused.capitalize()}. {right_answer(question).capitalize()}.")


@given(CHOSEN, st.integers(0, 50))
def test_text_after_a_correct_sentence_is_ignored(question: Question, pick: int):
    answer = right_answer(question, pick).capitalize()
    refused = [spell(item) for item in question.facts.get("refused", [])]
    for after in (ELSEWHERE, f" {' and '.join(refused)} are other things to know about."):
        assert is_right(question, f"{answer}.{after}")


@given(CHOSEN, st.integers(0, 50))
def test_a_correct_word_after_the_opening_does_not_count(question: Question, pick: int):
    ramble = "This topic has always fascinated people. " * OPENING_WORDS
    assert not is_right(question, ramble + right_answer(question, pick))


RIGHT = [
    ("What is the capital of France?", "The capital of France is Paris."),
    (
        "What is the capital of France?",
        "Hello! I'd be happy to help. The capital of France is **Paris**, not Lyon.",
    ),
    ("What is the capital of France?", "Paris, France"),
    ("What is the capital of France?", "The capital of France is:\n\nParis"),
    ("What is the capital of France?", "It is not Lyon. It is Paris."),
    ('Which animal says "meow"?', 'Cats say "meow" because they want food, while dogs bark.'),
    ("Which is bigger, an elephant or a mouse?", "An elephant is bigger than a mouse."),
    ("Which is bigger, an elephant or a mouse?", "Between an elephant and a mouse, the elephant is bigger."),
    ("Which is bigger, an elephant or a mouse?", "Which is bigger, an elephant or a mouse? The elephant is."),
    ("Is the Sun a star or a planet?", "The Sun is a star."),
    ("How many legs does a spider have?", "A spider has eight legs."),
    ("How many months are there in a year?", "There are 12 months in 1 year."),
    ("What is 3 + 4?", "3 + 4 = 7"),
    ("What is 3 + 4?", "The sum of three and four is seven."),
    ("What is 3 + 4?", "\\( 3 + 4 = 7.0 \\)"),
    ("What is half of 10, that is, 10 divided by 2?", "Half of 10 is 10 / 2 = 5."),
    ("How much is 6 times 3?", "6 x 3 = 6 + 6 + 6 = **18**"),
    ("Tom has 10 sweets and eats 4. How many are left?", "Tom had 10 sweets. He ate 4. So there are 6 left."),
    ("How many grams are in a kilogram?", "There are 1,000 grams in a kilogram."),
    ("How many metres are in a kilometre?", "One kilometre is a thousand metres."),
    (
        "At how many degrees Celsius does water boil at sea level?",
        "Water boils at 100 degrees Celsius (212 F).",
    ),
    ("Which number is bigger, 12 or 21?", "21 is bigger than 12."),
    ("What is the opposite of hot?", "The opposite of hot is cold."),
    ('What is the past tense of "go"?', 'The past tense of "go" is "went".'),
    ('What is the first letter of the word "dog"?', "The first letter of the word 'dog' is 'D'."),
    ('Spell the word "cat" backwards.', '"cat" backwards is "t-a-c".'),
    ('Spell the word "cat" backwards.', "T A C"),
    ("Which is the odd one out: apple, banana, car, pear?", "Apple, banana, car and pear: car"),
    (
        "Which is the odd one out: apple, banana, car, pear?",
        "The odd one out is car, because apple is a fruit.",
    ),
    ("Which word is not a number: two, seven, shoe, ten?", "The word that is not a number is shoe."),
    (
        "Sort these words alphabetically: dog, cat, bird.",
        "dog, cat, bird in order is:\n1. Bird\n2. Cat\n3. Dog",
    ),
    ("Sort these words alphabetically: dog, cat, bird.", "The sorted words are bird, cat, and dog."),
    ('Which spelling is right, "becuase" or "because"?', 'The right spelling is "because".'),
    ('How do you say "dog" in Spanish?', 'In Spanish, "dog" is "perro".'),
    ('What does "gracias" mean in English?', '"Gracias" means "thank you" in Spanish.'),
    ("How many legs does an insect have?", "Insects have three pairs of legs."),
    (
        "If a week has 7 days, how many days are in two weeks?",
        "A week has 7 days, so two weeks have 14 days.",
    ),
    (
        "Tom has 10 sweets and eats 4. How many are left?",
        "1. Tom has 10 sweets.\n2. He eats 4.\n3. 10 - 4 = 6",
    ),
    ("How many minutes are in an hour?", "60min"),
    ("What is the capital of France?", "_Paris_"),
    ("Say hello.", "Hello! How can I help you today?"),
    ('Reply with only the word "banana".', '"Banana."'),
    ("Name two fruits.", "1. **Apple**: a sweet fruit.\n2. **Banana** - a yellow fruit."),
    ("Name two fruits.", "Sure! Two fruits are apples and bananas."),
    ("Count from 1 to 5.", "1\n2\n3\n4\n5"),
    ("yes or no: do dogs have tails?", "Yes, dogs have tails."),
    ("Can penguins fly? Just say yes or no.", "No."),
]
WRONG = [
    ("What is the capital of France?", "The capital of France is Lyon, and Paris is a large city."),
    ("What is the capital of France?", "France has many cities, such as Lyon, Nice and Paris."),
    ("What is the capital of France?", "The capital of France is not Paris."),
    ("What is the capital of France?", "I am a helpful assistant."),
    ("What color is a ripe banana?", "A ripe banana is yellow, green, or brown."),
    ("What color is a ripe banana?", "Yellow\nGreen\nBrown"),
    ("Which is bigger, an elephant or a mouse?", "A mouse is bigger than an elephant."),
    ("Which is bigger, an elephant or a mouse?", "An elephant and a mouse."),
    ("Is the Sun a star or a planet?", "The Sun is a planet, a star and a moon."),
    ("What is 3 + 4?", "3 + 4 = 8"),
    ("What is 3 + 4?", "It is 6 or 7."),
    ("What is 3 + 4?", "3 + 4 = 7 = 8"),
    ("What is 3 + 4?", "To add numbers, we start at 3. Then 4 more gives 8, and 7 is near."),
    ("What is 3 + 4?", "17"),
    ("What is 3 + 4?", "7.5"),
    ("What is 3 + 4?", "It is the 7th number."),
    ("how do you say hello in spanish", "adiós, hola"),
    ('What is the first letter of the word "dog"?', "The word is dog."),
    ("How many days are in a week?", "A week has 5 days of work, and 7 with the weekend."),
    ("What is the opposite of hot?", "The opposite of hot is warm."),
    ("Say one word that rhymes with cat.", "Dog, house, hat, tree."),
    ("Say one word that rhymes with cat.", "Cat"),
    ('What is the plural of "dog"?', "The plural of dog is dog."),
    ("Which is the odd one out: apple, banana, car, pear?", "Apple, banana, car, pear"),
    ("Which is the odd one out: apple, banana, car, pear?", "The odd one out is banana. A car is a vehicle."),
    ("Sort these words alphabetically: dog, cat, bird.", "dog, cat, bird"),
    ("Sort these words alphabetically: dog, cat, bird.", "bird, cat"),
    ("Name two fruits.", "Apple, banana, cherry, grape, mango and orange."),
    ("Name two fruits.", "Apple, carrot and banana."),
    ("Name two fruits.", "Apple, brick, banana."),
    ("Name two fruits.", "An apple."),
    ('Reply with only the word "banana".', "Sure, here is the word: banana"),
    ('Reply with only the word "banana".', "banana banana banana"),
    ("Count from 1 to 5.", "1, 2, 3, 5"),
    ("yes or no: do dogs have tails?", "Yes or no"),
    ("yes or no: do dogs have tails?", "Yes, no, maybe."),
    ("yes or no: do dogs have tails?", "Dogs have tails, yes."),
]


@pytest.mark.parametrize(("text", "answer"), RIGHT)
async def test_a_correct_answer_in_a_small_models_style_is_accepted(text: str, answer: str):
    verdict = await grade(BY_TEXT[text], answer)
    assert verdict.correct, verdict.why


@pytest.mark.parametrize(("text", "answer"), WRONG)
async def test_a_wrong_or_rambling_answer_is_rejected_with_a_reason(text: str, answer: str):
    verdict = await grade(BY_TEXT[text], answer)
    assert (verdict.correct, bool(verdict.why)) == (False, True)


def test_only_the_items_of_a_list_are_extracted():
    question = BY_TEXT["Name two fruits."]
    assert (
        extract(question, "Here are two:\n1. Red: like blood.\n2) Blue (the sky)")
        == "Here are two:\nRed, Blue"
    )
    assert extract(question, "1. Red: like blood.") == "1. Red: like blood."
    assert extract(question, "Answer: Paris\n\nIt is large there.") == "Answer: Paris\nIt is large there."
