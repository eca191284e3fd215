"""Base class of workers that are programs instead of models, and the functions that read their questions.

A program answers a question only if it understands every word of it. It rejects every other question with
`WorkerRefused`, so that a fallback answers and the record shows the reason. A program does not depend on the
other workers.
"""

import asyncio
import re
import unicodedata
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar

from conductor.errors import WorkerRefused
from conductor.model.call import Call
from conductor.model.deltas import open_reply
from conductor.model.messages import Message, Text
from conductor.model.reply import Delta, FinishReason, Reply
from conductor.model.usage import FREE, Price, Usage
from conductor.plan.prompts import ANSWER, read_assignment
from serving.workers.programs.follow_ups import MOST_TURNS, refers_back, whole_question
from serving.workers.programs.process import NotForProgram, ProgramProcess

MOST_TEXT_CHARS = 20_000
"""Maximum length in characters of a text that a program reads."""
MOST_CHARS = 400
"""Maximum length of a question in characters."""
TOKEN = re.compile(r"\s*\S+|\s+$")
"""Pattern of a token, the unit of output limits: a word with the whitespace before it."""

_QUOTES = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "`": "'", "„": '"', "«": '"', "»": '"'})
_VERBS = (
    r"calculate|convert|translate|name|spell|write|sort|put|count|list|reverse|add|repeat|evaluate|solve|make|turn|extract"
    r"|summari[sz]e|what|how|is|change|express|simplify|factor|expand|multiply|divide|subtract|reply|order|arrange|complete"
    r"|finish|fill|pick|choose|copy|replace|remove|join|combine|unscramble|define|correct|round|compare|continue"
)
_BEFORE = re.compile(
    r"(?:(?:hi|hello|hey|dear \w+|good (?:morning|afternoon|evening)|ok(?:ay)?|so|well|um|and|also|then|now|thanks|thank you|please|pls"
    r"|quick question|question|i (?:need|want|would like|'d like) (?:you )?to (?:know|tell me|find out)"
    r"|i'm wondering|i wonder"
    r"|(?:my [a-z]+|someone|somebody|a friend|a colleague) (?:asked|asks|wants to know|wanted to know|is asking)(?: me)?"
    r"(?: (?:over|at|during|after) (?:[a-z]+ )?[a-z]+| today| yesterday| earlier| last night)?(?=,? (?:which|what|how|who|where|when)\b)"
    r"|(?:can|could|would|will) you (?:please |kindly |quickly )?(?:help me (?:to )?)?"
    r"(?:tell me|say|explain to me|answer|let me know|work out|figure out|find out|find|give me|compute)"
    r"|(?:please |just )?(?:tell me|answer|answer me|answer this|answer the question|work out|figure out|find out|let me know)"
    r"|do you (?:happen to )?know|any idea)(?![\w'])"
    rf"|(?:can|could|would|will) you (?:please |kindly |quickly )?(?:help me (?:to )?)?(?=(?:{_VERBS})\b))"
    r"[,.:;!?]*\s*(?:-\s+)?",
    re.IGNORECASE,
)
_AFTER = re.compile(
    r"[\s,.;!?]*(?<!\w)(?:please|pls|thanks|thank you|thx|ty|cheers|lol|haha|and i (?:just )?(?:couldn't|can't|could not) (?:remember|think of it)|i forgot|for me|right now|exactly|in total|(?:do )?you know"
    r"|(?:and )?(?:then )?(?:write|say|make|give me) (?:me )?(?:a|one) (?:short |full |complete )?sentence (?:about|with|for|of|on) (?:it|that|this|the (?:result|answer|number)))[\s.!?]*$",
    re.IGNORECASE,
)
_CLOSING = re.compile(r"(?:[ .?;,]|(?<![\d)])!)+$")
"""Punctuation at the end of a question, except for the sign of a factorial."""
_BRIEF = re.compile(
    r"(?:^|(?<=[.?!,;:])|(?<=\.\")|(?<=\?\"))\s*(?:please )?(?:and )?"
    r"(?:(?:just|only)(?: (?:give|write|say))?(?: me)? (?:the|a|one|that) (?:\w+ )?"
    r"(?:number|letter|word|name|result|answer|value|city|country|digits?|date)"
    r"|(?:answer|reply|respond|give|use|say)(?: me)?(?: (?:with|in|by))? (?:just |only |exactly )?"
    r"(?:one|a single|the|a) (?:\w+ )?(?:word|number|letter|result|city|country|answer|name)(?: only| alone)?"
    r"|one (?:word|number|letter)(?: only)?(?:[,:] (?:yes or no|true or false))?"
    r"|(?:(?:just|only) )?(?:answer |reply |say )?(?:with )?(?:just |only )*(?:yes or no|true or false)|nothing else|no explanation"
    r"|(?:one|a single)[- ](?:word|number) answer(?: only)?|(?:just|only) (?:tell me|give me) the one (?:word|number))"
    r"(?: only)?(?:,? please)?[.!?]*\s*$",
    re.IGNORECASE,
)
_BRIEF_FIRST = re.compile(
    r"(?:please )?(?:(?:(?:answer|reply|respond|say)(?: only| just)? )?(?:with |in |using |by )?(?:just |only |exactly )*"
    r"(?:(?:a |the )?(?:yes or no|true or false)|(?:one|a single|the) (?:\w+ )?(?:word|number|letter|name)(?: answer)?)(?: only)?"
    r"|(?:just |only )?(?:give|write|say|tell me)(?: me)?(?: just| only)? the (?:answer|result|number|word)(?: only)?)\s*[:,.?-]\s*",
    re.IGNORECASE,
)
_GIVEN = re.compile(r"[\":]|(?<!\w)'")
"""Beginning of a given text, whose words stay as they are."""
_YOU = re.compile(r"(?<=\w )(?<!letter )(?<!the )(?:u|ya)(?= \w)")
_TRUE_OR_FALSE = re.compile(r"\b(?:true or false|true/false)\b", re.IGNORECASE)
_CLOSED = re.compile(r"(?:is|are|was|were|do|does|did|can|could|has|have|will)\b", re.IGNORECASE)
_GUESS = re.compile(
    r"\s*(?:[,;-]|[.?!]) (?:is it|is that|isn't it) (?:really |actually )?(?!the same|true|an? )[\w '-]{2,30}$",
    re.IGNORECASE,
)
"""The user's own guess after an open question, which the answer confirms or corrects."""
_IN_CAPITALS = re.compile(
    r"(?:please )?(?:write |give |put )?(?:answer|your answer|the answer|reply|respond|your reply)(?: your answer)?"
    r" (?:only |just )?(?:in|with|using) (?:all )?(?P<case>capital letters|capitals|upper ?-?case(?: letters)?|all caps|caps"
    r"|lower ?-?case(?: letters)?|small letters)[:,.]\s*(?P<rest>.+)",
    re.IGNORECASE | re.DOTALL,
)
_OPTIONS = re.compile(r"(?<!\w)\(?([A-Ea-e])[).:]\s+")
_ASKS = (
    (re.compile(r"^(?:what|wat)(?:'s|s) ", re.IGNORECASE), "what is "),
    (re.compile(r"^(who|where|when|how)'s ", re.IGNORECASE), r"\1 is "),
    (
        re.compile(
            r"^(?:what is|how much is|how much are|how much does)\s+(?:what is|the result of)\s+",
            re.IGNORECASE,
        ),
        "what is ",
    ),
)


