"""Extract the answer from a text, in the form that the question asked for. The graders judge it."""

import re

ANSWER_FORM = "Write your final answer between <answer> and </answer>."
"""Sentence that is added to a question, so that `answer_tag` can read the answer."""
_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d+)?|[-+]?\.\d+")
_MARKER = re.compile(r"####\s*([^\n]+)")
_BOXED = re.compile(r"\\boxed\s*\{")
_LETTER = r"([A-J](?![\w'])|[a-j](?=\s*$|[^\w\s^/+=-]+(?:\s|$)|\s+(?:or|and)\b))"
"""The letter of a choice. A lower-case letter counts only at the end of a line, before punctuation, or next
to another choice.
"""
_CHOICE = re.compile(rf"(?i:answer|choice|option)\s*(?i:is|:)?\s*\**\(?{_LETTER}", re.MULTILINE)
_MARKED_CHOICE = re.compile(rf"(?<![A-Za-z'])\(?{_LETTER}")
_LONE_CHOICE = re.compile(r"(?<![A-Za-z'])\(?([A-J])\)?(?![A-Za-z'])")
OPENING_WORDS = 40
"""Number of words of a free-text answer that are judged."""
_LIST_LINE = re.compile(r"^[ \t]*(?:[-*•]|\d+[.)])[ \t]+(.*)$")
_ITEM_END = re.compile(r"\s*(?::|\(|(?<!\d) [-–] |[.!?](?:\s|$)).*")
_FENCE = re.compile(r"```(?:[A-Za-z0-9_+-]*)[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


def answer_tag(text: str) -> str | None:
    """Return the text between the last pair of answer tags, or None if there is no such text."""
    content = _last_tagged(text)
    return content.strip() or None if content is not None else None


def answer_tag_or_all(text: str) -> str | None:
    """Return the text between the last answer tags, or all of it without tags, or None if that is empty."""
    content = _last_tagged(text)
    return (text if content is None else content).strip() or None


def _last_tagged(text: str) -> str | None:
    """Return the text between the last pair of answer tags. Each of thousands of tags is visited once."""
    content, begin = None, None
    for tag in _TAG.finditer(text):
        is_end = bool(tag[1])
        if is_end and begin is not None:
            content, begin = text[begin : tag.start()], None
        elif not is_end and begin is None:
            begin = tag.end()
    return content


def number(text: str) -> str | None:
    r"""Return the last number of the answer marked by `<answer>`, `\boxed{}` or `####`, or else of the text."""
    marked = answer_tag(text) or box_content(text)
    if marked is None and (after := _MARKER.findall(text)):
        marked = after[-1]
    numbers = _NUMBER.findall(text if marked is None else marked)
    return numbers[-1].replace(",", "") if numbers else None


def box_content(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}`, including nested braces."""
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
    """Return the marked answer, or the whole text, of which the grader reads the last expression."""
    box = box_content(text)
    return answer_tag(text) or (f"\\boxed{{{box}}}" if box else None) or text.strip() or None


def choice(text: str) -> str | None:
    """Return the letter of the chosen option.

    It is the letter in the marked answer. If no answer is marked, it is the last letter after a word such as
    `answer`, or else the last letter that stands alone.
    """
    marked = answer_tag(text) or box_content(text)
    if marked is not None:
        letters = {letter.upper() for letter in _MARKED_CHOICE.findall(marked)}
        return letters.pop() if len(letters) == 1 else None
    for pattern in (_CHOICE, _LONE_CHOICE):
        if letters := pattern.findall(text):
            return letters[-1].upper()
    return None


def code(text: str) -> str | None:
    """Return the program: the longest fenced block, or the whole text if there is no fence."""
    blocks = _FENCE.findall(text)
    return max(blocks, key=len).rstrip() or None if blocks else text.rstrip() or None


def opening(text: str) -> str | None:
    """Return the first `OPENING_WORDS` words of an answer, or None if the answer has no words.

    The items of a list are joined by commas. An item is a bulleted or numbered line, if there are at least
    two of them, or a line of one or two words. The item of the line `1. Red: like blood` is `Red`.
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
    """Return the list item that a line contains, or "" if the line is not a list item."""
    if marked and (match := _LIST_LINE.match(line)):
        return _ITEM_END.sub("", match[1].replace("**", ""))
    return line.strip(" .,;") if len(line.split()) <= 2 else ""
