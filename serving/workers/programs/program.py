"""Base class of workers that are programs instead of models.

A program answers a question only if it understands every word of it. It rejects every other question with
`QuestionRejected`, so that a fallback answers and the record shows the reason. A program does not depend on the
other workers.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from functools import partial
from importlib.util import find_spec
from typing import ClassVar

from conductor.errors import QuestionRejected
from conductor.model.call import Call
from conductor.model.deltas import open_reply
from conductor.model.reply import Delta, FinishReason, Reply
from conductor.model.usage import FREE, Price, Usage
from serving.workers.programs.follow_ups import refers_back, whole_question
from serving.workers.programs.process import NotForProgram, ProgramProcess
from serving.workers.programs.question import (
    MOST_CHARS,
    TRUE_OR_FALSE,
    PlainQuestion,
    QuestionTexts,
    read_question,
    texts_of,
)
from serving.workers.programs.rules import ExactAnswer

TOKEN = re.compile(r"\s{0,16}\S{1,16}|\s{1,16}")
"""Pattern of a token, the unit of output limits and of the usage: a word, or 16 characters of a longer one, with the
whitespace before it. Token counts of much longer tokens would be rejected as too small for the text.
"""
_IN_CAPITALS = re.compile(
    r"(?:please )?(?:write |give |put )?(?:answer|your answer|the answer|reply|respond|your reply)(?: your answer)?"
    r" (?:only |just )?(?:in|with|using) (?:all )?(?P<case>capital letters|capitals|upper ?-?case(?: letters)?|all caps|caps"
    r"|lower ?-?case(?: letters)?|small letters)[:,.]\s*(?P<rest>.+)",
    re.IGNORECASE | re.DOTALL,
)
_OPTIONS = re.compile(r"(?<!\w)\(?([A-Ea-e])[).:]\s+")
_TRUTHS = {"Yes": "True", "No": "False"}
_PROCESS, _THREAD = ProgramProcess(), ThreadPoolExecutor(1, "programs")


class ProgramWorker:
    """Base class of workers that are programs. A subclass sets the class variables and implements `answer`."""

    provenance = "program"
    topic: ClassVar[str]
    """Subject of the program's answers. Rejections name it."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Packages that the program needs. They are imported at its first question."""
    follows_up: ClassVar[bool] = True
    """True if the program answers questions that need an earlier question."""
    ignores_pronouns: ClassVar[bool] = False
    """True if a pronoun in a question does not change the answer."""
    most_chars: ClassVar[int] = MOST_CHARS
    """Maximum length in characters of a text that the program reads."""
    changes_texts: ClassVar[bool] = False
    """True if answers are texts of the user. An "a." in them is not an option, and their first letter keeps its case."""

    def __init__(self, name: str, price: Price | None = FREE) -> None:
        """Create the worker. Raise ValueError if a package is not installed."""
        self.name, self._price = name, price or FREE
        if missing := [package for package in self.packages if find_spec(package) is None]:
            raise ValueError(
                f"Worker {name!r} needs packages that are not installed: {', '.join(missing)}. "
                "Install them with `pip install 'podium[cpu]'`."
            )

    def answer(self, question: PlainQuestion) -> ExactAnswer:
        """Return the answer to a question. Raise NotForProgram if the program is not certain."""
        raise NotImplementedError

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        """Answer `call` in the process of the programs. Raise QuestionRejected if it cannot."""
        return open_reply(self.name, f"{self.name} (program)", self._deltas(call), self._price)

    async def _deltas(self, call: Call) -> AsyncGenerator[Delta]:
        try:
            text = await self._ask(texts_of(call))
        except NotForProgram as why:
            message = f"{self.name} is a program that answers only questions about {self.topic}. {why}"
            raise QuestionRejected(message, worker=self.name) from None
        tokens, most = TOKEN.findall(text), call.sampling.max_output_tokens
        stops = [at for stop in call.sampling.stop if stop and (at := text.find(stop)) >= 0]
        is_cut = most is not None and len(tokens) > most
        text = "".join(tokens[:most]) if is_cut else text
        if stops and min(stops) < len(text):
            text, is_cut = text[: min(stops)], False
        # without input tokens, because those of a program would say nothing about the context of a model
        usage, model = Usage(output_tokens=len(TOKEN.findall(text))), f"{self.name} (program)"
        yield Delta(text, model=model)
        yield Delta(finish=FinishReason.LENGTH if is_cut else FinishReason.STOP, usage=usage, model=model)

    async def _ask(self, texts: QuestionTexts) -> str:
        return await asyncio.get_running_loop().run_in_executor(
            _THREAD, _PROCESS.ask, partial(self.answer_one, texts)
        )

    def answer_one(self, texts: QuestionTexts) -> str:
        """Return the reply to the first question that the program understands, or raise NotForProgram."""
        reasons: list[str] = []
        for question in self._questions(texts):
            try:
                return self.reply(question)
            except NotForProgram as reason:
                reasons.append(str(reason))
        raise NotForProgram(next(iter(reasons), "The message contains no question."))

    def _questions(self, texts: QuestionTexts) -> Iterator[PlainQuestion]:
        """Yield the questions. A last message with a pronoun is first completed from the earlier messages."""
        own, is_back = [read_question(text, texts.outputs) for text in texts.own], refers_back(texts.turns)
        if not is_back:
            yield from own
        if self.follows_up and (whole := whole_question(texts.turns, self._value_of, self._reply_to)):
            yield read_question(whole)
        if is_back and not self.ignores_pronouns:
            yield from own

    def _value_of(self, text: str) -> str | None:
        try:
            return self._answer_in_form(read_question(text)).value
        except NotForProgram:
            return None

    def _reply_to(self, text: str) -> str | None:
        try:
            return self.reply(read_question(text))
        except NotForProgram:
            return None

    def reply(self, question: PlainQuestion) -> str:
        """Return the answer, or its value alone if the user wants nothing else. Raise NotForProgram if there
        is none.
        """
        if len(question.raw) > self.most_chars:
            raise NotForProgram(f"The text must have at most {self.most_chars:,} characters.")
        if form := _IN_CAPITALS.fullmatch(question.raw):
            answer = self._answer_in_form(read_question(form["rest"]))
            is_lower = re.match(r"lower|small", form["case"], re.IGNORECASE)
            return (
                (answer.value or answer.sentence).lower()
                if is_lower
                else (answer.value or answer.sentence).upper()
            )
        answer = self._answer_in_form(question)
        if TRUE_OR_FALSE.search(question.raw) and answer.value in _TRUTHS:
            sentence = re.sub(r"^(?:Yes|No)\b", _TRUTHS[answer.value], answer.sentence)
            answer = ExactAnswer(sentence, _TRUTHS[answer.value])
        if question.is_brief and answer.value:
            return answer.value
        is_sentence = re.match(r"[a-z-]+ [a-z]", answer.sentence) and answer.sentence.endswith(".")
        if self.changes_texts or not is_sentence:
            return answer.sentence
        return answer.sentence[0].upper() + answer.sentence[1:]

    def _answer_in_form(self, question: PlainQuestion) -> ExactAnswer:
        """Return the answer, or the letter of the option that is right if the question offers options such as A)."""
        pieces = _OPTIONS.split(question.text)
        if self.changes_texts or len(pieces) < 5 or len(question.text) > MOST_CHARS:
            return self.answer(question)
        head, letters = pieces[0].strip(" ,:"), pieces[1::2]
        texts = [text.strip(" ,;.") for text in pieces[2::2]]
        head = re.sub(
            r"^answer with (?:only )?(?:the )?letter[ a-e,or]*[.:]\s*", "", head, flags=re.IGNORECASE
        )
        for text in (head, f"{head.rstrip('?')}: {', '.join(texts[:-1])} or {texts[-1]}"):
            try:
                value = self.answer(read_question(text)).value
            except NotForProgram:
                continue
            right = [at for at, option in enumerate(texts) if option.casefold() == value.casefold()]
            if len(right) == 1:
                letter = letters[right[0]].upper()
                return ExactAnswer(f"{letter}) {texts[right[0]]}", letter)
        raise NotForProgram("The program does not know which of the options is right.")
