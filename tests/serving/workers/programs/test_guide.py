"""Follow-up questions and double questions to the bundled team, and its honest refusals."""

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from cluster.local.demo import QUESTION
from conductor.model.call import Call
from conductor.model.messages import Message
from conductor.model.worker import PoolMember
from conductor.run.task import Task
from serving import ROOT
from serving.pool import Pool, build_pool
from serving.settings.keys import GUIDE
from serving.settings.overrides import settings_to_serve
from serving.settings.settings import Settings, load, parse
from tests.serving.api.served import scripted, served, step, team
from tests.serving.api_pools import KEYS
from tests.serving.workers.subjects import Behaviour, ScriptedEngine

pytestmark = pytest.mark.real_time  # programs answer in a thread

LOCAL = ROOT / "cluster/local.yaml"
HONEST = "The bundled team has no worker that can answer this reliably."
WRITTEN = "This is written by the model."


def pool_of(settings: Settings, environment: Mapping[str, str] | None = None) -> Pool:
    engine = ScriptedEngine(Behaviour(text=WRITTEN))
    return build_pool(settings, environment or {}, {"conductor": engine, "writer": engine})


BUNDLED = pool_of(load(LOCAL))


async def ask(member: PoolMember, *turns: str) -> tuple[str, str]:
    """Return the worker that answers the last user turn, and its answer."""
    messages = [Message.of("user" if n % 2 == 0 else "assistant", text) for n, text in enumerate(turns)]
    async with member.worker.open(Call(tuple(messages))) as reply:
        text = "".join([delta.text async for delta in reply])
    return reply.worker, text


async def ask_turns(worker: str, *questions: str) -> tuple[str, str]:
    """Ask the questions in turn, and return the worker and the answer of the last one."""
    turns: list[str] = []
    answered = ("", "")
    for question in questions:
        answered = await ask(BUNDLED.team.pool[worker].for_conductor, *turns, question)
        turns += [question, answered[1]]
    return answered


FIRST_PAGES = ("README.md", "docs/messages.md", "docs/responses.md", "docs/tutorials/first-answer.md")
EXAMPLE = re.compile(r"(?:\"content\": |input=|podium ask )[\"']([^\"']+)[\"']")


@pytest.mark.parametrize(
    "question",
    dict.fromkeys([QUESTION, *(match[1] for page in FIRST_PAGES for match in [EXAMPLE.search((ROOT / page).read_text("utf-8"))] if match)]),
)  # fmt: skip
async def test_the_default_team_answers_the_questions_of_demo_and_tutorials(question: str):
    worker, text = await ask_turns("calculator", question)
    assert worker != "writer"
    assert not text.startswith(HONEST)


@pytest.mark.parametrize(
    "question",
    [
        "How do I boil an egg?", "What do jellyfish dream of?", "Explain quantum physics to a child.", "Who is the best singer?",
        "Write a Python function that sorts a list.", "Why do cats purr", "Tell me about submarines.",
        "What is the opposite of hot, and who is the best singer?", "Translate 'the cat sat on the mat' into French.",
        "Thanks! And how do I boil an egg?", "What is the largest planet? How far is it from the Sun?", "Can you explain how engines work?",
    ],
)  # fmt: skip
async def test_a_question_that_no_program_can_answer_gets_an_honest_reply(question: str):
    worker, text = await ask_turns("almanac", question)
    assert worker == "guide"
    assert text.startswith(HONEST)
    assert "podium serve --model " in text


@pytest.mark.parametrize(
    "question",
    [
        "hi there", "thanks", "Thanks!", "Good morning!", "How are you?", "I'm bored", "My day was long.", "Tell me a joke.", "Do you like music?",
        "Write a short poem about rain.", "Write an email to my boss that I am ill today.", "Can you write me a birthday message?",
        "What should I write to a friend who is sad?", "Tell me a story about a dragon", "Make it shorter.", "Use it in a sentence.",
        "Write two lines with it.", "Give me a slogan for a bakery", "What is your name?", "Could you make it funnier?",
    ],
)  # fmt: skip
async def test_writing_and_small_talk_go_to_the_writer(question: str):
    assert await ask_turns("almanac", question) == ("writer", WRITTEN)


