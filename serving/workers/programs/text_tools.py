"""Text tools: letter case, sorting, counting, extraction, CSV, JSON and tables, and extractive summaries.

A request is a command, and a text after a colon, on the lines after it, in quotation marks, or in the output of an
earlier step. The program must understand the whole command. The text may be anything.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from serving.workers.programs.date_text import MONTHS, WEEKDAYS
from serving.workers.programs.expressions import NUMBER, read_number
from serving.workers.programs.process import NotForProgram
from serving.workers.programs.program import ProgramWorker
from serving.workers.programs.question import MOST_TEXT_CHARS, PlainQuestion, read_question
from serving.workers.programs.rules import ExactAnswer, pattern
from serving.workers.programs.tables import (
    amount_in,
    count_rows,
    csv_to_json,
    format_json,
    json_to_csv,
    markdown_table,
    pairs_table,
    read_json,
    read_pairs,
)

MOST_SENTENCES = 400
_COMMAND_CHARS = 160
"""Maximum length of a command in characters. The limit bounds the time for matching the patterns."""

_WORD = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*")
_EMAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,4}(?<![.-])")
_URL = re.compile(r"https?://[^\s<>\"')\]]{1,500}(?<![.,;:!?])")
_NUMBER = re.compile(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?!\w)")
_DATE = re.compile(
    r"\b(?:\d{4}-\d{2}-\d{2}|\d{1,2}[/.]\d{1,2}[/.]\d{2,4}"
    r"|\d{1,2}(?:st|nd|rd|th)? (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}\.?(?:,? \d{4})?"
    r"|(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]{0,6}\.? \d{1,2}(?:st|nd|rd|th)?(?:,? \d{4})?)\b"
)
_HASHTAG = re.compile(r"(?<!\w)#\w{1,100}")
_STOP_WORDS = frozenset([
    "a", "an", "and", "are", "as", "at", "be", "been", "but", "by", "can", "could", "did", "do", "does", "for", "from",
    "had", "has", "have", "he", "her", "his", "i", "if", "in", "into", "is", "it", "its", "just", "may", "me", "more",
    "most", "my", "no", "not", "of", "on", "or", "our", "she", "should", "so", "some", "such", "than", "that", "the",
    "their", "them", "then", "there", "these", "they", "this", "those", "to", "was", "we", "were", "what", "when",
    "which", "who", "will", "with", "would", "you", "your",
])  # fmt: skip


@dataclass(frozen=True, slots=True)
class Command:
    """Match of a command, and the text to which the command applies."""

    match: re.Match[str]
    text: str


def _items(text: str) -> tuple[list[str], str]:
    """Return the items of a list and the separator that joins them. Items are lines, or parts between commas."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    if len(lines) > 1:
        return lines, "\n"
    parts = [
        part.strip() for part in re.split(r",(?: and)?\s|,| and ", text.strip().rstrip(".")) if part.strip()
    ]
    if len(parts) < 2:
        parts = text.split()
        return parts, " "
    return parts, ", "


def _sort(command: Command) -> str:
    items, joint = _items(command.text)
    how = command.match[0].casefold()
    numbers = [_as_number(item) for item in items]
    if all(number is not None for number in numbers):
        is_reversed = any(
            word in how
            for word in (
                "descending",
                "largest to",
                "biggest to",
                "highest",
                "reverse",
                "decreasing",
                "greatest to",
                "high to",
                "largest first",
                "biggest first",
            )
        )
        if "alphabet" in how:
            raise NotForProgram("Numbers have no alphabetical order.")
        pairs = sorted(zip(numbers, items, strict=True), key=lambda pair: pair[0] or 0, reverse=is_reversed)
        return joint.join(item for _, item in pairs)
    if re.search(
        r"number|smallest|biggest|largest|highest|lowest|ascending order of|longest|shortest|oldest|newest",
        how,
    ):
        raise NotForProgram("Not all items of the list are numbers.")
    if "alphabet" not in how and all(item.capitalize() in (*WEEKDAYS, *MONTHS) for item in items):
        raise NotForProgram("Days and months have an order of their own.")
    is_reversed = any(word in how for word in ("descending", "reverse", "z to a", "z-a"))
    return joint.join(sorted(items, key=lambda item: (item.casefold(), item), reverse=is_reversed))


