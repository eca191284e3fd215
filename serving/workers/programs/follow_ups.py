"""Follow-up questions: a question that only makes sense after the one before it is rewritten into whole questions.

There are three ways: the new words replace words of the earlier question ("And of Australia?"), a pronoun stands for the earlier
answer or for words of the earlier question ("When was he born?"), or a short request is about the whole earlier question
("Why?"). A program answers only if the candidates that it understands have one answer.
"""

import re
from collections.abc import Callable, Iterator, Sequence

MOST_TURNS = 4
"""Maximum number of turns of a conversation that are read, from the last one back."""
MOST_WORDS, MOST_SPAN, MOST_FRAGMENT = 20, 6, 6
"""Maximum number of words of the earlier question, of words that are replaced, and of words that replace them."""
_TEXT_START = re.compile(r":\s+|\n")
"""End of a command before a given text."""
_MARK = re.compile(
    r"(?:(?:ok(?:ay)?|thanks|thank you|great|nice|good)[,.!]? +)?(?:(?:and|but|or|now|then)(?: what| how)? ?(?:about|now|then)?|what about|how about)(?:,? +please,?)? +",
    re.IGNORECASE,
)
_END = " .?!,;"
_PREPOSITION = re.compile(r"(?:of|in|into|to|for|from|on|at|with|by|between|after|before) ", re.IGNORECASE)
_SAME = {"in": ("in", "into", "to"), "to": ("to", "in", "into"), "into": ("into", "in", "to")}
_NO_FRAGMENT = re.compile(
    r"(?:you|me|i|we|us|he|she|they|it|this|that|him|her|them|now|then|so|why|how|what|who|when|where|which|is|are|was|were|do|does|did|can"
    r"|yes|no|ok|okay|sure|really|thanks|thank you|please|bye|cool|nice|great|good|again|more|else|another|not|if)\b(?! morning| night| evening| day)",
    re.IGNORECASE,
)
_PRONOUN = re.compile(
    r"\b(?P<person>he|she|him)\b|\b(?P<its>its|his|their)\b|\b(?:it|that|this|they|them)\b", re.IGNORECASE
)
_NO_PRONOUN = re.compile(
    r"\b(?:is|was|does|did) (?:it|this|that) (?:true|rain|snow|mean that|take)\b|\bwhat time is it in [a-z]",
    re.IGNORECASE,
)
_WHY = re.compile(r"(?:why(?: is that| not| so)?|how (?:so|come)|how do you know(?: that)?)", re.IGNORECASE)
_CHECK = re.compile(
    r"(?:(?:can|could) you )?(?:please )?(?:double[- ]?)?(?:check|verify|prove|test)(?: (?:it|that|this|(?:your|the|this|that) (?:answer|result|solution)))?(?: please)?",
    re.IGNORECASE,
)
_ASKS_REST = re.compile(r"\.\.\.|…|__|\b(?:finish|complete|continue|proverb|saying|missing)\b", re.IGNORECASE)
"""Beginning of a text that the answer completes. A pronoun after it means the whole text, not the answer."""
_NAME = re.compile(
    r"(?!(?:yes|no|true|false|\w(?:-\w)+)$)(?:[^\W\d_]|[.'-])+(?: (?:[^\W\d_]|[.'-])+){0,4}", re.IGNORECASE
)
_DATE = re.compile(r"\d{1,2} [A-Z][a-z]+ \d{4}")
_SUM = re.compile(
    r"\d ?[-+*/×÷^−%]|\b(?:plus|minus|times|divided|multiplied|sum|product|square root|squared)\b",
    re.IGNORECASE,
)
"""Part of a calculation, whose result a pronoun stands for."""
_ADVERB = re.compile(
    r"backwards?|reversed|in reverse(?: order)?|twice|in (?:capitals|capital letters|upper ?case|lower ?case)",
    re.IGNORECASE,
)
_STEP = re.compile(r"(?:add|subtract|multiply|divide|take)\b.*\d", re.IGNORECASE)
"""Next step of a calculation."""
_OPERATOR = re.compile(
    r"(?:[-+*/×÷−]|plus|minus|times|divided by|multiplied by|squared|cubed|to the power)(?![a-z])",
    re.IGNORECASE,
)
_SUBJECTS = tuple(
    re.compile(text)
    for text in (
        r"\"([^\"]+)\"",
        r"\b(?:does|do|did) (\S+(?: \S+){0,3}?) (?:mean|have|eat|use|stand for|weigh|make|live|come from)$",
        r".*\b(?:of|in|for|word|[Ss]pell|[Dd]efine) (\S+(?: \S+){0,2})$",
        r".*\b((?:an?|the) \S+(?: \S+){0,3})$",
        r".*\b(?:an?|the) (\S+(?: \S+){0,3})$",
        r".*?\b((?!(?:What|Who|Which|How|When|Where|Is|Are|Was|Does|Do)\b)[A-Z][\w.'-]*(?: [A-Z][\w.'-]*)*)$",
        r"\D*(\d[\d,.]*)(?!.*\d).*",
    )
)
"""Places of the words for the thing that a question is about."""


