import logging
import os
import re
from functools import partial
from typing import Any, cast

import pytest

from conductor.errors import QuestionRejected
from conductor.model.call import AnswerFormat, Call, CallSite, Sampling
from conductor.model.messages import Message, Text
from conductor.model.reply import FinishReason, Reply
from conductor.model.terms import Refusals, Terms
from conductor.model.usage import FREE
from conductor.model.worker import PoolMember
from conductor.plan.plan import Step
from conductor.plan.prompts import work
from conductor.run.call_holds import open_call
from conductor.run.ledger import Budget, BudgetLedger
from serving.pool import build_pool
from serving.settings.settings import parse
from serving.telemetry.logs import FIELDS
from serving.workers.programs.calculator import Calculator
from serving.workers.programs.guide import PROGRAMS
from serving.workers.programs.process import NotForProgram, ProgramProcess
from serving.workers.programs.program import TOKEN
from serving.workers.programs.question import QuestionTexts, read_question
from tests.serving.api.served import scripted, served, team
from tests.serving.workers.programs.phrasings import Place

pytestmark = pytest.mark.real_time  # programs answer in a process

CALCULATOR = Calculator("calculator")
WITH_FALLBACK = {
    "name": "a",
    "kind": "python",
    "factory": "serving.workers.programs.calculator:Calculator",
    "fallbacks": ["b"],
}
"""Settings of a program that leaves rejected questions to `b`."""


async def answer(call: Call) -> Reply:
    async with CALCULATOR.open(call) as reply:
        async for _ in reply:
            pass
    return reply


def call_of(*texts: str, **more: object) -> Call:
    roles = ("user", "assistant")
    return Call(tuple(Message.of(roles[n % 2], text) for n, text in enumerate(texts)), **more)  # pyright: ignore


async def refusal(call: Call) -> str:
    with pytest.raises(QuestionRejected) as caught:
        await answer(call)
    assert (caught.value.worker, caught.value.every_call) == ("calculator", False)
    return caught.value.message


async def test_the_last_message_of_the_user_is_answered():
    reply = await answer(call_of("Hello!", "Hi, how can I help?", "what is 2 + 3?"))
    assert ("".join(reply.texts), reply.finish, reply.model) == (
        "2 + 3 = 5.",
        FinishReason.STOP,
        "calculator (program)",
    )


async def test_a_rejection_names_the_program_and_the_reason():
    message = await refusal(call_of("Who wrote Hamlet?"))
    assert message == (
        "calculator is a program that answers only questions about arithmetic, percentages, comparisons of numbers and algebra. "
        "The question contains no calculation that the program can read."
    )


@pytest.mark.parametrize(
    "call",
    [
        call_of("2 + 3", "5"),
        call_of("2 + 3", answer_format=AnswerFormat()),
        call_of("2 + 3", site=CallSite(operation="embeddings")),
        Call(()),
    ],
    ids=["no question", "a schema", "embeddings", "no message"],
)
async def test_calls_that_are_not_questions_are_rejected(call: Call):
    assert await refusal(call)


MEMBER = PoolMember("calculator", CALCULATOR)
QUESTION = (Message.of("user", "Tell me a story about 15% of 80."),)


def prompt(question: tuple[Message, ...], step: Step, *outputs: str) -> Call:
    plan = [*(Step("writer", "Think.") for _ in outputs), step]
    instructions = work(MEMBER, question, step, plan, dict(enumerate(outputs)))
    return Call(instructions.messages, mark_key=instructions.mark_key)


async def test_the_subtask_is_answered_if_the_users_question_is_not_understood():
    reply = await answer(prompt(QUESTION, Step("calculator", "Calculate 15% of 80.")))
    assert "".join(reply.texts) == "15 % of 80 is 12."


async def test_the_users_question_is_tried_before_the_subtask():
    reply = await answer(
        prompt((Message.of("user", "What is 15% of 80?"),), Step("calculator", "Calculate 15% of 8."))
    )
    assert "".join(reply.texts) == "15 % of 80 is 12."


async def test_outputs_of_other_steps_are_not_treated_as_the_question():
    step = Step("calculator", "", access=(0,))
    reply = await answer(prompt((Message.of("user", "What is 2 + 3?"),), step, "What is 4 + 5?"))
    assert "".join(reply.texts) == "2 + 3 = 5."
    assert await refusal(prompt(QUESTION, step, "What is 4 + 5?"))


