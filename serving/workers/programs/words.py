"""Dictionary: definitions, synonyms, opposites, inflections, spelling and letters of English words.

Meanings come from WordNet. Inflections come from the lexicon of lemminflect, without its guesses. An opposite
is answered only if WordNet has it for a usual sense of the word. If other usual senses have different
opposites, they are answered as well.
"""

import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from serving.workers.programs.edits import EDITS
from serving.workers.programs.expressions import NUMBER, read_number
from serving.workers.programs.grammar import GRAMMAR, correct, is_spelled
from serving.workers.programs.letters import GIVE, LETTERS, LIST
from serving.workers.programs.phrasebook import PHRASES
from serving.workers.programs.process import NotForProgram
from serving.workers.programs.program import ProgramWorker
from serving.workers.programs.question import PlainQuestion
from serving.workers.programs.rhymes import RHYMES
from serving.workers.programs.rules import ExactAnswer, Rule, answer_by, load, pattern, with_one_name
from serving.workers.programs.sayings import SAYINGS
from serving.workers.programs.selection import items_of
from serving.workers.programs.sequences import SERIES, analogy
from serving.workers.programs.wordnet import PARTS_OF_SPEECH, Sense, rare_definitions, senses

USUAL, ALSO_USUAL = 0.05, 0.4
"""An opposite counts if the senses that have it make up at least the share `USUAL` of the word's uses. A
further opposite counts if it has at least the share `ALSO_USUAL` of the uses of the first one.
"""
MOST_SYNONYMS, MOST_SENSES = 6, 3
_THESAURUS = Path(__file__).with_name("thesaurus.txt")
_TAGS = {
    "past tense": ("VBD", "v"), "simple past": ("VBD", "v"), "past form": ("VBD", "v"), "past participle": ("VBN", "v"),
    "present participle": ("VBG", "v"), "gerund": ("VBG", "v"), "ing form": ("VBG", "v"), "-ing form": ("VBG", "v"),
    "plural": ("NNS", "n"), "plural form": ("NNS", "n"), "comparative": ("JJR", "a"), "comparative form": ("JJR", "a"),
    "superlative": ("JJS", "a"), "superlative form": ("JJS", "a"),
}  # fmt: skip
_FORMS = {
    ("person", "NNS"): ("people",), ("fish", "NNS"): ("fish",), ("deer", "NNS"): ("deer",), ("ox", "NNS"): ("oxen",),
    ("lie", "VBN"): ("lain", "lied"), ("get", "VBN"): ("got", "gotten"), ("learn", "VBN"): ("learned", "learnt"),
    ("burn", "VBN"): ("burned", "burnt"), ("dream", "VBN"): ("dreamed", "dreamt"), ("leaf", "NNS"): ("leaves",),
}  # fmt: skip
"""Corrections of the inflected forms in lemminflect."""


_OPPOSITES = {"no": "yes", "yes": "no"}
"""Opposites that WordNet does not have in the usual sense."""


@cache
def _inflector() -> Any:
    return load("lemminflect")


def opposites(word: str) -> list[str]:
    """Return the opposites of the usual senses of `word`, ordered by how often these senses are used."""
    if word in _OPPOSITES:
        return [_OPPOSITES[word]]
    all_senses = senses().get(word, ())
    total = sum(sense.count for sense in all_senses)
    uses: Counter[str] = Counter()
    together: dict[str, set[str]] = {}
    for sense in all_senses:
        for antonym in sense.antonyms:
            uses[antonym] += sense.count
            together.setdefault(antonym, set()).update(sense.antonyms)
    ordered = [antonym for antonym, _ in uses.most_common()]
    if not ordered or (total and uses[ordered[0]] < USUAL * total):
        return []
    first = ordered[0]
    others = [each for each in ordered[1:] if uses[each] >= max(ALSO_USUAL * uses[first], 1)]
    return [first, *(each for each in others if first not in together[each])]


def _opposite_of(one: str, other: str, third: str) -> str | None:
    """Return the opposite of `third` if `one` and `other` are opposites."""
    antonyms = opposites(third)
    return antonyms[0] if other in opposites(one) and antonyms else None


def _or(words: list[str]) -> str:
    quoted = [f'"{word}"' for word in words]
    return f"{', '.join(quoted[:-1])} or {quoted[-1]}" if len(quoted) > 1 else quoted[0]


def _opposite(match: re.Match[str]) -> ExactAnswer:
    word = match["word"].casefold()
    antonyms = opposites(word)
    if options := match.groupdict().get("list"):
        antonyms = [option for option in items_of(options) if option.casefold() in antonyms]
    if not antonyms or (options and len(antonyms) != 1):
        raise NotForProgram(f'WordNet lists no antonym for a common sense of "{word}".')
    return ExactAnswer(f'The opposite of "{word}" is {_or(antonyms)}.', antonyms[0])


def _is_opposite(match: re.Match[str]) -> ExactAnswer:
    word, other = match["word"].casefold(), match["other"].casefold()
    if other not in opposites(word):
        raise NotForProgram(f'WordNet does not list "{other}" as an antonym of "{word}".')
    return ExactAnswer(f'Yes, "{other}" is an opposite of "{word}".', "Yes")