def refers_back(turns: Sequence[str]) -> bool:
    """Return whether the last turn has a pronoun for something that an earlier turn names."""
    text = turns[-1] if len(turns) > 1 else ""
    return _PRONOUN.search(text) is not None and not _NO_PRONOUN.search(text)


Ask = Callable[[str], str | None]
"""Function that returns the answer to a question, or None if there is no certain one."""


def whole_question(turns: Sequence[str], value_of: Ask, reply_to: Ask) -> str | None:
    """Return the question that the last of the user's `turns` means, or None if this is not certain.

    Args:
        turns: messages of the user, the last one at the end.
        value_of: function that returns the value alone, for what a pronoun stands for.
        reply_to: function that returns the whole answer.
    """
    *earlier, text = turns[-MOST_TURNS:]
    if not earlier:
        return None
    before: str | None = earlier[-1]
    if (value := value_of(earlier[-1])) is None:
        before = whole_question(earlier, value_of, reply_to)
        value = value_of(before) if before else None
    if before is None or value is None:
        return None
    earlier_reply = reply_to(before)
    for candidates in _candidates(before, value, text):
        questions = {
            answer: each
            for each in candidates
            if each and (answer := reply_to(each)) not in (None, earlier_reply)
        }
        if questions:
            return next(iter(questions.values())) if len(questions) == 1 else None
    return None


def _candidates(before: str, value: str, text: str) -> Iterator[list[str]]:
    """Yield the whole questions that `text` may mean after the question `before`, whose answer is `value`.

    Questions of a later list are less likely.
    """
    plain = " ".join(text.strip(_END).split())
    step = re.sub(r"^(?:(?:and|now|then),? )+", "", plain, flags=re.IGNORECASE)
    if _STEP.match(step) and not _PRONOUN.search(step):
        yield [f"{before.rstrip(_END)}, then {step}"]
    elif _WHY.fullmatch(plain):
        yield [f"why {before}"]
    elif _CHECK.fullmatch(plain):
        yield [f"check {before}"]
    elif (marked := _MARK.match(plain)) or (_PREPOSITION.match(plain) and text.rstrip().endswith("?")):
        fragment = plain[marked.end() if marked else 0 :]
        if _OPERATOR.match(fragment):
            yield [f"{value} {fragment}"]
        else:
            yield from _with_fragment(before, fragment)
    if _PRONOUN.search(plain) and not _NO_PRONOUN.search(plain):
        yield [*_with_pronoun(before, value, plain)]