def _as_number(text: str) -> float | None:
    if not re.fullmatch(r"-?[\d,]{1,20}(?:\.\d{1,20})?", text):
        return None
    try:
        return float(read_number(text))
    except NotForProgram:
        return None


def _reverse(command: Command) -> str:
    if "letters" in command.match[0].casefold() or "characters" in command.match[0].casefold():
        return command.text[::-1]
    items, joint = _items(command.text)
    if len(items) == 1:
        raise NotForProgram("The list has only one item.")
    return joint.join(reversed(items))


def _unique(command: Command) -> str:
    items, joint = _items(command.text)
    return joint.join(dict.fromkeys(items))


def _case(command: Command) -> str:
    how, text = command.match["case"].casefold().replace("-", " "), command.text
    if "title" in how:
        return re.sub(r"[^\W\d_]+('[^\W\d_]+)?", lambda word: word[0][0].upper() + word[0][1:].lower(), text)
    if "sentence" in how:
        return re.sub(r"(^|[.!?]\s+)([^\W\d_])", lambda start: start[1] + start[2].upper(), text.lower())
    return text.upper() if re.search(r"upper|capital|caps", how) else text.lower()


def _count(command: Command) -> str:
    text, what = command.text, command.match["what"].casefold()
    counts: dict[str, Callable[[], int]] = {
        "word": lambda: len(text.split()),
        "character": lambda: len(text),
        "letter": lambda: sum(char.isalpha() for char in text),
        "sentence": lambda: len(_sentences(text)),
        "line": lambda: len(text.splitlines()),
    }
    name = what.removesuffix("s")
    count = counts[name]()
    spaces = ", spaces included" if name == "character" else ""
    return f"The text has {count:,} {name}{'' if count == 1 else 's'}{spaces}."


def _count_rows(command: Command) -> str:
    n_rows, has_names = count_rows(command.text)
    what = command.match["what"].casefold()
    if what in ("people", "persons", "names") and not has_names:
        raise NotForProgram("The table has no column of names.")
    one = {"people": "person", "entries": "entry"}.get(what, what.removesuffix("s"))
    return f"The table has {n_rows:,} {one if n_rows == 1 else what}."


def _sentences(text: str) -> list[str]:
    """Return the sentences of a text. A point inside a word or number does not end a sentence."""
    pieces = re.split(r"(?<=[.!?])[\"')\]]*\s+|\n+", text)
    return [piece.strip() for piece in pieces if _WORD.search(piece)][: MOST_SENTENCES + 1]


def _extract(command: Command) -> str:
    what = command.match["what"].casefold()
    kinds = {"e": _EMAIL, "u": _URL, "l": _URL, "w": _URL, "n": _NUMBER, "d": _DATE, "h": _HASHTAG}
    items = list(dict.fromkeys(kinds[what[0]].findall(command.text)))
    return "\n".join(items) if items else f"The text contains no {what}."


def _format_json(command: Command) -> str:
    how = command.match[0].casefold()
    if "valid" in how:
        try:
            read_json(command.text)
        except NotForProgram as reason:
            return f"No. {reason}"
        return "Yes, this is valid JSON."
    return format_json(command.text, is_compact="minify" in how or "compact" in how)