async def test_the_guide_describes_the_teams_abilities():
    worker, text = await ask_turns("writer", "What can you do?")
    assert (worker, text[:28]) == ("guide", "This is the bundled team. It")


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is the opposite of hot, and what is the capital of Peru?", 'The opposite of "hot" is "cold".\nThe capital of Peru is Lima.'),
        ("How many grams are in a pound? And who wrote Hamlet?", "1 pound is 453.59237 grams.\nWilliam Shakespeare wrote Hamlet."),
        ("What is 2 + 3? What is 4 + 5?", "2 + 3 = 5.\n4 + 5 = 9."),
        (
            "Three things. First: what is the capital of Japan? Second: what is 17 % of 2,450? Third: list both answers.",
            "The capital of Japan is Tokyo.\n17 % of 2,450 is 416.5.",
        ),
        (
            "What is the currency of Japan, and how many days has February 2028?",
            "The currency of Japan is the Japanese Yen (JPY).\nFebruary 2028 has 29 days.",
        ),
        (
            "Convert 10 miles to kilometres, convert 70 kg to pounds, and then list both.",
            "10 miles are 16.09344 kilometres.\n70 kilograms are about 154.324 pounds.",
        ),
    ],
)  # fmt: skip
async def test_a_double_question_is_answered_if_programs_can_answer_both(question: str, answer: str):
    assert await ask_turns("atlas", question) == ("guide", answer)


@pytest.mark.parametrize("worker", ["writer", "solver", "critic"])
async def test_a_program_answers_although_the_plan_names_a_model(worker: str):
    assert await ask_turns(worker, "Finish the proverb: Better late than ...") == (
        "dictionary", 'The missing word is "never". The whole saying: "Better late than never."',
    )  # fmt: skip
    assert await ask_turns(worker, "Tell me a joke.") == (worker, WRITTEN)


async def test_a_model_called_by_its_name_answers_itself():
    assert await ask(BUNDLED.members["writer"], "What is 2 + 3?") == ("writer", WRITTEN)


FOLLOW_UPS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "another amount": (("How many grams are in a pound?", "and in 3 pounds?"), "3 pounds are about 1,360.78 grams."),
    "another country": (("What's the capital of Canada?", "And of Australia?"), "The capital of Australia is Canberra."),
    "a third country": (
        ("What's the capital of Canada?", "And of Australia?", "What about Peru?"), "The capital of Peru is Lima.",
    ),
    "another phrase": (
        ('How do you say "thank you" in Italian?', "and good morning?"), '"good morning" is "buongiorno" in Italian.',
    ),
    "another language": (
        ('How do you say "thank you" in Italian?', "And in Spanish?"), '"thank you" is "gracias" in Spanish.',
    ),
    "another order": (
        ("Sort these words alphabetically: pear, apple, mango", "Now in reverse alphabetical order: pear, apple, mango"),
        "pear, mango, apple",
    ),
    "another direction": (
        ("Count from 1 to 5", "Now backwards from 5 to 1"), "5, 4, 3, 2, 1.",
    ),
    "another number": (("Is 91 a prime number?", "And 97?"), "Yes, 97 is a prime number."),
    "a reason": (("Is 91 a prime number?", "Why?"), "91 is not a prime number, because it is 7 × 13."),
    "a reason of a prime": (
        ("Is 97 a prime number?", "Why?"), "97 is a prime number, because no whole number from 2 to 9 divides it.",
    ),
    "a check": (
        ("Solve 2x + 6 = 20", "Check it please."), "The solution of 2x + 6 = 20 is right: for x = 7, both sides are 20.",
    ),
    "a person": (("Who painted the Mona Lisa?", "When was he born?"), "Leonardo da Vinci was born in 1452."),
    "a planet": (("What is the largest planet?", "And the smallest?"), "Mercury is the smallest planet of the solar system."),
    "a word": (("Spell the word necessary", "How many letters does it have?"), '"necessary" has 9 letters.'),
    "a country": (("What's the capital of Canada?", "What currency does it use?"), "The currency of Canada is the Canadian Dollar (CAD)."),
    "a calculation with the result": (("What is 12 + 30?", "And times 2?"), "42 times 2 is 84."),
    "a next step": (("What is 7 times 8?", "Now add 4"), "56 + 4 = 60."),
    "the day of an answer": (("What day of the week was 4 July 1976?", "Was it a leap year?"), "Yes, 1976 is a leap year."),
    "an adverb": (("Spell the word necessary", "Now backwards"), '"necessary" spelled backwards is "yrassecen".'),
    "a command for the same text": (("Count the words in: the cat sat", "And the letters?"), "The text has 9 letters."),
    "the last number of a date": (
        ("How many days are there between 1 March 2025 and 15 April 2025?", "And 20 April 2025?"),
        "There are 50 days between 1 March 2025 and 20 April 2025.",
    ),
    "a date of the same form": (("What day of the week was 4 July 1976?", "And 5 July?"), "5 July 1976 was a Monday."),
    "a result": (("What is 12 + 30?", "Is it even?"), "Yes, 42 is even."),
    "a table": (("Turn this into JSON:\nname,age\nAnna,31\nBen,28", "How many people are in it?"), "The table has 2 people."),
}  # fmt: skip


