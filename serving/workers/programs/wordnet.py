"""Senses of common English words: definitions, synonyms and antonyms of WordNet 3.0, in one small file.

`wordnet.tsv.xz` has the words that WordNet's authors have met in texts, with their most frequent senses, and every
antonym. `definitions.tsv.xz` has the first definition of every other word, except for plants, animals and substances. Both are written from Princeton's database (Debian: `wordnet-base`) by

    python -m serving.workers.programs.wordnet /usr/share/wordnet

WordNet 3.0 Copyright 2006 by Princeton University. All rights reserved. Its licence, in `wordnet.LICENSE`, permits to
use, copy, modify and distribute it.
"""

import lzma
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("wordnet.tsv.xz")
DEFINITIONS = Path(__file__).with_name("definitions.tsv.xz")
MOST_SENSES = 3
_NATURE = ("05", "20", "27")
"""Numbers of WordNet's files of animals, plants and substances."""
PARTS_OF_SPEECH = {"n": "noun", "v": "verb", "a": "adjective", "r": "adverb"}
_WORD = re.compile(r"[a-z][a-z'-]+")


@dataclass(frozen=True, slots=True)
class Sense:
    """One sense of a word.

    Args:
        part_of_speech: `n`, `v`, `a` or `r`.
        count: number of times that the word has this sense in WordNet's tagged texts.
    """

    part_of_speech: str
    count: int
    synonyms: tuple[str, ...]
    antonyms: tuple[str, ...]
    definition: str


@cache
def senses() -> dict[str, tuple[Sense, ...]]:
    """Return every word's senses by part of speech, the most frequent first."""
    words: dict[str, list[Sense]] = defaultdict(list)
    with lzma.open(FILE, "rt", encoding="utf-8") as lines:
        for line in lines:
            word, part, count, synonyms, antonyms, definition = line.rstrip("\n").split("\t")
            sense = Sense(part, int(count), _words(synonyms), _words(antonyms), sys.intern(definition))
            words[word].append(sense)
    return {word: tuple(each) for word, each in words.items()}


@cache
def rare_definitions() -> dict[str, list[tuple[str, str]]]:
    """Return parts of speech and definitions of the words that `senses` does not have."""
    words: dict[str, list[tuple[str, str]]] = defaultdict(list)
    with lzma.open(DEFINITIONS, "rt", encoding="utf-8") as lines:
        for line in lines:
            word, part, definition = line.rstrip("\n").split("\t")
            words[word].append((part, definition))
    return words


def _words(text: str) -> tuple[str, ...]:
    return tuple(sys.intern(word) for word in text.split(",")) if text else ()


def write(folder: Path, path: Path = FILE) -> int:
    """Write the file from WordNet's database in `folder`. Return the number of lines."""
    lines = sorted(_lines(folder), key=lambda line: line.split("\t")[:1])
    with lzma.open(path, "wt", preset=9 | lzma.PRESET_EXTREME, encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
    return len(lines)


def write_rare(folder: Path, path: Path = DEFINITIONS) -> int:
    """Write the definitions of other words from WordNet's database in `folder`. Return the number of lines."""
    common, lines = senses(), list[str]()
    for part, name in (("n", "noun"), ("v", "verb"), ("a", "adj"), ("r", "adv")):
        synsets = _synsets(folder / f"data.{name}")
        data = (folder / f"data.{name}").read_text().splitlines()
        nature = {
            line.split()[0] for line in data if line[:1] != " " and line.split()[1] in _NATURE and part == "n"
        }
        for entry in (folder / f"index.{name}").read_text().splitlines():
            fields = entry.split()
            offset = fields[-int(fields[2])] if not entry.startswith(" ") else ""
            if (
                offset
                and _WORD.fullmatch(fields[0])
                and fields[0] not in common
                and offset not in nature
                and fields[0] in synsets[offset][0]
            ):
                lines.append(f"{fields[0]}\t{part}\t{synsets[offset][2]}")
    with lzma.open(path, "wt", preset=9 | lzma.PRESET_EXTREME, encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in sorted(lines))
    return len(lines)


def _lines(folder: Path) -> Iterator[str]:
    counts = _counts(folder / "cntlist.rev")
    for part, name in (("n", "noun"), ("v", "verb"), ("a", "adj"), ("r", "adv")):
        synsets = _synsets(folder / f"data.{name}")
        for entry in (folder / f"index.{name}").read_text().splitlines():
            fields = entry.split()
            if entry.startswith(" ") or not _WORD.fullmatch(fields[0]):
                continue
            word, n_senses = fields[0], int(fields[2])
            for number, offset in enumerate(fields[-n_senses:], 1):
                lemmas, antonyms, definition = synsets[offset]
                count = counts.get((word, part, number), 0)
                own = antonyms.get(word, ())
                if own or (count and number <= MOST_SENSES):
                    synonyms = [lemma for lemma in lemmas if lemma != word]
                    yield "\t".join((word, part, str(count), ",".join(synonyms), ",".join(own), definition))


def _counts(path: Path) -> dict[tuple[str, str, int], int]:
    parts = {"1": "n", "2": "v", "3": "a", "4": "r", "5": "a"}
    counts: dict[tuple[str, str, int], int] = {}
    for line in path.read_text().splitlines():
        key, number, count = line.split()
        word, _, rest = key.partition("%")
        counts[word, parts[rest[0]], int(number)] = int(count)
    return counts


def _synsets(path: Path) -> dict[str, tuple[list[str], dict[str, tuple[str, ...]], str]]:
    """Return the words, their antonyms and the definition of each synset, by its offset."""
    rows: dict[str, tuple[list[str], list[tuple[str, str, str, str]], str]] = {}
    for line in path.read_text().splitlines():
        if line.startswith(" "):
            continue
        data, _, gloss = line.partition(" | ")
        fields = data.split()
        n_words = int(fields[3], 16)
        words = [
            re.sub(r"\((?:a|p|ip)\)$", "", word).replace("_", " ") for word in fields[4 : 4 + 2 * n_words : 2]
        ]
        at = 5 + 2 * n_words
        pointers = [tuple(fields[i : i + 4]) for i in range(at, at + 4 * int(fields[at - 1]), 4)]
        definition = re.split(r'; "', gloss.strip())[0].strip().replace("\t", " ")
        rows[fields[0]] = (words, [(p[0], p[1], p[2], p[3]) for p in pointers], definition)
    result: dict[str, tuple[list[str], dict[str, tuple[str, ...]], str]] = {}
    for offset, (words, pointers, definition) in rows.items():
        antonyms: dict[str, list[str]] = defaultdict(list)
        for symbol, target, _, place in pointers:
            if symbol == "!":
                source, other = divmod(int(place, 16), 256)
                antonyms[words[source - 1].casefold()].append(rows[target][0][other - 1])
        result[offset] = (words, {word: tuple(each) for word, each in antonyms.items()}, definition)
    return result


if __name__ == "__main__":
    write(Path(sys.argv[1]))
    write_rare(Path(sys.argv[1]))
