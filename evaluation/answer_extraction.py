"""Find the answer in a text, in the form that the question asked for. Judges nothing."""

import re

ANSWER_FORM = "Write your final answer between <answer> and </answer>."
"""Appended to a question whose answer `answer_tag` reads."""
_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?|[-+]?\.\d+")
_MARKER = re.compile(r"####\s*([^\n]+)")
_BOXED = re.compile(r"\\boxed\s*\{")
_LETTER = r"([A-J](?![\w'])|[a-j](?=\s*$|[^\w\s^/+=-]+(?:\s|$)|\s+(?:or|and)\b))"
"""A lower-case letter counts at a line's end, before punctuation or beside another choice."""
_CHOICE = re.compile(rf"(?i:answer|choice|option)\s*(?i:is|:)?\s*\**\(?{_LETTER}", re.MULTILINE)
_MARKED_CHOICE = re.compile(rf"(?<![A-Za-z'])\(?{_LETTER}")
_LONE_CHOICE = re.compile(r"(?<![A-Za-z'])\(?([A-J])\)?(?![A-Za-z'])")
OPENING_WORDS = 40
"""How many words of an answer in free text are read."""
_LIST_LINE = re.compile(r"^[ \t]*(?:[-*•]|\d+[.)])[ \t]+(.*)$")
_ITEM_END = re.compile(r"\s*(?::|\(|(?<!\d) [-–] |[.!?](?:\s|$)).*")
_FENCE = re.compile(r"```(?:[A-Za-z0-9_+-]*)[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


def answer_tag(text: str) -> str | None:
    """The text of the last pair of answer tags; None where there is none or it is empty."""
    found = _last_tagged(text)
    return found.strip() or None if found is not None else None


def answer_tag_or_all(text: str) -> str | None:
    """The text of the last pair of answer tags, or the whole text without tags; None where that is empty."""
    found = _last_tagged(text)
    return (text if found is None else found).strip() or None


def _last_tagged(text: str) -> str | None:
    """What the last pair of answer tags holds. Each tag is looked at once: a worker's text may hold thousands."""
    found, begin = None, None
    for tag in _TAG.finditer(text):
        is_end = bool(tag[1])
        if is_end and begin is not None:
            found, begin = text[begin : tag.start()], None
        elif not is_end and begin is None:
            begin = tag.end()
    return found


def number(text: str) -> str | None:
    r"""The last number of the marked answer (`<answer>`, `\boxed{}` or `####`), or else of the whole text."""
    marked = answer_tag(text) or box_content(text)
    if marked is None and (after := _MARKER.findall(text)):
        marked = after[-1]
    found = _NUMBER.findall(text if marked is None else marked)
    return found[-1].replace(",", "") if found else None


def box_content(text: str) -> str | None:
    r"""What the last `\boxed{...}` holds, braces inside it counted."""
    starts = [match.end() for match in _BOXED.finditer(text)]
    if not starts:
        return None
    depth = 1
    for at in range(starts[-1], len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return text[starts[-1] : at].strip() or None
    return None


def mathematics(text: str) -> str | None:
    """The marked answer, or the whole text, in which the grader looks for the last expression."""
    box = box_content(text)
    return answer_tag(text) or (f"\\boxed{{{box}}}" if box else None) or text.strip() or None


def choice(text: str) -> str | None:
    """The letter chosen: between answer tags, after the word answer, or else the last that stands alone."""
    marked = answer_tag(text) or box_content(text)
    if marked is not None:
        found = {letter.upper() for letter in _MARKED_CHOICE.findall(marked)}
        return found.pop() if len(found) == 1 else None
    for pattern in (_CHOICE, _LONE_CHOICE):
        if found := pattern.findall(text):
            return found[-1].upper()
    return None


def code(text: str) -> str | None:
    """The program: the longest fenced block, or the whole text where there is no fence."""
    blocks = _FENCE.findall(text)
    return max(blocks, key=len).rstrip() or None if blocks else text.rstrip() or None


def opening(text: str) -> str | None:
    """The first `OPENING_WORDS` words, the items of a list joined by commas; None where there are none.

    Items are bulleted or numbered lines, two or more, and lines of one or two words: of `1. Red: like
    blood` the item is `Red`.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    marked = sum(bool(_LIST_LINE.match(line)) for line in lines) > 1
    joined, after_item = "", False
    for line in lines:
        item = _item(line, marked)
        joined += (", " if item and after_item else "\n") + (item or line)
        after_item = bool(item)
    words = list(re.finditer(r"\S+", joined))[:OPENING_WORDS]
    return joined[words[0].start() : words[-1].end()] if words else None


def _item(line: str, marked: bool) -> str:
    """The item that a line of a list holds; empty where it is none."""
    if marked and (match := _LIST_LINE.match(line)):
        return _ITEM_END.sub("", match[1].replace("**", ""))
    return line.strip(" .,;") if len(line.split()) <= 2 else ""