def _summarise(command: Command) -> str:
    """Return the sentences with the most frequent words of the text, in the order of the text."""
    sentences = _sentences(command.text)
    n_sentences = (
        int(read_number(command.match["n"])) if command.match["n"] else max(1, min(3, len(sentences) // 3))
    )
    if not 3 <= len(sentences) <= MOST_SENTENCES or not 1 <= n_sentences < len(sentences):
        raise NotForProgram(
            f"The text must have 3 to {MOST_SENTENCES} sentences, and the summary must have fewer sentences than the text."
        )
    words = [[word.casefold() for word in _WORD.findall(sentence)] for sentence in sentences]
    counts = Counter(word for each in words for word in each if word not in _STOP_WORDS and len(word) > 2)
    scores = [sum(counts[word] for word in set(each)) / (len(each) + 5) for each in words]
    best = sorted(range(len(sentences)), key=lambda at: (-scores[at], at))[:n_sentences]
    return " ".join(sentences[at] for at in sorted(best))


_DOWN = re.compile(
    r"descending|oldest|highest|largest|biggest|most|longest|heaviest|tallest|reverse|z to a|z-a|decreasing|high to low|expensive|greatest",
    re.IGNORECASE,
)
_UP = re.compile(
    r"ascending|youngest|lowest|smallest|least|shortest|lightest|low to high|increasing|cheap|a to z|a-z|fewest",
    re.IGNORECASE,
)
_BY_NAME = r"names?|first names?|alphabet(?:ically)?|labels?"


def _first_of(how: str) -> bool:
    """Return whether the order is descending. The first word for an order counts, as in "oldest to youngest"."""
    down, up = _DOWN.search(how), _UP.search(how)
    return down is not None and (up is None or down.start() < up.start())


def _order_pairs(command: Command) -> str:
    """Sort a list of names with amounts, by the amounts or by the names, and show it as a list or a table."""
    pairs, how = read_pairs(command.text), command.match[0].casefold()
    groups = command.match.groupdict()
    by, columns = groups.get("by") or "", groups.get("columns") or groups.get("columns2") or ""
    if len({re.sub(r"[-\d., ]", "", value).casefold() for _, value in pairs}) > 1:
        raise NotForProgram("The amounts of the list have different units.")
    is_named = (
        re.fullmatch(_BY_NAME, by)
        or "alphabet" in how
        or (not by and "names" in how and not (_DOWN.search(how) or _UP.search(how)))
    )
    if re.search(r"sort|order|arrange|rank", how):
        if not is_named and not by and not (_DOWN.search(how) or _UP.search(how)):
            raise NotForProgram("The request does not say by what to sort.")
        pairs.sort(
            key=lambda pair: pair[0].casefold() if is_named else amount_in(pair[1]), reverse=_first_of(how)
        )
    if "table" in how:
        header = (
            [each.strip(" \"'").capitalize() for each in re.split(r",? and |, ", columns)]
            if columns
            else ["Name", by.capitalize() if by and not is_named else "Value"]
        )
        if len(header) != 2:
            raise NotForProgram("The list has two columns.")
        return pairs_table(pairs, header)
    return ", ".join(f"{label} {value}" for label, value in pairs)


def _extreme_pair(command: Command) -> str:
    """Answer which of the names has the largest or smallest amount."""
    pairs = read_pairs(command.text)
    extreme = (max if _DOWN.search(command.match["how"]) else min)(amount_in(value) for _, value in pairs)
    answers = [(label, value) for label, value in pairs if amount_in(value) == extreme]
    if len(answers) != 1 or len({re.sub(r"[-\d., ]", "", value).casefold() for _, value in pairs}) > 1:
        raise NotForProgram("Several names have this amount, or the amounts have different units.")
    return f"{answers[0][0]} ({answers[0][1]})."


def _by_surname(command: Command) -> str:
    items, joint = _items(command.text)
    if any(len(item.split()) < 2 for item in items) or joint == " ":
        raise NotForProgram("Not all names of the list have a surname.")
    return joint.join(
        sorted(
            items,
            key=lambda item: [part.casefold() for part in item.split()][::-1],
            reverse=_first_of(command.match[0]),
        )
    )


def _replace(command: Command) -> str:
    """Replace whole words, and keep a capital first letter."""
    old, new = (re.escape(command.match["old"].strip("\"'")), command.match["new"].strip("\"'"))
    text, n = re.subn(
        rf"(?<![\w]){old}(?![\w])",
        lambda occurrence: new[0].upper() + new[1:] if occurrence[0][0].isupper() else new,
        command.text,
        flags=re.IGNORECASE,
    )
    if not n or re.search(rf"(?<![\w]){old}s(?![\w])", command.text, re.IGNORECASE):
        raise NotForProgram(f"The text does not have the word {old!r}, or has it in other forms.")
    return text


def _email_of(command: Command) -> str:
    who = command.match["who"].casefold()
    addresses = [
        each
        for each in dict.fromkeys(_EMAIL.findall(command.text))
        if who in re.split(r"[._+-]", each.casefold().partition("@")[0])
    ]
    if len(addresses) != 1:
        raise NotForProgram(f"The text does not have exactly one address with the name {who!r}.")
    return addresses[0]


_THE = r"(?:(?:this|the|these|those|all|following|my|each|every|above|given|of)\s?)*(?:text|sentences?|paragraphs?|words?|names?|lines?|list|items?|article|passage|string|phrase|message|email|answer|output|numbers?|letters?|characters?|csv|json|data|table)?s?(?: above| below)?"
_PLAIN = rf"(?:\s?{_THE})"
_HOW_TO = r"(?: in| into)?(?: (?:the )?(?:alphabetical|ascending|descending|increasing|decreasing)(?: order)?| alphabetically)?"
_ENDS = r"(?:,? ?\(?(?:the )?(?:(?:from )?(?:oldest|youngest|highest|lowest|largest|smallest|biggest|cheapest|most expensive|longest|shortest|heaviest|lightest|tallest)(?: (?:one|number|price|score|amount|age))?(?: first| to (?:oldest|youngest|highest|lowest|largest|smallest|biggest|cheapest|longest|shortest|heaviest|lightest|tallest))|(?:from )?(?:a to z|z to a|a-z|z-a|high to low|low to high))\)?)?"
_LISTED = r"(?:(?:this|these|the|those|following|my|all|of) ?)*(?:people|names?|list|items?|things|products|cities|scores|players|students|numbers|data|prices|ages|runners|teams|employees|countries|animals)?"
_BY = r"(?: by (?:their |the |its )?(?P<by>ages?|numbers?|prices?|scores?|amounts?|values?|quantit(?:y|ies)|heights?|weights?|sizes?|costs?|population|salar(?:y|ies)|points|lengths?|time|year|names?|first names?))?"
_TABLE = r"(?:(?:make|create|draw|put|show|give|turn|convert|write|format|build|display)(?: me)?(?: (?:it|them|that|the result|the list))? ?(?:as|in|into|to)? ?(?:a |an )?(?:markdown |two-column )?table(?: (?:with|of|from|for|out of))?)"
_COLUMNS = r"(?:(?: with)?(?: the)? (?:columns?|headers?|headings?|header row)(?: named| called)?:? (?P<columns>[\w \"'-]{1,40}))?"
RULES: tuple[tuple[re.Pattern[str], Callable[[Command], str]], ...] = (
    (pattern(rf"(?:sort|order|arrange|rank) ?{_LISTED}{_BY}{_HOW_TO}{_ENDS}(?:,? (?:and|then|and then) {_TABLE}{_COLUMNS})?"), _order_pairs),
    (pattern(rf"(?:make|create|draw|show|give)(?: me)? (?:a |an )?(?:markdown |two-column )?table(?:,? (?:with|of|from|for|out of))?{_COLUMNS}(?: (?:for|of|from) )?{_LISTED}|(?:put|turn|convert|format|show) {_LISTED} ?(?:as|in|into|to) (?:a )?(?:markdown )?table{_COLUMNS.replace('columns>', 'columns2>')}"), _order_pairs),
    (pattern(r"(?:who|which|what)(?: (?:one|item|person|city|product|of (?:these|them)))* (?:is|was|has|costs|scored|weighs)(?: the)? (?P<how>oldest|youngest|highest|lowest|largest|smallest|biggest|cheapest|most expensive|longest|shortest|heaviest|lightest|tallest|most|least|fewest)(?: (?:number|price|score|age|amount|points|one|person|item))?(?: (?:in|of) (?:this|the|these|them)(?: list)?)?"), _extreme_pair),
    (pattern(rf"(?:sort|order|arrange|list) ?{_LISTED}(?: in| into)?(?: alphabetical order| alphabetically)? by (?:their )?(?:surnames?|last names?|family names?){_ENDS}(?: alphabetically)?"), _by_surname),
    (pattern(r"(?:change|replace|turn|swap) (?:every |all |each |the word |all the )?(?P<old>[\"']?[a-z]+[\"']?) (?:to|with|by|into|for) (?P<new>[\"']?[a-z]+[\"']?)(?: (?:in|everywhere in) (?:this|the|the following|my)(?: sentence| text)?)?"), _replace),
    (pattern(r"what is (?P<who>[a-z]+)'s e-?mail(?: address)?(?: in| from)?(?: this| the| below| following| text| message| email)*(?:\? only the address)?"), _email_of),
    (pattern(rf"(?:sort|order|arrange|put|rank){_PLAIN}(?: in| into| by| from)?\s?(?:(?:the )?(?:alphabetical|alphabetic|ascending|descending|increasing|decreasing|numerical|reverse|reverse alphabetical) ?(?:order)?|alphabetically|smallest to (?:largest|biggest)|(?:largest|biggest) to smallest|lowest to highest|highest to lowest|low to high|high to low|smallest first|(?:largest|biggest) first|least to greatest|greatest to least|order|a to z|z to a|size)?(?: from (?:smallest to (?:largest|biggest)|(?:largest|biggest) to smallest|lowest to highest|highest to lowest|low to high|high to low|a to z|z to a))?(?: in reverse(?: order)?)?"), _sort),
    (pattern(rf"reverse (?:the order of )?{_THE}(?: order)?"), _reverse),
    (pattern(rf"(?:remove|delete|drop)(?: all)?(?: the)? (?:duplicates?|duplicate (?:lines|words|items|names)|repeated (?:lines|words|items))(?: from| in)?{_PLAIN}(?:,? (?:but |and )?keep(?:ing)? (?:the |their )?(?:original |same )?order)?"), _unique),
    (pattern(rf"(?:convert|change|write|turn|make|put|transform|rewrite){_PLAIN}(?: to| into| in| all)? ?(?:all )?(?P<case>upper ?-?case|lower ?-?case|title ?-?case|sentence ?-?case|capitals|capital letters|all caps|caps|small letters)(?: letters)?"), _case),
    (pattern(rf"(?P<case>upper ?-?case|lower ?-?case|title ?-?case){_PLAIN}"), _case),
    (pattern(rf"(?:how many|count(?: the)?(?: number of)?|what is the number of) (?P<what>words?|characters?|letters?|sentences?|lines?)(?: are| are there| does| do| there are)?(?: in| of)?{_PLAIN}(?: have| has| contain)?"), _count),
    (pattern(r"(?:and )?how many (?P<what>people|persons|names|rows|entries|records|objects)(?: are)?(?: there)? in (?:it|this|that|the|them)(?: list| table| csv| json)?"), _count_rows),
    (pattern(rf"(?:extract|find|list|get|pull out|give me|show)(?: me)?(?: all)?(?: of)?(?: the)? (?P<what>e-?mails?(?: addresses)?|email address|urls?|links?|web addresses|numbers?|dates?|hashtags?)(?: from| in| out of| mentioned in| contained in)?{_PLAIN}"), _extract),
    (pattern(rf"(?:convert|turn|change|transform){_PLAIN}(?: from)?(?: csv)?(?: to| into| as) (?:a |an )?json(?: array| list| format| objects?)?(?: objects)?|csv to json"), lambda c: csv_to_json(c.text)),
    (pattern(rf"(?:convert|turn|change|transform){_PLAIN}(?: from)?(?: json)?(?: to| into| as) (?:a )?csv(?: format| file)?(?:,? (?:with|including) (?:a |the )?headers?(?: line| row)?)?|json to csv"), lambda c: json_to_csv(c.text)),
    (pattern(rf"(?:convert|turn|change|transform|format|make|show|write|put){_PLAIN}(?: csv| json)?(?: to| into| as| in)? ?(?:a |an )?(?:markdown )?table(?: format| in markdown)?"), lambda c: markdown_table(c.text)),
    (pattern(r"(?:pretty[- ]?print|format|indent|beautify|minify|compact|validate|is)(?: this| the| following| that)* ?(?:valid )?json(?: valid)?"), _format_json),
    (pattern(rf"(?:summari[sz]e|sum up|shorten|give me a summary of|write a summary of|tl;?dr){_PLAIN}(?: in| to| into| with| using)?(?: at most| about| just| only)? ?(?:(?P<n>{NUMBER}) sentences?|briefly)?"), _summarise),
)  # fmt: skip


JOIN = pattern(
    r"(?:(?:then|and|finally|at the end),? )*(?:list|show|give|write(?: down)?|put|combine|merge|join|sum(?: up)?|summari[sz]e|state|report"
    r"|repeat|name|bring|use|mention)(?: me)?(?: up)?(?: (?P<sentence>(?:a|one|a single|a short|one short) sentence (?:with|about|that (?:has|contains|names|mentions))))?"
    r" (?:(?:them )?both|all(?: (?:two|three|four))?|the (?:two|three|four)|them(?: all)?|these|everything|the)(?: of them)?"
    r"(?: (?:answers?|results?|facts?|numbers?|parts?|values|outputs|things))?(?: above)?(?: together| up| below each other)?"
    r"(?: (?:in|as|into|to) (?:(?P<one>(?:a|one|a single|a short|one short) sentence)|(?:a|one|a single|a short|one short) (?:list|text|answer|reply|message|note)))?"
)
"""Command that joins the outputs of earlier steps."""


class TextTools(ProgramWorker):
    """Program that transforms, counts and summarises text, and extracts parts of it."""

    topic = "sorting, counting, converting, extracting from and summarising a given text"
    most_chars = MOST_TEXT_CHARS
    changes_texts = True

    def answer(self, question: PlainQuestion) -> ExactAnswer:
        if len(question.outputs) > 1 and (wish := question.match(JOIN)):
            return ExactAnswer(_join(question.outputs, is_sentence=bool(wish["sentence"] or wish["one"])))
        reasons: list[str] = []
        for head, text in _splits(question):
            command = read_question(head).text
            for each, rule in RULES:
                if match := each.fullmatch(command):
                    try:
                        return ExactAnswer(rule(Command(match, text)))
                    except NotForProgram as reason:
                        reasons.append(str(reason))
        raise NotForProgram(
            next(iter(reasons), "The message must contain a known command and the text to which it applies.")
        )


def _join(outputs: Sequence[str], *, is_sentence: bool) -> str:
    """Return the outputs of earlier steps below each other, or in one sentence."""
    texts = [text.strip() for text in outputs]
    if not is_sentence:
        return "\n".join(texts)
    if any("\n" in text for text in texts):
        raise NotForProgram("An answer with several lines does not fit into a sentence.")
    return "; ".join(text.rstrip(".") for text in texts) + "."


def _splits(question: PlainQuestion) -> list[tuple[str, str]]:
    """Return the ways to split a question into a command, first or last, and a text, maybe quoted."""
    raw = question.raw.strip()
    splits: list[tuple[str, str]] = []
    for separator in (":\n", ":", "\n"):
        head, mark, text = raw.partition(separator)
        splits.append((head, text.strip()) if mark else ("", ""))
    first, _, last = raw.rpartition("\n")
    splits.append((last, first.strip()))
    if numbers := re.fullmatch(
        r"(\D+?) (-?\d(?:[\d.,]*\d)?(?:(?:,| and|, and)? -?\d(?:[\d.,]*\d)?)+[.,]?)", raw
    ):
        splits.append((numbers[1], numbers[2]))
    if quoted := re.fullmatch(r"([^\"]*)\"([^\"]+)\"([^\"]*)", raw):
        splits.append((f"{quoted[1].strip()} {quoted[3].strip()}".strip(), quoted[2]))
    if len(question.outputs) == 1:
        splits.append((raw, question.outputs[0]))
    splits = [(head.strip(), _without_quotes(text)) for head, text in splits]
    return [(head, text) for head, text in splits if head and text and len(head) <= _COMMAND_CHARS]


def _without_quotes(text: str) -> str:
    text = re.sub(r"^```[a-z]*\s*|\s*```$", "", text.strip())
    return text[1:-1] if len(text) > 2 and text[0] == text[-1] == '"' and text.count('"') == 2 else text