@pytest.mark.parametrize(("questions", "answer"), FOLLOW_UPS.values(), ids=FOLLOW_UPS.keys())
async def test_a_program_answers_a_follow_up_to_its_own_answer(questions: tuple[str, ...], answer: str):
    assert (await ask_turns("converter", *questions))[1] == answer


@pytest.mark.parametrize(
    "questions",
    [
        ("What is 15% of 80?", "and 20?"), ("How many days does a leap year have?", "And hours?"), ("Convert 10 kg to pounds", "Is that more than 20 pounds?"), ("What's the capital of Canada?", "And Georgia?"),
        ("Which is bigger, a whale or an elephant?", "And a mouse?"), ("What is the opposite of hot?", "How many letters does it have?"),
        ("What rhymes with moon?", "really?"), ("What rhymes with moon?", "And you?"), ("What is the opposite of hot?", "And then?"),
        ("Finish the proverb: Better late than ...", "What does it mean?"), ("Who painted the Mona Lisa?", "Tell me more", "When was he born?"),
        ("How do I boil an egg?", "How long for a soft one?"), ("How do you say \"thank you\" in Italian?", "And what do you think?"),
        ("Convert 20 degrees Celsius to Fahrenheit", "Is that warm?"), ("What is 12 + 30?", "And?"),
        ("What is the largest planet?", "How far is it from the Sun?"),
    ],
)  # fmt: skip
async def test_an_ambiguous_follow_up_is_not_answered_by_a_program(
    questions: tuple[str, ...],
):
    worker, text = await ask_turns("converter", *questions)
    assert worker in ("guide", "writer"), text


def with_worker(settings: Settings, **worker: Any) -> Settings:
    fields = settings.model_dump(mode="json", exclude_unset=True)
    return parse(fields | {"workers": [*fields["workers"], worker]})


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (settings_to_serve(LOCAL, "hub/real-model"), None),
        *((load(LOCAL), key) for key in KEYS.values()),
        (
            with_worker(load(LOCAL), name="own", kind="openai", model="m", base_url="http://127.0.0.1:9/v1"),
            None,
        ),
    ],
    ids=["MODEL=", *KEYS.values(), "a server of one's own"],
)
async def test_the_guide_never_replaces_a_real_model(settings: Settings, key: str | None):
    pool = pool_of(settings, {key: "a-key"} if key else {})
    assert "guide" not in pool.members
    named = [name for each in pool.settings.workers for name in (*each.named_fallbacks, *each.try_first)]
    assert "guide" not in named
    line = pool.line("almanac")
    real = [name for name in ("gpt-5", "claude-sonnet-4", "gemini-2.5-pro") if name in line]
    assert line[-1] == "writer"
    assert len(real) == (key is not None)
    if not key:
        assert (await ask(pool.team.pool["almanac"].for_conductor, "How do I boil an egg?"))[0] == "writer"