def _usual(word: str) -> list[Sense]:
    """Return the senses of `word` that are used at least a quarter as often as its first sense."""
    ordered = sorted(senses().get(word, ()), key=lambda sense: -sense.count)
    return [sense for sense in ordered if 4 * sense.count >= ordered[0].count][:MOST_SENSES]


@cache
def _thesaurus() -> dict[str, list[str]]:
    """Return the usual synonyms of common words."""
    lines = (line.partition(": ") for line in _THESAURUS.read_text(encoding="utf-8").splitlines())
    return {
        word: synonyms.split(", ") for word, colon, synonyms in lines if colon and not word.startswith("#")
    }


def _synonyms(match: re.Match[str]) -> ExactAnswer:
    word = match["word"].casefold()
    synonyms = _thesaurus().get(word) or list(
        dict.fromkeys(each for sense in _usual(word) for each in sense.synonyms if each != word)
    )
    if not synonyms:
        raise NotForProgram(f'WordNet lists no synonym for a common sense of "{word}".')
    count = int(read_number(match["n"])) if "n" in match.groupdict() and match["n"] else MOST_SYNONYMS
    if count > len(synonyms) and match.groupdict().get("n"):
        raise NotForProgram(f'WordNet lists only {len(synonyms)} synonyms for the common senses of "{word}".')
    is_one = not match.groupdict().get("n") and not re.search(r"synonyms|words", match[0], re.IGNORECASE)
    shown = synonyms[: 1 if is_one else max(1, min(count, MOST_SYNONYMS))]
    if len(shown) == 1:
        return ExactAnswer(f'A synonym of "{word}" is "{shown[0]}".', shown[0])
    return ExactAnswer(f'Synonyms of "{word}" are {_or(shown).replace(" or ", " and ")}.', shown[0])


def _same_meaning(match: re.Match[str]) -> ExactAnswer:
    word = match["word"].casefold()
    same = {each.casefold() for sense in senses().get(word, ()) for each in sense.synonyms}
    same |= set(_thesaurus().get(word, ())) | {
        each for each, others in _thesaurus().items() if word in others
    }
    same |= {each for each in senses() if any(word in sense.synonyms for sense in senses()[each])}
    answers = [item for item in items_of(match["list"]) if item.casefold() in same]
    if len(answers) != 1:
        raise NotForProgram(f'Not exactly one of the words is a synonym of "{word}".')
    return ExactAnswer(f'"{answers[0]}" means the same as "{word}".', answers[0])


def _definition(match: re.Match[str]) -> ExactAnswer:
    word = match["word"].casefold()
    usual = _usual(word)
    if not usual and (definitions := rare_definitions().get(word, [])[:2]):
        text = "; ".join(f"({PARTS_OF_SPEECH[part]}) {definition}" for part, definition in definitions)
        return ExactAnswer(f'"{word}" means: {text}.')
    if not usual:
        raise NotForProgram(f'The dictionary has no entry for "{word}".')
    if len(usual) == 1:
        sense = usual[0]
        return ExactAnswer(f'"{word}" ({PARTS_OF_SPEECH[sense.part_of_speech]}) means: {sense.definition}.')
    lines = [f"{n}. ({PARTS_OF_SPEECH[s.part_of_speech]}) {s.definition}." for n, s in enumerate(usual, 1)]
    return ExactAnswer(f'"{word}" has these usual meanings:\n' + "\n".join(lines))


def _inflection(match: re.Match[str]) -> ExactAnswer:
    word, name = match["word"].casefold(), " ".join(match["form"].casefold().split())
    tag, part = _TAGS[name]
    kinds = {"v": "VERB", "n": "NOUN", "a": "ADJ"}
    forms: tuple[str, ...] = _FORMS.get((word, tag)) or _inflector().getInflection(
        word, tag, inflect_oov=False
    )
    lemmas = _inflector().getAllLemmas(word, kinds[part]).get(kinds[part], ())
    if not forms or (lemmas and word not in lemmas):
        raise NotForProgram(f'The dictionary does not list the {name} of "{word}".')
    shown = [form for form in forms if form != word or len(forms) == 1 or forms[0] == word][:2]
    return ExactAnswer(f'The {name} of "{word}" is {_or(shown)}.', shown[0])


def _spell(match: re.Match[str]) -> ExactAnswer:
    word = match["word"]
    if not is_spelled(word.casefold()) and "letter by letter" not in match[0]:
        return correct(match)
    if not is_spelled(word.casefold()) or word.casefold() in ("it", "that", "this", "them", "out"):
        raise NotForProgram(
            f'The dictionary has no entry for "{word}", or the question refers to another word.'
        )
    letters = "-".join(word.upper())
    return ExactAnswer(f'"{word}" is spelled {letters}.', letters)