@dataclass(frozen=True, slots=True)
class ExactAnswer:
    """Answer of a program: a full sentence, and the value alone for users who ask for nothing else."""

    sentence: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class PlainQuestion:
    """One question of a call, in the user's words.

    Args:
        text: question as one line, without a greeting, polite phrases and closing punctuation, and with plain
            quotation marks.
        is_brief: whether the user wants only the value, as in "Just the number".
    """

    text: str
    raw: str
    is_brief: bool = False
    outputs: tuple[str, ...] = field(default=())

    def match(self, *patterns: re.Pattern[str]) -> re.Match[str] | None:
        return next((found for each in patterns if (found := each.fullmatch(self.text))), None)


def pattern(text: str) -> re.Pattern[str]:
    """Compile a regular expression for a whole question. A space matches any whitespace, and case is ignored."""
    return re.compile(text, re.IGNORECASE)


def read_question(raw: str, outputs: Sequence[str] = ()) -> PlainQuestion:
    """Read the question in `raw` without polite phrases and wishes about form, or raise NotForProgram."""
    if len(raw) > MOST_TEXT_CHARS:
        raise NotForProgram(f"The text must have at most {MOST_TEXT_CHARS:,} characters.")
    raw = "".join(
        char for char in raw.translate(_QUOTES) if char in "\n\t" or unicodedata.category(char) != "Cc"
    )
    text = " ".join(raw[: MOST_CHARS + 1].split())
    if not text:
        raise NotForProgram("The message contains no question.")
    if len(raw) > MOST_CHARS:
        return PlainQuestion(text, raw, outputs=tuple(outputs))
    is_brief = False
    for _ in range(2):
        if (brief := _BRIEF.search(text)) and brief.start():
            text, is_brief = text[: brief.start()].rstrip(" ,;:-"), True
    first = _BRIEF_FIRST.match(text)
    text = text[first.end() :] if first and first.end() < len(text) else text
    text = _without_politeness(text)
    if _TRUE_OR_FALSE.search(raw) and not _CLOSED.match(text):
        text = f"is it true that {text}"
    given = _GIVEN.search(text)
    end = given.start() if given else len(text)
    text = _YOU.sub("you", text[:end]) + text[end:]
    if re.match(r"(?:what|which|who|where)\b", text, re.IGNORECASE) and (guess := _GUESS.search(text)):
        text = text[: guess.start()]
    for asks, plain in _ASKS:
        text = asks.sub(plain, text, count=1)
    return PlainQuestion(text, raw, is_brief or first is not None, tuple(outputs))


