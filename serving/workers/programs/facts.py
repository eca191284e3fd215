"""Reader of `almanac.txt` and matcher of questions with its facts.

A question is reduced to its significant words. It matches a fact if it has every required word of the fact, and no
word that the fact does not know. The almanac refuses a question with a word that is left over.

Lines of the file:

* `- a an the`: words that do not change the meaning of a question.
* `~ large big`: words with the same meaning. The first one stands for the others. `_` stands for a space.
* `? TYPE REQUIRED | OPTIONAL | SENTENCE | VALUES`: one fact. `a/b` needs one of two words. Only a question that asks
  for a thing needs a word after `:`. `?>` also requires the order of the words.
* `== TYPE REQUIRED | OPTIONAL | SENTENCE`: the facts of the rows that follow, with `SUBJECT / OTHER NAME: VALUES`.
  `!` states that the values are complete, so that another value of the same table is wrong. `>` requires the order of
  the words. Values after `~` are neither right nor wrong. `+` marks a plural subject. `==@` has cities and countries.
* `==? REQUIRED | OPTIONAL | YES | NO`: the rows `yes:` and `no:` list the subjects of which it is true or false.
* `@ NAME / OTHER NAME | OPTIONAL | MEMBERS`: a group. `@!` lists all members. Members after `~` are disputed.
* `% H hydrogen`: symbols and names of the chemical elements, in the order of their numbers.
* `< LOWER / HIGHER | THINGS`: things in ascending order, after the comparative and superlative forms of both ends.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("almanac.txt")
_WORD = re.compile(r"[^\W_]+(?:[.'][^\W_]+)*\.?|[²=+]")


@dataclass(frozen=True, slots=True)
class Fact:
    """Fact of the almanac.

    Args:
        kinds: types of questions that it answers: `what`, `who`, `where`, `when`, `count`, `how`, `yes` and `no`.
        required: alternatives of each required word.
        categories: alternatives of the word for the kind of thing, which questions for yes or no may omit.
        optional: words that a question may also have.
        sentence: answer as a full sentence.
        values: short forms of the answer.
        table: number of the table to which it belongs. Values of other rows are wrong if it is not 0.
        unclear: significant words of values that are neither right nor wrong.
        is_ordered: whether the required words must have this order.
    """

    kinds: tuple[str, ...]
    required: tuple[frozenset[str], ...]
    categories: tuple[frozenset[str], ...]
    optional: frozenset[str]
    sentence: str
    values: tuple[str, ...]
    table: int = 0
    unclear: tuple[frozenset[str], ...] = ()
    is_ordered: bool = False

    def fits(self, words: tuple[str, ...], *, is_open: bool, extra: frozenset[str] = frozenset()) -> bool:
        """Return whether `words` have all required words and no unknown one.

        Args:
            words: significant words of the question, in order.
            is_open: whether the question asks for the value. Otherwise it states one.
            extra: more words that are allowed.
        """
        has = set(words)
        needed = (*self.required, *self.categories) if is_open else self.required
        if not all(each & has for each in needed):
            return False
        allowed = self.optional.union(extra, *self.required, *self.categories)
        if not has <= allowed or sum(any(word in each for each in needed) for word in words) < len(needed):
            return False
        if self.is_ordered:
            places = [min(words.index(word) for word in each & has) for each in self.required]
            return places == sorted(places)
        return True


@dataclass(frozen=True, slots=True)
class Group:
    """Group of things, such as fruit.

    Args:
        names: significant words of each of its names.
        title: its first name.
        optional: words that may be added to a name.
        members: members, in the order in which they are named.
        keys: significant words of each member.
        disputed: things that some count as members.
        is_complete: whether it has no other members.
    """

    names: tuple[frozenset[str], ...]
    title: str
    optional: frozenset[str]
    members: tuple[str, ...]
    keys: frozenset[str]
    disputed: frozenset[str]
    is_complete: bool

    def named(self, words: frozenset[str]) -> bool:
        """Return whether `words` name this group, with nothing left over."""
        return any(name <= words <= name | self.optional for name in self.names)


@dataclass(frozen=True, slots=True)
class Ranking:
    """Things in ascending order, and the words that compare them."""

    lower: tuple[str, ...]
    higher: tuple[str, ...]
    places: dict[str, int]


@dataclass(slots=True)
class FactBook:
    """Content of the file."""

    dropped: set[str] = field(default_factory=set)
    same: dict[str, str] = field(default_factory=dict)
    symbols: dict[str, str] = field(default_factory=dict)
    phrases: dict[str, str] = field(default_factory=dict)
    facts: list[Fact] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    scales: list[Ranking] = field(default_factory=list)
    by_word: dict[str, list[Fact]] = field(default_factory=lambda: defaultdict(list))

    def candidates(self, words: tuple[str, ...]) -> list[Fact]:
        """Return the facts that require one of `words`."""
        facts = {id(fact): fact for word in dict.fromkeys(words) for fact in self.by_word.get(word, ())}
        return list(facts.values())

    def words(self, text: str) -> tuple[str, ...]:
        """Return the significant words of `text`, in a form that is the same for all their inflections."""
        text = "".join(
            c for c in unicodedata.normalize("NFKD", text.casefold()) if not unicodedata.combining(c)
        )
        for phrase, word in self.phrases.items():
            text = re.sub(rf"(?<!\w){re.escape(phrase)}(?!\w)", word, text)
        tokens = (word.replace("'s", "").rstrip(".") for word in _WORD.findall(text.replace("-", " ")))
        return tuple(self.stem(word) for word in tokens if word not in self.dropped)

    def key(self, text: str) -> str:
        """Return the significant words of `text` as one string."""
        return " ".join(self.words(text))

    def stem(self, word: str) -> str:
        """Return the word that stands for `word`."""
        for form in (word, *_shorter(word)):
            if form in self.same:
                return self.same[form]
        return _root(word)


def _shorter(word: str) -> Iterator[str]:
    """Yield the forms of which `word` may be an inflection."""
    if word.endswith("ies") and len(word) > 4:
        yield f"{word[:-3]}y"
    if re.search(r"(?:s|x|z|ch|sh|o)es$", word) and len(word) > 4:
        yield word[:-2]
    if re.search(r"[^sui]s$", word) and len(word) > 3:
        yield word[:-1]
    for ending in ("ing", "ed"):
        if word.endswith(ending) and len(word) > len(ending) + 2:
            yield word[: -len(ending)]
            yield f"{word[: -len(ending)]}e"


def _root(word: str) -> str:
    is_plural = word.endswith("s")
    word = next(_shorter(word), word)
    if is_plural and not word.endswith("s"):
        word = next(_shorter(word), word)
    word = re.sub(r"([bdgklmnprt])\1$", r"\1", word)
    return word[:-1] if word.endswith("e") and len(word) > 3 else word


@cache
def almanac() -> FactBook:
    """Return the content of the file."""
    reader = _Reader(FactBook())
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            reader.read(line)
    content = reader.content
    for fact in content.facts:
        assert fact.required, fact.sentence
        rarest = max(fact.required, key=lambda each: (len(each) == 1, -len(each)))
        for word in rarest:
            content.by_word[word].append(fact)
    return content


class _Reader:
    """Reader of the lines of the file, with the header of the current table."""

    def __init__(self, content: FactBook) -> None:
        self.content = content
        self._flag, self._header, self._table = "", ["", "", "", ""], 0

    def read(self, line: str) -> None:
        start, _, rest = line.partition(" ")
        parts = [part.strip() for part in rest.split("|")]
        match start:
            case "-":
                self.content.dropped.update(rest.split())
            case "%":
                names = rest.split()
                self.content.symbols.update(zip(names[1::2], names[::2], strict=True))
            case "~":
                self._read_same(rest.split())
            case "?" | "?>":
                kind, _, required = parts[0].partition(" ")
                values = tuple(_list(parts[3])) if len(parts) > 3 else ()
                self._add(kind, [required], parts[1], parts[2], values, is_ordered=start == "?>")
            case "==" | "==!" | "==!>" | "==>" | "==?" | "==@":
                self._flag, self._header, self._table = start[2:], parts, self._table + 1
            case "@" | "@!":
                self._read_group(parts, is_complete=start == "@!")
            case "<":
                self._read_scale(parts)
            case _:
                self._read_row(line)

    def _read_same(self, words: list[str]) -> None:
        for word in words:
            if "_" in word:
                self.content.phrases[word.replace("_", " ")] = words[0]
            else:
                self.content.same[word] = words[0]

    def _set(self, text: str) -> frozenset[str]:
        return frozenset(self.content.words(text))

    def _add(
        self, kinds: str, required: list[str], optional: str, sentence: str, values: tuple[str, ...],
        *, table: int = 0, unclear: tuple[str, ...] = (), is_ordered: bool = False,
    ) -> None:  # fmt: skip
        for each in required:
            needed: list[frozenset[str]] = []
            categories: list[frozenset[str]] = []
            for part in each.split():
                words = [self._set(word.replace("_", " ")) for word in part.lstrip(":").split("/")]
                if alternatives := frozenset[str]().union(*words):
                    (categories if part.startswith(":") else needed).append(alternatives)
            self.content.facts.append(
                Fact(
                    tuple(kinds.split("/")), tuple(needed), tuple(categories), self._set(optional), sentence, values, table,
                    tuple(self._set(each) for each in unclear), is_ordered,
                )
            )  # fmt: skip

    def _read_row(self, line: str) -> None:
        subject, _, value = line.partition(": ")
        if self._flag == "?":
            self._read_truths(subject, value)
            return
        value, _, unclear = value.partition(" ~ ")
        kind, _, required = self._header[0].partition(" ")
        is_plural = subject.startswith("+")
        names = [name.strip() for name in subject.lstrip("+").split(" / ")]
        if self._flag == "@":
            self._read_place(names, value)
            return
        sentence = self._header[2].replace("{x}", names[0]).replace("{v}", value)
        sentence = sentence.replace("{is}", "are" if is_plural else "is")
        keys = [required.replace("{x}", name.replace("-", " ")) for name in names]
        self._add(
            kind, keys, self._header[1], _sentence(sentence), tuple(_list(value)),
            table=self._table if "!" in self._flag else 0, unclear=tuple(_list(unclear)), is_ordered=">" in self._flag,
        )  # fmt: skip

    def _read_truths(self, answer: str, subjects: str) -> None:
        required, optional, yes, no = self._header
        sentence = yes if answer == "yes" else no
        for subject in _list(subjects):
            text = sentence.replace("{X}", subject).replace("{is}", "is").replace("{it is}", "it is")
            self._add(answer, [required.replace("{x}", subject)], optional, _sentence(text), ())

    def _read_place(self, names: list[str], value: str) -> None:
        city, _, country = value.partition(", ")
        place = country if city == "-" else f"{city}, {country}"
        sentence = _sentence(f"{names[0]} is in {place}.")
        optional, table = self._header[1], self._table
        self._add(
            "where", names, optional, sentence, (place, country) if city == "-" else (place, city, country)
        )
        self._add(
            "what", [f":country {name}" for name in names], optional, sentence, (country,), table=-table
        )
        if city != "-":
            self._add(
                "what",
                [f":city/town/place {name}" for name in names],
                optional,
                sentence,
                (city,),
                table=table,
            )

    def _read_group(self, parts: list[str], *, is_complete: bool) -> None:
        names = [name.strip() for name in parts[0].split(" / ")]
        members, _, disputed = parts[2].partition(" ~ ")
        member_names = tuple(_list(members))
        self.content.groups.append(
            Group(
                tuple(self._set(name) for name in names), names[0], self._set(parts[1]), member_names,
                frozenset(filter(None, map(self.content.key, member_names))), frozenset(map(self.content.key, _list(disputed))), is_complete,
            )
        )  # fmt: skip

    def _read_scale(self, parts: list[str]) -> None:
        lower, _, higher = parts[0].partition(" / ")
        things = {self.content.key(thing): at for at, thing in enumerate(_list(parts[1]))}
        forms = (
            higher.split(" ")
            if "more " not in higher
            else [f"{higher.split()[0]} {higher.split()[1]}", " ".join(higher.split()[2:])]
        )
        self.content.scales.append(Ranking(tuple(lower.split()), tuple(forms), things))


def _list(text: str) -> list[str]:
    return [part.strip() for part in re.split(r",\s+|(?<=\w),? (?:and|or) (?=\w)", text) if part.strip()]


def _sentence(text: str) -> str:
    text = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)
    return text[0].upper() + text[1:]
