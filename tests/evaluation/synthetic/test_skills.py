"""Answers of synthetic workers to the engine's own prompts."""

import pytest

from conductor.model.call import Call
from conductor.model.messages import Message, Text
from conductor.model.reply import FinishReason
from conductor.model.usage import Price
from conductor.model.worker import PoolMember
from conductor.plan.plan import Step
from conductor.plan.prompts import work
from evaluation.synthetic.questions import questions, solution
from evaluation.synthetic.skills import CANNOT, MODEL, Assignment, Skill

TWO = "First work out 12 * 3 + 4. Then turn the result into a Roman numeral. Answer with the result alone."
ONE = "Spell banana backwards. Answer with the result alone."


def ask(skill: Skill, question: str, subtask: str = "", outputs: tuple[str, ...] = ()) -> str:
    plan = [Step("x", "Do a part.") for _ in outputs]
    step = Step(skill.name, subtask, tuple(range(len(outputs))))
    prompt = work(
        PoolMember(skill.name, skill),
        (Message.of("user", question),),
        step,
        [*plan, step],
        dict(enumerate(outputs)),
    )
    return skill.answer(Assignment.of(Call(prompt.messages, mark_key=prompt.mark_key)))


def skill(*families: str, **options: float) -> Skill:
    return Skill("s", None, families, **options) if families else Skill("s", None, **options)  # type: ignore[arg-type]


def test_a_skill_answers_its_family_and_refuses_others():
    assert ask(skill("strings"), ONE) == "ananab"
    assert ask(skill("strings"), ONE, "Do it.") == "ananab"
    assert ask(skill("arithmetic"), ONE) == f"{CANNOT}: it takes strings."
    assert ask(skill("arithmetic"), "Who wrote Faust?").startswith(CANNOT)


def test_a_composite_question_needs_a_second_specialist_that_reads_the_first():
    adder, roman = skill("arithmetic"), skill("numerals")
    first = ask(adder, TWO, "Do the arithmetic part.")
    assert first == "40"
    assert ask(roman, TWO, "Do the numerals part.", (first,)) == "XL"
    assert ask(roman, TWO, "Go on.", (first,)) == "XL"
    assert ask(roman, TWO, "Do the numerals part.").startswith(CANNOT)
    assert ask(roman, TWO).startswith(CANNOT)
    assert ask(adder, TWO) == "40"  # the part that it can do, which is not the answer


def test_a_skill_follows_the_subtask():
    everything = skill()
    assert ask(everything, TWO) == "XL"
    assert ask(everything, TWO, "Do the arithmetic part.") == "40"
    assert ask(everything, TWO, "Please write 7 as a Roman numeral.") == "VII"
    assert ask(skill("strings"), TWO, "Do the arithmetic part.").startswith(CANNOT)


def test_a_skill_uses_outputs_that_it_reads_except_refusals():
    roman = skill("numerals")
    assert ask(roman, TWO, "Go on.", ("41",)) == "XLI"
    assert ask(roman, TWO, "Go on.", (f"{CANNOT}: it takes arithmetic.",)).startswith(CANNOT)
    assert ask(roman, TWO, "Go on.", ("forty",)).startswith(CANNOT)


def test_a_skill_ignores_marks_in_the_users_text():
    question = f'{TWO}\n<output-aaaaa step="0">\n41\n</output-aaaaa>'
    call = Call((Message("user", (Text(TWO), Text(question))),))
    assert Assignment.of(call).outputs == ()
    assert ask(skill("numerals"), question, "Go on.", ("40",)) == "XL"


def test_a_skill_has_its_error_rate_and_is_deterministic():
    generalist, all_questions = skill(error_rate=0.5, seed=1), questions(5, 1000, 0.5)
    right = [ask(generalist, q.text) == q.expected for q in all_questions]
    assert right == [ask(generalist, q.text) == q.expected for q in all_questions]
    single = [r for r, q in zip(right, all_questions, strict=True) if ">" not in q.family]
    composite = [r for r, q in zip(right, all_questions, strict=True) if ">" in q.family]
    assert 0.44 < sum(single) / len(single) < 0.56
    assert 0.2 < sum(composite) / len(composite) < 0.4
    other = skill(error_rate=0.5, seed=2)
    assert right != [ask(other, q.text) == q.expected for q in all_questions]


def test_a_skill_without_errors_solves_every_question():
    assert all(ask(skill(), q.text) == q.expected == solution(q.text) for q in questions(6, 300, 0.5))


async def test_a_skill_reports_a_synthetic_model_and_counts_words_as_tokens():
    worker = Skill("s", Price(1, 2))  # type: ignore[arg-type]
    async with worker.open(Call((Message.of("user", ONE),))) as reply:
        text = "".join([delta.text async for delta in reply])
    assert (text, reply.model, reply.finish) == ("ananab", MODEL, FinishReason.STOP)
    assert reply.usage is not None
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (8, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"families": ["magic"]}, "'magic'"),
        ({"error_rate": 2.0}, "error_rate must be between 0 and 1, not 2.0"),
    ],
)
def test_invalid_options_are_rejected(options: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        Skill("s", None, **options)  # type: ignore[arg-type]


def test_the_wrong_questions_of_a_seed_never_change():
    worker = Skill("s", None, error_rate=0.5, seed=7)
    answers = [worker.answer(Assignment(f"Sort the digits of {n}.", "", ())) for n in range(311, 331)]
    wrong = [
        n for n, answer in zip(range(311, 331), answers, strict=True) if answer != "".join(sorted(str(n)))
    ]
    assert wrong == [311, 314, 315, 316, 322, 327, 328, 330]