def _without_politeness(text: str) -> str:
    """Return `text` without greetings before it, and without thanks and closing punctuation after it."""
    for _ in range(4):
        before = _BEFORE.match(text)
        text = text[before.end() :] if before and before.end() < len(text) else text
    for _ in range(3):
        text = text if text.endswith("...") else _CLOSING.sub("", text)
        shorter = _AFTER.sub("", text)
        text = shorter if " " in shorter else text
    return text


@dataclass(frozen=True, slots=True)
class AskedTexts:
    """Texts of a call from which a program reads its question.

    Args:
        own: the user's own words and any subtask, in that order, because a conductor may change a number.
        outputs: outputs of earlier steps.
        turns: messages of the user, the newest last.
        before: the assistant's last message.
    """

    own: tuple[str, ...]
    outputs: tuple[str, ...]
    turns: tuple[str, ...]
    before: str = ""


def texts_of(call: Call) -> AskedTexts:
    """Return the texts of a call. Raise NotForProgram for what a program cannot do."""
    if call.site.operation != "chat" or call.grammar is not None or call.answer_format is not None:
        raise NotForProgram("The program cannot write plans, create embeddings or return structured answers.")
    last = next((message for message in reversed(call.messages) if message.role != "system"), None)
    if last is None or last.role != "user":
        raise NotForProgram("The last message must be from the user.")
    if last.has_image or last.has_pdf:
        raise NotForProgram("The program does not accept images or PDF files.")
    own, added = _split(last)
    outputs, subtask = read_assignment(added, call.mark_key)
    subtask = "" if subtask == ANSWER else subtask
    texts = tuple(dict.fromkeys(each for each in (own, subtask) if each.strip()))
    users = [message for message in call.messages if message.role == "user"]
    turns = tuple(_split(each)[0][: MOST_TEXT_CHARS + 1] for each in users[-MOST_TURNS:])
    before = next((each.text for each in reversed(call.messages) if each.role == "assistant"), "")
    return AskedTexts(texts, tuple(outputs), turns, before[: MOST_TEXT_CHARS + 1])


def _split(message: Message) -> tuple[str, str]:
    """Split a message into the user's own text and the text that `conductor.plan.prompts.work` has added."""
    texts = [part.text for part in message.parts if isinstance(part, Text)]
    if len(texts) > 1 and texts[-1].startswith("\n\n"):
        return "".join(texts[:-1]), texts[-1]
    return "".join(texts), ""


_PROCESS, _THREAD = ProgramProcess(), ThreadPoolExecutor(1, "programs")


