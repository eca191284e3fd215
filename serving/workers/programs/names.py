"""People, places and works for the almanac: what WordNet says about a proper name, and when a person was born and died.

`names.tsv.xz` has the names of WordNet 3.0 with their definitions, except for persons without the year of their death,
and for countries and capitals, whose definitions may be out of date. It is written from Princeton's database (Debian: `wordnet-base`) by

    python -m serving.workers.programs.names /usr/share/wordnet

Its licence is in `wordnet.LICENSE`.
"""

import lzma
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from serving.workers.programs.process import NotForProgram
from serving.workers.programs.rules import ExactAnswer, Rule, pattern

FILE = Path(__file__).with_name("names.tsv.xz")
_PERSON_FILE = "18"
"""Number of WordNet's file of persons."""
_POLITICS = re.compile(
    r"\b(?:republic|country|nation|independen|government|disputed|capital|monarchy|party|territory|occupied)",
    re.IGNORECASE,
)
_YEARS = re.compile(r"\((?P<born>\d{3,4})-(?P<died>\d{3,4})\)")
_PLACE = re.compile(
    r"(?:an?|the)(?: [\w-]+){0,5}? (?:city|town|port|capital|river|mountain|peak|lake|island|islands|sea|desert|volcano|state"
    r"|village|region|province|country|republic|kingdom|county|district|park|strait|bay|gulf|canal|waterfall|range|peninsula"
    r"|resort|suburb|castle|palace|street|bridge|valley|plateau|glacier|county seat|tributary|prison|tower|university)\b"
)


@cache
def _names() -> dict[str, list[tuple[str, str]]]:
    """Return the full names and definitions by each name in lower case."""
    index: dict[str, list[tuple[str, str]]] = defaultdict(list)
    with lzma.open(FILE, "rt", encoding="utf-8") as lines:
        for line in lines:
            names, _, definition = line.rstrip("\n").partition("\t")
            for name in (all_names := names.split(",")):
                full = (
                    max((each for each in all_names if name in each), key=len)
                    if _YEARS.search(definition)
                    else name
                )
                index[name.casefold()].append((full, definition))
    return index


def _find(text: str) -> tuple[str, str]:
    name = re.sub(r"^the ", "", text.strip(" \"'").casefold())
    entries = _names().get(name, [])
    if len(entries) != 1:
        raise NotForProgram(f"WordNet does not have exactly one entry for {text!r}.")
    return entries[0]


def is_place(text: str) -> bool:
    """Return whether WordNet has a place of this name that is not a capital."""
    return any(_PLACE.match(definition) for _, definition in _names().get(text.strip().casefold(), []))


def _who(match: re.Match[str]) -> ExactAnswer:
    name, definition = _find(match["name"])
    if not _YEARS.search(definition):
        raise NotForProgram(f"{name} is not a person of whom WordNet has the years.")
    return ExactAnswer(f"{name}: {definition}.")


def _what(match: re.Match[str]) -> ExactAnswer:
    name, definition = _find(match["name"])
    if not re.match(r"(?:an?|the|one of) ", definition):
        raise NotForProgram(f"WordNet's definition of {name} is not a sentence.")
    if match["where"] and not _PLACE.match(definition):
        raise NotForProgram(f"WordNet does not say where {name} is.")
    article = "The " if re.match(r"the ", match["name"], re.IGNORECASE) else ""
    return ExactAnswer(f"{article}{name} is {definition}.")


def _year(match: re.Match[str]) -> ExactAnswer:
    name, definition = _find(match["name"])
    years = _YEARS.search(definition)
    if years is None or "BC" in definition:
        raise NotForProgram(f"WordNet does not have the years of {name}.")
    what = "born" if match["what"].casefold() == "born" else "died"
    year = years[what]
    return ExactAnswer(f"{name} {'was born' if what == 'born' else 'died'} in {year}.", year)


_NAME = r"(?P<name>[^?:\"]{3,60}?)"
NAMES_OF: tuple[Rule, ...] = (
    (pattern(rf"(?:when|in (?:what|which) year|(?:what|which) year) (?:was|is) {_NAME} (?P<what>born)(?: in)?"), _year),
    (pattern(rf"(?:when|in (?:what|which) year|(?:what|which) year) did {_NAME} (?P<what>die)(?: in)?"), _year),
    (pattern(rf"(?:who (?:was|is)|who's|about) {_NAME}"), _who),
    (pattern(rf"(?:what (?:is|was|are)|(?P<where>where (?:is|are|was))|about) {_NAME}(?: located| situated)?"), _what),
)  # fmt: skip


def write(folder: Path, path: Path = FILE) -> int:
    """Write the file from WordNet's database in `folder`. Return the number of lines."""
    lines = sorted(_lines(folder))
    with lzma.open(path, "wt", preset=9 | lzma.PRESET_EXTREME, encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
    return len(lines)


def _lines(folder: Path) -> Iterator[str]:
    for line in (folder / "data.noun").read_text().splitlines():
        if line.startswith(" "):
            continue
        data, _, gloss = line.partition(" | ")
        fields = data.split()
        n_words = int(fields[3], 16)
        names = [name.replace("_", " ") for name in fields[4 : 4 + 2 * n_words : 2]]
        definition = re.split(r'; "', gloss.strip())[0].strip().replace("\t", " ")
        is_person = fields[1] == _PERSON_FILE
        is_current = not _YEARS.search(definition) if is_person else _POLITICS.search(definition)
        if "@i" in fields[5 + 2 * n_words :: 4] and names[0][0].isupper() and not is_current:
            yield f"{','.join(name for name in names if name[0].isupper())}\t{definition}"


if __name__ == "__main__":
    write(Path(sys.argv[1]))