def _with_fragment(before: str, fragment: str) -> Iterator[list[str]]:
    """Yield `before` with `fragment` in the place of other words: first of those after the same preposition."""
    text_start, own_text = _TEXT_START.search(before), _TEXT_START.search(fragment)
    head = fragment[: own_text.start()] if own_text else fragment
    if _NO_FRAGMENT.match(fragment) or len(head.split()) > MOST_FRAGMENT:
        return
    command = before[: text_start.start()] if text_start else before.rstrip(_END)
    words = list(re.finditer(r"\S+", command))[:MOST_WORDS]
    if own_text:
        yield [f"{before[: words[n].start()]}{fragment}" for n in range(1, min(len(words), 4))]
        return
    preposition = head.split()[0].casefold() if _PREPOSITION.match(f"{head} ") else ""
    ends = _END if "%" in fragment else f"{_END}%"
    shape = _shape(fragment, ends)
    spans = [
        (words[i].start(), words[j - 1].end())
        for i in range(len(words))
        for j in range(i + 1, min(i + MOST_SPAN, len(words)) + 1)
    ]
    first_words = _SAME.get(preposition, (preposition,))
    alike = [(start, end) for start, end in spans if before[start:end].split()[0].casefold() in first_words]
    same = [(start, end) for start, end in spans if "0" in shape and _shape(before[start:end], ends) == shape]
    for places in (alike, same, [] if _ADVERB.fullmatch(fragment) else spans):
        yield [new for start, end in places if (new := _replace(before, start, end, fragment))]
    yield [f"{command} {fragment}{before[len(command) :]}"]
    if text_start and re.search(r"[,\d]", fragment):
        yield [f"{before[: text_start.end()]}{fragment}"]


def _shape(text: str, ends: str) -> str:
    """Return `text` without the signs in `ends` around it, and with zeros for its numbers. Texts of the same shape are of
    the same kind.
    """
    return re.sub(r"\d+", "0", text.strip(ends).casefold())


def _replace(before: str, start: int, end: int, fragment: str) -> str:
    """Return `before` with other words at a place, or "" if they are of another kind: a number, or a quotation."""
    old = before[start:end]
    bare = old.rstrip(_END + ("" if "%" in fragment else "%") + ":")
    quotes = [mark for mark in ('"', "'") if bare.startswith(mark) or bare.endswith(mark)]
    if quotes:
        if len(bare) < 2 or bare[0] != bare[-1]:
            return ""
        fragment = f"{quotes[0]}{fragment.strip(quotes[0])}{quotes[0]}"
    number, old_number = re.search(r"\d", fragment), re.search(r"\d", bare)
    is_amount = number and re.match(r"(?:an?|one)\b", bare)
    if bool(number) != bool(old_number) and not is_amount:
        return ""
    has_article = re.search(r"\ban? $", before[:start]) or (re.match(r"an? ", bare) and not number)
    if has_article and re.search(r"[^s]s$", fragment):
        return ""  # a plural has no such article
    return f"{before[:start]}{fragment}{old[len(bare) :]}{before[end:]}"


def _with_pronoun(before: str, value: str, text: str) -> Iterator[str]:
    """Yield `text` with what its pronoun may stand for: the earlier answer, the subject of the earlier question, or its text."""
    pronoun = _PRONOUN.search(text)
    if pronoun is None or len(_PRONOUN.findall(text)) != 1:
        return
    text_start = _TEXT_START.search(before)
    names = (
        [value]
        if (_NAME.fullmatch(value) or _DATE.fullmatch(value)) and not _ASKS_REST.search(before)
        else []
    )
    if _SUM.search(before) and re.fullmatch(r"-?[\d,.]+", value):
        names = [value]
    elif not (pronoun["person"] or text_start or re.search(r"\bthan\b", text)):
        matches = [each.search(before.strip(_END)) for each in _SUBJECTS]
        names += [match[1] for match in matches if match]
    end = "'s" if pronoun["its"] else ""
    for name in dict.fromkeys(names):
        yield f"{text[: pronoun.start()]}{name}{end}{text[pronoun.end() :]}"
    if not pronoun["person"] and text_start:
        yield f"{text}: {before[text_start.end() :].strip()}"