class ProgramWorker:
    """Base class of workers that are programs. A subclass sets the class variables and implements `answer`."""

    provenance = "program"
    topic: ClassVar[str]
    """Subject of the program's answers. Refusals name it."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Packages that the program needs. They are imported at its first question."""
    follows_up: ClassVar[bool] = True
    """Whether the program answers questions that only make sense after an earlier one."""
    ignores_pronouns: ClassVar[bool] = False
    """Whether the program would answer a question with a pronoun whatever the pronoun stands for."""
    most_chars: ClassVar[int] = MOST_CHARS
    """Maximum length in characters of a text that the program reads."""
    changes_texts: ClassVar[bool] = False
    """Whether answers are texts of the user. An "a." in them is no option, and their first letter stays as it is."""

    def __init__(self, name: str, price: Price | None = FREE) -> None:
        """Create the worker. Raise ValueError if a package is not installed."""
        self.name, self._price = name, price or FREE
        if missing := [package for package in self.packages if find_spec(package) is None]:
            raise ValueError(
                f"Worker {name!r} needs packages that are not installed: {', '.join(missing)}. "
                "Install them with `pip install 'podium[cpu]'`."
            )

    def answer(self, question: PlainQuestion) -> ExactAnswer:
        """Return the answer to a question. Raise NotForProgram if there is no certain one."""
        raise NotImplementedError

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        """Answer `call` in the process of the programs. Raise WorkerRefused if it cannot."""
        return open_reply(self.name, f"{self.name} (program)", self._deltas(call), self._price)

    async def _deltas(self, call: Call) -> AsyncGenerator[Delta]:
        try:
            text = await self._ask(texts_of(call))
        except NotForProgram as why:
            message = f"{self.name} is a program that answers only questions about {self.topic}. {why}"
            raise WorkerRefused(message, worker=self.name, only_this_call=True) from None
        tokens, most = TOKEN.findall(text), call.sampling.max_output_tokens
        stops = [at for stop in call.sampling.stop if stop and (at := text.find(stop)) >= 0]
        is_cut = most is not None and len(tokens) > most
        text = "".join(tokens[:most]) if is_cut else text
        if stops and min(stops) < len(text):
            text, is_cut = text[: min(stops)], False
        model = f"{self.name} (program)"
        yield Delta(text, model=model)
        yield Delta(finish=FinishReason.LENGTH if is_cut else FinishReason.STOP, usage=Usage(), model=model)

    async def _ask(self, asked: AskedTexts) -> str:
        return await asyncio.get_running_loop().run_in_executor(
            _THREAD, _PROCESS.ask, partial(self.answer_one, asked)
        )

    def answer_one(self, asked: AskedTexts) -> str:
        """Return the reply to the first question that the program understands, or raise NotForProgram."""
        reasons: list[str] = []
        for question in self._questions(asked):
            try:
                return self.reply(question)
            except NotForProgram as reason:
                reasons.append(str(reason))
        raise NotForProgram(next(iter(reasons), "The message contains no question."))

    def _questions(self, asked: AskedTexts) -> Iterator[PlainQuestion]:
        """Yield the questions, and what the last message means after an earlier one: first if it has a pronoun."""
        own, is_back = [read_question(text, asked.outputs) for text in asked.own], refers_back(asked.turns)
        if not is_back:
            yield from own
        if self.follows_up and (whole := whole_question(asked.turns, self._value_of, self._reply_to)):
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
        if _TRUE_OR_FALSE.search(question.raw) and answer.value in _TRUTHS:
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


_TRUTHS = {"Yes": "True", "No": "False"}
_PRONOUNS = ("it", "this", "that", "them", "these", "those")
_NAMES_OF_WORDS = ("word", "text", "one", "other", "name")
"""Beginnings of the names of groups for a word or thing that is asked about."""


def load(module: str) -> Any:
    """Import a package when the first question needs it, because some imports take a second. It has no types."""
    return import_module(module)


Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], ExactAnswer]]
"""Regular expression for a whole question, and the function that answers a match of it."""


def with_one_name(match: re.Match[str]) -> re.Match[str]:
    """Return a match with one group per name, for patterns with several places for a text: `word2` and `word_b` are other
    places of `word`. Groups that matched nothing are empty.
    """
    groups: dict[str, str] = {}
    for place, text in match.groupdict().items():
        name = re.sub(r"(?:_[bc]|\d)$", "", place)
        groups[name] = groups.get(name) or text or ""
    parts = "\n".join(f"(?P<{name}>{re.escape(text)})" for name, text in groups.items())
    found = re.fullmatch(parts, "\n".join(groups.values()))
    assert found is not None
    return found


def _check_words(match: re.Match[str]) -> None:
    """Raise NotForProgram if a word that is asked about is a pronoun without quotation marks, as in "write it backwards"."""
    for name, text in match.groupdict().items():
        if (text or "").casefold() not in _PRONOUNS or not name.startswith(_NAMES_OF_WORDS):
            continue
        if not re.search(rf"[\"']{text}[\"']|\bword {text}\b", match[0]):
            raise NotForProgram(f'The question does not say what "{text}" means.')


def answer_by(rules: Sequence[Rule], question: PlainQuestion) -> ExactAnswer:
    """Return the answer of the first rule that matches and has one. NotForProgram has the reason of the first
    match.
    """
    reasons: list[str] = []
    for each, rule in rules:
        if found := each.fullmatch(question.text):
            try:
                _check_words(found)
                return rule(found)
            except NotForProgram as reason:
                reasons.append(str(reason))
    raise NotForProgram(next(iter(reasons), "The program does not understand the question."))
