"""Guide: the program that answers when no other worker of the bundled team can.

It answers a request of several questions if the other programs answer all of them. For any other question, it says what
the team can do and how to add a model. It rejects requests for writing and small talk, which the bundled model can do.
"""

import re

from conductor.model.usage import FREE, Price
from serving.workers.programs.almanac import Almanac
from serving.workers.programs.calculator import Calculator
from serving.workers.programs.countries import Atlas
from serving.workers.programs.dates import Calendar
from serving.workers.programs.follow_ups import refers_back
from serving.workers.programs.process import NotForProgram
from serving.workers.programs.program import ProgramWorker
from serving.workers.programs.question import MOST_CHARS, PlainQuestion, QuestionTexts, read_question
from serving.workers.programs.rules import pattern
from serving.workers.programs.text_tools import JOIN, TextTools
from serving.workers.programs.units import UnitConverter
from serving.workers.programs.words import Dictionary

PROGRAMS = (Calculator, UnitConverter, Calendar, Atlas, Dictionary, Almanac, TextTools)
MOST_PARTS = 3
ABLE = (
    "It can calculate, convert units, work with dates, and answer questions about countries, words and common facts, "
    'such as "What is 17 % of 2,450?" or "What is the capital of Peru?".'
)
MORE = (
    "For everything else, add a real model: start with `podium serve --model Qwen/Qwen2.5-1.5B-Instruct`, "
    "or set a provider's key, such as `OPENAI_API_KEY`."
)

UNABLE = "The bundled team has no worker that can answer this reliably."
UNABLE_AGAIN = f"{UNABLE} {MORE}"

_ASKS = r"(?:what|which|who|whose|whom|where|when|why|how|what's|who's|is|are|was|were|do|does|did|can|could|has|have|will|would|should)"
_ORDERS = (
    r"(?:add|answer|calculate|compare|compute|convert|count|define|describe|evaluate|divide|explain|factor|find|give|identify|list|multiply|name|prove|round|subtract"
    r"|simplify|solve|sort|spell|state|tell me|translate|work out|check)"
)
_QUESTION = re.compile(rf"(?:^|[.!?,;:]\s+|\band\s+){_ASKS}\b|^{_ORDERS}\b|\?", re.IGNORECASE)
_CODE = re.compile(
    r"\b(?:code|function|program|script|regex|sql|query|python|javascript|java|html|css|algorithm)\b",
    re.IGNORECASE,
)
_WRITING = re.compile(
    r"\b(?:(?:re)?write|compose|draft|rephrase|reword|paraphrase|brainstorm|poems?|haikus?|limericks?|songs?|lyrics|story|stories"
    r"|tales?|jokes?|riddles?|puns?|e-?mails?|letter to|note to|messages?|tweets?|captions?|slogans?|speech|essays?|toast|invitations?|dialogue"
    r"|in a sentence|(?:two|three|\d+) (?:lines|sentences)|(?:short|long|funni|nic|friendli|polit|simpl|bett|happi|sadd?)i?er"
    r"|more (?:formal|polite|friendly|casual|exciting)|less formal|another one|once more|continue|go on|pretend|imagine|role-?play"
    r"|act as|let's|something (?:funny|nice|interesting)|cheer me up|bored|lonely|motivate|compliment)\b",
    re.IGNORECASE,
)
_OPEN = re.compile(r"(?:what|which|who|whose|whom|where|when|why|how)\b(?! about\b)", re.IGNORECASE)
_WISH = re.compile(
    r"\bshould (?:i|we) (?:write|say|text|reply|answer|call)\b|\bin a sentence\b", re.IGNORECASE
)
"""Request for writing that is an open question. Other open questions may name a poem or a song."""
_NEW_TOPIC = re.compile(
    r"\b(?:write|compose|draft|poems?|haikus?|limericks?|songs?|jokes?|riddles?|story|stories|e-?mails?|letters?|messages?|slogans?"
    r"|thanks|thank you|thx|cheers|hello|hi|hey|bye|goodbye)\b",
    re.IGNORECASE,
)
"""Words of a request for writing or small talk that does not depend on what was said before."""
_SMALL_TALK = re.compile(
    r"\b(?:(?:anybody|anyone) (?:there|here)|how are you|how's it going|how is it going|how do you do|how was your|how is your|what's up|what is up|are you(?! (?:sure|certain|serious))|were you"
    r"|your (?:name|day|favou?rite|opinion|age|job|hobb(?:y|ies)|feelings?|family|birthday)|do you (?:like|love|hate|think|feel|have|want|believe"
    r"|dream|enjoy|prefer|sleep|eat|get|remember)|what do you (?:like|think|do|want|feel|prefer)|would you (?:like|rather)|can (?:we|i) (?:talk|chat)"
    r"|(?:can|could|will|would) you help|who (?:are|made|created|built) you|where are you|what are you|tell me about yourself|love you|marry me"
    r"|what should (?:i|we) do)\b",
    re.IGNORECASE,
)
_ABOUT_TEAM = pattern(
    r"(?:what|which things|which questions) (?:can|could) (?:you|this|it|the team) (?:do|answer|help(?: me)? with)(?: for me)?"
    r"|(?:what are )?(?:your|the team's) (?:abilities|capabilities|skills)|help|(?:who|what) are you|what do you (?:do|know)|what can i ask(?: you)?"
)
_PARTS = re.compile(
    rf"(?:,|[.?!;]|)\s+(?:and|also|and also|then|and then)[,:]?\s+(?={_ASKS}\b|{_ORDERS}\b)|,\s+(?={_ORDERS}\b)|[.?!;]\s+",
    re.IGNORECASE,
)