async def test_a_message_of_several_parts_is_one_text():
    reply = await answer(Call((Message("user", (Text("What is "), Text("2 + 3?"))),)))
    assert "".join(reply.texts) == "2 + 3 = 5."


async def test_length_limits_and_stop_sequences_apply():
    cut = await answer(call_of("what is 2 + 3?", sampling=Sampling(max_output_tokens=2)))
    assert ("".join(cut.texts), cut.finish) == ("2 +", FinishReason.LENGTH)
    stopped = await answer(call_of("what is 2 + 3?", sampling=Sampling(stop=("=",))))
    assert ("".join(stopped.texts), stopped.finish) == ("2 + 3 ", FinishReason.STOP)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("Hi, could you please tell me what the capital of Spain is?", "what the capital of Spain is"),
        ("What’s 2 + 2?? Thanks!", "what is 2 + 2"),
        ("yes or no: is 5 odd?", "is 5 odd"),
        ("5!", "5!"),
        ("Great!!", "Great"),
    ],
)
def test_polite_phrases_are_ignored(raw: str, text: str):
    assert read_question(raw).text == text


@pytest.mark.parametrize(
    "raw",
    [
        "What is 64 x 27? Check the answer.",
        "64 x 27, then double-check it",
        "do 64 x 27 --verify",
        "What is 64 x 27? Verify.",
    ],
)
def test_a_wish_for_a_check_does_not_change_the_question(raw: str):
    assert CALCULATOR.reply(read_question(raw)) == "64 x 27 is 1,728."


def test_words_of_a_given_text_are_not_a_wish_for_a_check():
    assert read_question("Translate to Spanish: wait and check").text.endswith("wait and check")


@pytest.mark.parametrize(
    "raw", ["2 + 3? Just the number.", "2 + 3. Answer with one word", "2 + 3? Only the result, please."]
)
def test_only_the_value_is_returned_if_requested(raw: str):
    assert CALCULATOR.reply(read_question(raw)) == "5"


async def test_a_rejected_question_is_recorded_and_the_fallback_answers():
    settings = parse(
        {
            "workers": [
                {"name": "calculator", "kind": "python", "fallbacks": ["writer"], "price": {"input_usd_per_mtok": 0, "output_usd_per_mtok": 0},
                 "factory": "serving.workers.programs.calculator:Calculator", "card": "sums"},
                {"name": "writer", "kind": "scripted", "replies": ["Once upon a time."]},
            ]
        }
    )  # fmt: skip
    pool = build_pool(settings, {}, engines={})
    assert pool.provenance == {"calculator": "program", "writer": "scripted"}
    async with pool.members["calculator"].worker.open(call_of("Tell me a story.")) as reply:
        async for _ in reply:
            pass
    (attempt,) = reply.attempts
    assert ("".join(reply.texts), reply.worker, attempt.error) == (
        "Once upon a time.",
        "writer",
        "QuestionRejected",
    )
    assert attempt.message.startswith("calculator is a program that answers only questions about arithmetic")
    assert reply.price == FREE


@pytest.mark.parametrize("question", ["what is 2 + 3?", "what is 7 to the power of 1200?"])
async def test_an_answer_is_billed_only_for_its_words(question: str):
    name, factory = "calculator", "serving.workers.programs.calculator:Calculator"
    price = {"input_usd_per_mtok": 1, "output_usd_per_mtok": 1}
    pool = build_pool(
        parse({"workers": [{"name": name, "kind": "python", "factory": factory, "price": price}]}), {}, {}
    )
    ledger = BudgetLedger(Budget(max_tokens=3000))
    async with open_call(pool.members[name], call_of(question), ledger) as reply:
        async for _ in reply:
            pass
    usage = reply.result.usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (0, len(TOKEN.findall(reply.result.output)))
    assert (ledger.spent_tokens, reply.result.cost_is_bound) == (usage.output_tokens, False)


