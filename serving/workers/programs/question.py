"""The questions of a call, as a program reads them: the user's words without politeness and wishes about form."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

from conductor.model.call import Call
from conductor.model.messages import Message, Text
from conductor.plan.prompts import ANSWER, read_assignment
from serving.workers.programs.follow_ups import MOST_TURNS
from serving.workers.programs.process import NotForProgram

MOST_TEXT_CHARS = 20_000
"""Maximum length in characters of a text that a program reads."""
MOST_CHARS = 400
"""Maximum length of a question in characters."""
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
_CHECK = re.compile(
    r"(?:[.;?!,]\s*(?:and |then )?|\s+and (?:then )?|\s+--)(?:please )?(?:double[- ]?)?(?:check|verify)"
    r"(?: (?:it|that|this|(?:the|your|this|that) (?:answer|result|sum|calculation)))?(?: (?:carefully|again|twice))?[\s.!?]*$",
    re.IGNORECASE,
)
"""Wish for a check at the end of a question. Whoever checks the answer computes it again."""
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
_TEXT_START = re.compile(r"[\":]|(?<!\w)'")
"""Start of a quoted text, whose words do not change."""
_YOU = re.compile(r"(?<=\w )(?<!letter )(?<!the )(?:u|ya)(?= \w)")
TRUE_OR_FALSE = re.compile(r"\b(?:true or false|true/false)\b", re.IGNORECASE)
_CLOSED = re.compile(r"(?:is|are|was|were|do|does|did|can|could|has|have|will)\b", re.IGNORECASE)
_GUESS = re.compile(
    r"\s*(?:[,;-]|[.?!]) (?:is it|is that|isn't it) (?:really |actually )?(?!the same|true|an? )[\w '-]{2,30}$",
    re.IGNORECASE,
)
"""The user's own guess after an open question, which the answer confirms or corrects."""
_ASKS = (
    (re.compile(r"^(?:what|wat)(?:'s|s) ", re.IGNORECASE), "what is "),
    (re.compile(r"^do (?=\d)", re.IGNORECASE), "what is "),
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
        return next((result for each in patterns if (result := each.fullmatch(self.text))), None)


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
    if TRUE_OR_FALSE.search(raw) and not _CLOSED.match(text):
        text = f"is it true that {text}"
    text_start = _TEXT_START.search(text)
    end = text_start.start() if text_start else len(text)
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
        if not _TEXT_START.search(shorter):  # "Translate: wait and check"
            shorter = _CHECK.sub("", shorter)
        text = shorter if " " in shorter else text
    return text


@dataclass(frozen=True, slots=True)
class QuestionTexts:
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


def texts_of(call: Call) -> QuestionTexts:
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
    return QuestionTexts(texts, tuple(outputs), turns, before[: MOST_TEXT_CHARS + 1])


def _split(message: Message) -> tuple[str, str]:
    """Split a message into the user's own text and the text that `conductor.plan.prompts.work` has added."""
    texts = [part.text for part in message.parts if isinstance(part, Text)]
    if len(texts) > 1 and texts[-1].startswith("\n\n"):
        return "".join(texts[:-1]), texts[-1]
    return "".join(texts), ""