def _right_spelling(match: re.Match[str]) -> ExactAnswer:
    words = [
        word.casefold()
        for word in re.findall(r"[a-z'-]+", re.sub(r"\bor\b", " ", match["list"], flags=re.IGNORECASE))
    ]
    right = [word for word in words if is_spelled(word)]
    if len(right) != 1 or len(words) < 2:
        raise NotForProgram(
            "The question must list at least two spellings, and the dictionary must contain exactly one of them."
        )
    return ExactAnswer(f'"{right[0]}" is spelled correctly.', right[0])


def _anagrams(match: re.Match[str]) -> ExactAnswer:
    word = match["word"].casefold()
    anagrams = [
        each for each in senses() if len(each) == len(word) and each != word and sorted(each) == sorted(word)
    ]
    if not anagrams:
        raise NotForProgram(f'The dictionary contains no anagram of "{word}".')
    return ExactAnswer(
        f'Anagrams of "{word}" are {_or(anagrams).replace(" or ", " and ")}.'
        if len(anagrams) > 1
        else f'An anagram of "{word}" is "{anagrams[0]}".',
        anagrams[0],
    )


_W = r"(?:the word |the (?:noun|verb|adjective) )?[\"']?(?P<word>[a-z]+(?:-[a-z]+)*)[\"']?"
_FORM = rf"(?P<form>{'|'.join(sorted(map(re.escape, _TAGS), key=len, reverse=True))})"


RULES: tuple[Rule, ...] = (
    (pattern(rf"{GIVE}(?:one word (?:that means|for) |a word (?:that means|for) )?(?:the |an )?(?:exact )?(?:opposite|antonym)(?: word)?s? (?:of|for|to) {_W}(?: is what| is)?"), _opposite),
    (pattern(rf"(?:what|which) (?:one )?(?:word )?(?:is|means) (?:the |an )?(?:exact )?(?:opposite|antonym) (?:of|to|for) {_W}(?:[:,] (?P<list>[^:?]+))?"), _opposite),
    (pattern(rf"is [\"']?(?P<other>[a-z]+)[\"']? (?:the|an) (?:opposite|antonym) of {_W}"), _is_opposite),
    (pattern(rf"{GIVE}(?:a |the |some |all |one |(?P<n>{NUMBER}) )?(?:another word|other words|synonyms?|word that means the same as|words that mean the same as) (?:for|of|as|to)? ?{_W}"), _synonyms),
    (pattern(rf"(?:which|what)(?: one| word| of these(?: words)?)* (?:means (?:nearly |almost )?the same as|is (?:a|the) synonym (?:of|for)|is another word for) {_W}[:,] (?P<list>[^:?]+)"), _same_meaning),
    (pattern(rf"does {_W} mean (?:the same as )?(?P<list>[a-z' -]+(?:, [a-z' -]+)*,? or [a-z' -]+)"), _same_meaning),
    (pattern(rf"(?:what(?: exactly)? (?:does|do|did) {_W} mean(?: exactly)?|define {_W.replace('word>', 'word_b>')}|(?:what is |give me |explain )?(?:the |a )?(?:definition|meaning) (?:of|for) {_W.replace('word>', 'word_c>')}(?: mean)?|what is meant by {_W.replace('word>', 'word2>')}|{_W.replace('word>', 'word3>')} (?:meaning|definition)|what (?:it|this|the word) [\"']?(?P<word4>[a-z]+)[\"']? means|(?:what |the word )?{_W.replace('word>', 'word5>')} means what)"), lambda m: _definition(with_one_name(m))),
    (pattern(rf"(?:{GIVE}|how do you (?:write|spell|say|form) )(?:the )?{_FORM} (?:form )?(?:of|for) {_W}(?: is what)?"), _inflection),
    (pattern(rf"(?:what is )?{_W}(?:'s)? in (?:the )?{_FORM}(?: form)?|put {_W.replace('word>', 'word_b>')} (?:in|into) the {_FORM.replace('form>', 'form_b>')}"), lambda m: _inflection(with_one_name(m))),
    (pattern(rf"(?:how do you |how is |how to |how would you )?spell(?:ed)? {_W}(?: spelled| letter by letter)?"), _spell),
    (pattern(rf"(?:which|what)(?: word| one| spelling)? is (?:right|spelled|spelt|written|the) (?:correctly|right|correct spelling|right spelling|correct)[:,]? (?!of |for ){LIST}"), _right_spelling),
    (pattern(rf"(?:which|what)(?: is the)? (?:correct|right) (?:spelling|word)?(?: is it| is right| is correct)?[:,]? (?!of |for ){LIST}"), _right_spelling),
    (pattern(rf"{GIVE}(?:an? |all |the |some )?anagrams? (?:of|for) {_W}"), _anagrams),
    *LETTERS,
    *GRAMMAR,
    *RHYMES,
    *PHRASES,
    *EDITS,
    *SERIES,
    *SAYINGS,
    analogy((_opposite_of,)),
)  # fmt: skip


class Dictionary(ProgramWorker):
    """Program that answers questions about English words."""

    topic = "meanings, opposites, inflections, spelling and letters of English words"
    packages = ("lemminflect", "babel")

    def answer(self, question: PlainQuestion) -> ExactAnswer:
        return answer_by(RULES, question)