async def test_a_program_that_rejected_a_question_may_answer_a_later_step():
    price = {"input_usd_per_mtok": 0, "output_usd_per_mtok": 0}
    worker = {
        "name": "calculator",
        "kind": "python",
        "price": price,
        "factory": "serving.workers.programs.calculator:Calculator",
    }
    calculator = (
        build_pool(parse({"workers": [worker | {"card": "sums"}]}), {}, engines={})
        .members["calculator"]
        .worker
    )
    terms = Terms(refusals=Refusals())
    with pytest.raises(QuestionRejected):
        async with calculator.open(call_of("Tell me a story.", terms=terms)):
            pass
    async with calculator.open(call_of("What is 2 + 3?", terms=terms)) as reply:
        assert "".join([delta.text async for delta in reply]) == "2 + 3 = 5."


def test_a_missing_package_is_reported():
    class NeedsNothingThatExists(Calculator):
        packages = ("no_such_package",)

    with pytest.raises(
        ValueError, match=r"no_such_package\. Install them with `pip install 'podium\[cpu\]'`"
    ):
        NeedsNothingThatExists("calculator")


async def test_a_model_answers_in_the_requested_format_after_a_program_rejects():
    async with served(team(workers=[WITH_FALLBACK, scripted("b", '{"sum": 5}'), scripted("c")])) as api:
        body = {"model": "a", "messages": [{"role": "user", "content": "what is 2 + 3?"}]}
        assert (await api.ok(body))["choices"][0]["message"]["content"] == "2 + 3 = 5."
        answer = await api.ok(body | {"response_format": {"type": "json_object"}, "podium": {"trace": True}})
    assert answer["choices"][0]["message"]["content"] == '{"sum": 5}'
    (attempt,) = answer["podium"]["steps"][0]["attempts"]
    assert (attempt["worker"], attempt["error"]) == ("a", "QuestionRejected")


async def test_the_log_shows_no_error_for_a_rejected_question(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "podium")
    async with served(team(workers=[WITH_FALLBACK, scripted("b", "Words."), scripted("c")])) as api:
        await api.ok({"model": "a", "messages": [{"role": "user", "content": "Why is the sky blue?"}]})
    (line,) = [each for each in caplog.records if each.getMessage() == "workflow finished"]
    assert getattr(line, FIELDS)["errors"] == []


async def test_programs_run_in_a_separate_process():
    async with Place("place").open(call_of("Where?")) as reply:
        async for _ in reply:
            pass
    assert int("".join(reply.texts)) != os.getpid()


def test_a_slow_question_ends_the_process_and_the_next_is_answered():
    process = ProgramProcess(cpu_s=0.3)
    with pytest.raises(NotForProgram, match="takes too long"):
        process.ask(cast("Any", partial(re.fullmatch, "(a+)+", "a" * 40 + "b")))
    assert (
        process.ask(partial(CALCULATOR.answer_one, QuestionTexts(("what is 2 + 3?",), (), ())))
        == "2 + 3 = 5."
    )


def test_a_failing_program_rejects_and_the_next_question_is_answered(
    capfd: pytest.CaptureFixture[str],
):
    process = ProgramProcess()
    with pytest.raises(NotForProgram, match="The log says why"):
        process.ask(cast("Any", partial(int, "my password")))
    log = capfd.readouterr().err
    assert log.startswith("A program failed: ValueError in ")
    assert "password" not in log
    assert process.ask(partial(str, 5)) == "5"


SLOW_ONCE = (
    "Total these amounts please " + ", ".join(map(str, range(10, 310, 10))) + " and tell me",
    "numbers " + "1, " * 60 + "1 x",
    "20 pneumonoultramicroscopicsilicovolcanoconiosis patients",
    "500 Donaudampfschifffahrtsgesellschaftskapitäne tranken Kaffee",
    "3 interdisciplinary characterizations of electroencephalographically measured activity?",
    "forty and twelve q" + "w" * 60 + " zz",
    "which " + "word " * 60,
)
"""Questions that once took a program's regular expressions seconds or hours."""


def test_every_ordinary_sentence_is_processed_quickly():
    process = ProgramProcess()
    for text in SLOW_ONCE:
        for program in PROGRAMS:
            with pytest.raises(NotForProgram, match=r"^(?!The question takes too long)"):
                process.ask(partial(program("program").answer_one, QuestionTexts((text,), (), (text,))))