_LABEL = re.compile(
    r"^(?:first(?:ly)?|second(?:ly)?|third(?:ly)?|next|then|finally|lastly|at the end)\s*[:,]?\s+(?:of all,? )?",
    re.IGNORECASE,
)
_COUNT = pattern(
    r"(?:i have )?(?:two|three|2|3|several|a few|some) (?:things|questions|requests|tasks)(?: for you)?"
)


class Guide(ProgramWorker):
    """Program that answers several questions with the other programs, or says what the team can do."""

    topic = "several things at once, and what the team can do"
    follows_up = False

    def __init__(self, name: str, price: Price | None = FREE) -> None:
        super().__init__(name, price)
        self._programs = tuple(make(name, price) for make in PROGRAMS)

    def answer_one(self, texts: QuestionTexts) -> str:
        """Return the reply. After an answer of the guide, only a new topic goes to the writer."""
        try:
            return super().answer_one(texts)
        except NotForProgram:
            is_new = any(_NEW_TOPIC.search(text) or _SMALL_TALK.search(text) for text in texts.own)
            if is_new or not texts.before.startswith(UNABLE):
                raise
            return UNABLE_AGAIN

    def reply(self, question: PlainQuestion) -> str:
        """Return the answers to all parts of the question, or what the team can do. Raise NotForProgram for
        writing and small talk.
        """
        text = question.text
        if _ABOUT_TEAM.fullmatch(text):
            return f"This is the bundled team. {ABLE} {MORE}"
        if answers := self._answers(question):
            return "\n".join(answers)
        is_writing = _WRITING.search(text) if not _OPEN.match(text) else _WISH.search(text)
        is_talk = _SMALL_TALK.search(text) or not (_QUESTION.search(question.raw) or _QUESTION.match(text))
        if (is_writing or is_talk) and not _CODE.search(text):
            raise NotForProgram("The request is for writing or small talk.")
        return f"{UNABLE} {ABLE} {MORE}"

    def _answers(self, question: PlainQuestion) -> list[str]:
        """Return the answer to each part of the question, or nothing if the programs do not answer all parts."""
        parts = [_LABEL.sub("", part.strip()) for part in _PARTS.split(question.text)]
        parts = [part for part in parts if part and not (JOIN.fullmatch(part) or _COUNT.fullmatch(part))]
        if not 2 <= len(parts) <= MOST_PARTS or len(question.raw) > MOST_CHARS:
            return []
        if any(refers_back(parts[:end]) for end in range(2, len(parts) + 1)):
            return []
        answers = [self._answer_part(part) for part in parts]
        return answers if all(answers) else []

    def _answer_part(self, part: str) -> str:
        for program in self._programs:
            try:
                return program.reply(read_question(part))
            except NotForProgram:
                continue
        return ""