def test_the_removed_guide_is_the_bundled_one():
    (guide,) = [each for each in load(LOCAL).workers if each.name == "guide"]
    assert guide.kind == "python"
    assert (guide.factory, guide.in_pool) == (GUIDE, False)
    assert BUNDLED.line("calculator")[-2:] == ("guide", "writer")


async def test_the_record_shows_the_first_worker_and_a_request_may_choose_the_model():
    program = {
        "name": "sums",
        "kind": "python",
        "factory": "serving.workers.programs.calculator:Calculator",
        "in_pool": False,
    }
    plan = json.dumps(step("a", ""))
    workers = [program, scripted("a", try_first=["sums"])]
    async with served(team(plan, workers=workers, workflows={})) as api:
        body = {
            "model": "mini",
            "messages": [{"role": "user", "content": "What is 2 + 3?"}],
            "podium": {"trace": True},
        }
        first = await api.ok(body)
        alone = await api.ok(body | {"podium": {"trace": True, "workers": ["a"]}})
        other = await api.ok(body | {"messages": [{"role": "user", "content": "Tell me a joke."}]})
    shown = [
        (
            answer["choices"][0]["message"]["content"],
            answer["podium"]["steps"][0]["served_by"],
            [each["worker"] for each in answer["podium"]["steps"][0].get("attempts", [])],
        )
        for answer in (first, alone, other)
    ]
    assert shown == [("2 + 3 = 5.", "sums", []), ("a says so.", "a", []), ("a says so.", "a", ["sums"])]


async def test_requests_that_choose_workers_call_exactly_those():
    conversation = (Message.of("user", "What is 2 + 3?"),)
    own = BUNDLED.team
    chosen = own.members_for(Task(conversation, workers=("writer",)))
    assert chosen["writer"] == own.pool["writer"]
    assert own.members_for(Task(conversation))["writer"] == own.pool["writer"].planned


@pytest.mark.parametrize(
    "why", ["the settings name the workers of the model", "another context is too short"]
)
async def test_a_request_without_a_choice_of_workers_tries_programs_first(
    why: str,
):
    program = {"name": "sums", "kind": "python", "factory": "serving.workers.programs.calculator:Calculator"}
    small = {"context_tokens": 1} if why == "another context is too short" else {}
    workers = [program | {"in_pool": False}, scripted("a", try_first=["sums"]), scripted("b", **small)]
    models = {"mini": {} if small else {"workers": ["a"]}}
    async with served(team(json.dumps(step("a", "")), workers=workers, models=models, workflows={})) as api:
        body = {"messages": [{"role": "user", "content": "What is 2 + 3?"}]}
        answer = await api.ok(body, trace=True)
        chosen = await api.ok(body, trace=True, workers=["a"])
    served_by = [each["podium"]["steps"][0]["served_by"] for each in (answer, chosen)]
    assert served_by == ["sums", "a"]


@pytest.mark.parametrize(
    ("second", "worker"),
    [("I don't like onions", "guide"), ("shorter please", "guide"), ("are you sure?", "guide"), ("My name is Petra.", "guide"), ("Thanks!", "writer"), ("Write a poem about cats", "writer")],
)  # fmt: skip
async def test_after_an_honest_reply_only_a_new_topic_is_invented(second: str, worker: str):
    assert (await ask_turns("writer", "Why do cats purr", second))[0] == worker
