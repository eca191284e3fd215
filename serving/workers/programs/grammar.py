"""Grammar for the dictionary: parts of speech, articles, verb forms, basic forms, contractions and spelling.

Parts of speech follow the uses that WordNet counts. Articles follow CMU's pronunciations.
"""

import re
from collections.abc import Iterator
from functools import cache
from itertools import chain
from typing import Any

from serving.workers.programs.letters import GIVE
from serving.workers.programs.process import NotForProgram
from serving.workers.programs.rhymes import other_words, pronunciations_of
from serving.workers.programs.rules import ExactAnswer, Rule, load, pattern, with_one_name
from serving.workers.programs.selection import article_of, items_of
from serving.workers.programs.wordnet import senses

CLEAR = 3
"""A part of speech is the usual one if the word is used this many times as often in it as in the other ones."""
_PARTS = {"noun": "n", "verb": "v", "adjective": "a", "adverb": "r"}
_CONTRACTIONS = {
    "aren't": "are not", "can't": "cannot", "couldn't": "could not", "didn't": "did not", "doesn't": "does not",
    "don't": "do not", "hadn't": "had not", "hasn't": "has not", "haven't": "have not", "isn't": "is not",
    "mustn't": "must not", "shouldn't": "should not", "wasn't": "was not", "weren't": "were not", "won't": "will not",
    "wouldn't": "would not", "i'm": "I am", "you're": "you are", "we're": "we are", "they're": "they are",
    "i've": "I have", "you've": "you have", "we've": "we have", "they've": "they have", "i'll": "I will",
    "you'll": "you will", "he'll": "he will", "she'll": "she will", "it'll": "it will", "we'll": "we will",
    "they'll": "they will", "let's": "let us", "it's": "it is", "he's": "he is", "she's": "she is", "that's": "that is",
    "what's": "what is", "who's": "who is", "where's": "where is", "there's": "there is", "here's": "here is",
    "o'clock": "of the clock",
}  # fmt: skip
_LONG = {long.casefold(): short for short, long in _CONTRACTIONS.items()} | {"can not": "can't"}
_THIRD = ("he", "she", "it")
_BE = {"i": "am", "you": "are", "we": "are", "they": "are", "he": "is", "she": "is", "it": "is"}


@cache
def _inflector() -> Any:
    return load("lemminflect")


def _uses(word: str) -> dict[str, int]:
    """Return how often `word` is used as each part of speech."""
    counts: dict[str, int] = {}
    for sense in senses().get(word.casefold(), ()):
        counts[sense.part_of_speech] = counts.get(sense.part_of_speech, 0) + sense.count
    if not counts:
        lemmas: dict[str, Any] = _inflector().getAllLemmas(word.casefold())
        parts = {"NOUN": "n", "VERB": "v", "ADJ": "a", "ADV": "r"}
        counts = {parts[name]: 1 for name in lemmas if name in parts}
    if not counts:
        raise NotForProgram(f'The dictionary has no entry for "{word}".')
    return counts


def _usual_part(word: str, among: list[str]) -> str:
    """Return the name of the usual part of speech of `word`."""
    counts = _uses(word)
    ordered = sorted(among, key=lambda name: -counts.get(_PARTS[name], -1))
    first, *rest = (counts.get(_PARTS[name], 0) for name in ordered)
    if _PARTS[ordered[0]] not in counts or any(
        first < CLEAR * max(other, 1) for other in rest if other or (len(counts) > 1 and first == 0)
    ):
        raise NotForProgram(f'"{word}" has several parts of speech.')
    return ordered[0]


def _part(match: re.Match[str]) -> ExactAnswer:
    word = match["word"]
    name = _usual_part(word, list(_PARTS))
    return ExactAnswer(f'"{word}" is usually {article_of(name)} {name}.', name)


def _which_part(match: re.Match[str]) -> ExactAnswer:
    word, one, other = match["word"], match["part"].casefold(), (match["other"] or "").casefold()
    if match["sentence"]:
        name = _part_in(word.casefold(), match["sentence"])
        if name not in (one, other):
            raise NotForProgram("The part of speech in this sentence is not certain.")
        return ExactAnswer(f'"{word}" is {article_of(name)} {name} in this sentence.', name)
    if other:
        name = _usual_part(word, [one, other])
        return ExactAnswer(f'"{word}" is {article_of(name)} {name}.', name)
    counts = _uses(word)
    share = counts.get(_PARTS[one], 0) / max(sum(counts.values()), 1)
    if 0 < share < 0.2 or (_PARTS[one] in counts and share == 0):
        raise NotForProgram(f'"{word}" is rarely {article_of(one)} {one}.')
    yes = "Yes" if share else "No"
    return ExactAnswer(f'{yes}, "{word}" is {"" if share else "not "}{article_of(one)} {one}.', yes)


def _part_in(word: str, sentence: str) -> str:
    """Return the part of speech of a word after a pronoun or an article."""
    words = re.findall(r"[a-z']+", sentence.casefold())
    if words.count(word) != 1:
        raise NotForProgram("The word must occur once in the sentence.")
    at = words.index(word)
    before, after = words[at - 1] if at else "", words[at + 1] if at + 1 < len(words) else ""
    if before in (*_BE, "to", "can", "will", "must", "don't") and "v" in _uses(word):
        return "verb"
    is_end = not after or after in (
        "is", "was", "are", "were", "of", "in", "on", "at", "and", "with", "has", "had",
    )  # fmt: skip
    if (
        before in ("the", "a", "an", "my", "your", "his", "her", "our", "their")
        and is_end
        and "n" in _uses(word)
    ):
        return "noun"
    raise NotForProgram("The part of speech in this sentence is not certain.")


def _choose_part(match: re.Match[str]) -> ExactAnswer:
    name, words = match["part"].casefold(), list[str]()
    for item in (items := items_of(match["list"])):
        counts = _uses(item)
        if counts.get(_PARTS[name], 0) * 2 >= sum(counts.values()) and _PARTS[name] in counts:
            words.append(item)
    if match["no"]:
        words = [item for item in items if item not in words]
    if len(words) != 1:
        raise NotForProgram("Not exactly one of the words fits.")
    return ExactAnswer(f'"{words[0]}" is {"not " if match["no"] else ""}{article_of(name)} {name}.', words[0])


def _article(word: str) -> str:
    starts = {sounds[0][-1].isdigit() for sounds in pronunciations_of(word)}
    if len(starts) != 1:
        raise NotForProgram(f'"{word}" has several pronunciations.')
    return "an" if starts.pop() else "a"


def _which_article(match: re.Match[str]) -> ExactAnswer:
    word = match["word"] or match["word2"]
    article = _article(word.split()[0])
    return ExactAnswer(f'It is "{article} {word}".', f"{article} {word}" if match["word2"] else article)


def _agreement(subject: str, verb: str) -> bool:
    """Return whether a pronoun and a verb in the present tense agree."""
    subject, verb = subject.casefold(), verb.casefold()
    if verb in ("am", "is", "are"):
        return _BE[subject] == verb
    if verb in ("was", "were"):
        return (verb == "was") == (subject in ("i", *_THIRD))
    lemmas: tuple[str, ...] = _inflector().getAllLemmas(verb, "VERB").get("VERB", ())
    if len(lemmas) != 1:
        raise NotForProgram(f'"{verb}" is not the form of exactly one verb.')
    third = {"have": "has", "do": "does", "go": "goes"}.get(lemmas[0]) or _inflector().getInflection(
        lemmas[0], "VBZ"
    )[0]
    if verb not in (lemmas[0], third):
        raise NotForProgram(f'"{verb}" is not in the present tense.')
    return (verb == third) == (subject in _THIRD)


def _right_form(match: re.Match[str]) -> ExactAnswer:
    options = [match["one"].strip(), match["other"].strip()]
    words = [option.split() for option in options]
    if len(words[0]) != len(words[1]) or words[0][2:] != words[1][2:]:
        raise NotForProgram("The two forms differ in more than a verb or an article.")
    if words[0][0].casefold() in ("a", "an"):
        right = [
            option
            for option, (article, noun, *_) in zip(options, words, strict=True)
            if article.casefold() == _article(noun)
        ]
    elif words[0][0] == words[1][0] and words[0][0].casefold() in _BE and len(words[0]) > 1:
        right = [
            option
            for option, (subject, verb, *_) in zip(options, words, strict=True)
            if _agreement(subject, verb)
        ]
    else:
        raise NotForProgram("The program checks only articles, and pronouns with a verb.")
    if len(right) != 1:
        raise NotForProgram("Not exactly one of the two forms is right.")
    return ExactAnswer(f'"{right[0]}" is correct.', right[0])


def _fill_verb(match: re.Match[str]) -> ExactAnswer:
    right = [
        verb
        for verb in re.split(r"\s*(?:/|,|\bor\b)\s*", match["verbs"])
        if _agreement(match["subject"], verb)
    ]
    if len(right) != 1:
        raise NotForProgram("Not exactly one of the verbs is right.")
    return ExactAnswer(f'The missing word is "{right[0]}".', right[0])


def _basic(match: re.Match[str]) -> ExactAnswer:
    word, form = match["word"].casefold(), match["form"].casefold()
    kind = "NOUN" if form.startswith("singular") else "VERB"
    lemmas: tuple[str, ...] = _inflector().getAllLemmas(word, kind).get(kind, ())
    lemmas = tuple(dict.fromkeys(each for each in lemmas if each != word or len(lemmas) == 1))
    if len(lemmas) != 1:
        raise NotForProgram(f'"{word}" is not the form of exactly one word.')
    return ExactAnswer(f'The {form} of "{word}" is "{lemmas[0]}".', lemmas[0])


def _contraction(match: re.Match[str]) -> ExactAnswer:
    text = " ".join(match["word"].casefold().split())
    if text in _LONG:
        return ExactAnswer(
            f'The short form of "{match["word"]}" is "{_shown(_LONG[text])}".', _shown(_LONG[text])
        )
    if text in _CONTRACTIONS:
        return ExactAnswer(f'"{match["word"]}" is short for "{_CONTRACTIONS[text]}".', _CONTRACTIONS[text])
    raise NotForProgram(f'"{text}" has no contraction that the program knows.')


def _shown(text: str) -> str:
    return f"I{text[1:]}" if text.startswith("i'") else text


def is_spelled(word: str) -> bool:
    """Return whether a dictionary has `word`, either in its basic form or inflected."""
    return bool(word in senses() or word in other_words() or _inflector().getAllLemmas(word))


def _edits(word: str) -> Iterator[str]:
    """Yield the strings that differ from `word` by one letter, or by two letters that are exchanged."""
    splits = [(word[:at], word[at:]) for at in range(len(word) + 1)]
    for head, tail in splits:
        if tail:
            yield head + tail[1:]
        if len(tail) > 1:
            yield head + tail[1] + tail[0] + tail[2:]
        for letter in "abcdefghijklmnopqrstuvwxyz":
            yield head + letter + tail
            if tail:
                yield head + letter + tail[1:]


def corrections(word: str) -> list[str]:
    """Return the known words that are the most similar to `word`, the most common first."""
    vocabulary = other_words() | senses().keys()
    near = vocabulary & set(_edits(word))
    if not near and len(word) >= 6:
        near = vocabulary & set(chain.from_iterable(_edits(each) for each in set(_edits(word))))
    swapped = {each for each in near if sorted(each) == sorted(word)} or near
    return sorted(swapped, key=lambda each: (-sum(sense.count for sense in senses().get(each, ())), each))


def correct(match: re.Match[str]) -> ExactAnswer:
    word = match["word"].casefold()
    if is_spelled(word):
        is_right = "is_right" in match.groupdict()
        text = f'"{match["word"]}" is spelled correctly.'
        return ExactAnswer(f"Yes, {text}" if is_right else text, "Yes" if is_right else match["word"])
    if match["word"] != word:
        raise NotForProgram(f'"{match["word"]}" may be a name.')
    suggestions = corrections(word)
    counts = [sum(sense.count for sense in senses().get(each, ())) + 1 for each in suggestions[:2]]
    if not suggestions or len(word) < 4 or (len(suggestions) > 1 and counts[0] < CLEAR * counts[1]):
        raise NotForProgram(f'The program is not certain which word "{word}" should be.')
    if "is_right" in match.groupdict():
        return ExactAnswer(f'No. The correct spelling is "{suggestions[0]}".', "No")
    return ExactAnswer(f'The correct spelling is "{suggestions[0]}".', suggestions[0])


_W = r"(?:the (?:word|verb|noun) )?[\"']?(?P<word>[a-z']+?)[\"']?"
_PART = r"(?P<part>noun|verb|adjective|adverb)"
_PHRASE = r"[\"'](?P<{0}>[a-z' ]{{2,60}})[.!]?[\"']"
GRAMMAR: tuple[Rule, ...] = (
    (pattern(rf"(?:what|which) (?:part of speech|type of word|kind of word|word class|word type|sort of word) is {_W}|(?:what is )?the part of speech of {_W.replace('word>', 'word2>')}"), lambda m: _part(with_one_name(m))),
    (pattern(rf"is {_W} an? {_PART}(?:,? or an? (?P<other>noun|verb|adjective|adverb))?(?: in(?: the sentence)?:? [\"'](?P<sentence>[^\"]+)[\"'])?"), _which_part),
    (pattern(rf"in(?: the sentence)? [\"'](?P<sentence>[^\"]+)[\"'],? is {_W} an? {_PART}(?:,? or an? (?P<other>noun|verb|adjective|adverb))?"), _which_part),
    (pattern(rf"(?:which|what)(?: one| word| of these(?: words)?| of the following(?: words)?)* is(?P<no> not)? an? {_PART}[:,]? (?P<list>[^:?]+)"), _choose_part),
    (pattern(r"(?:do you (?:say|use|write)|should i (?:say|use|write)|is it|which article|which is right:?|which is correct:?|(?:do i|do we) (?:say|use|write)|use)? ?[\"']?a[\"']? or [\"']?an[\"']?(?: before| with|:|,| goes before| for)? (?:the word )?[\"']?(?P<word>[a-z]+)[\"']?(?P<word2>(?!))?"), _which_article),
    (pattern(r"(?:is it|do you say|do you write|which is (?:right|correct)[:,]?|which one is (?:right|correct)[:,]?|what is correct[:,]?) [\"']?an? (?P<word2>[a-z]+)[\"']?,? or [\"']?an? (?P=word2)[\"']?(?P<word>(?!))?"), _which_article),
    (pattern(rf"(?:which|what)(?: one| sentence| form| phrase| of these)*(?: is| sounds)(?: grammatically)? (?:correct|right|better)(?: english)?[:,]? {_PHRASE.format('one')},? or {_PHRASE.format('other')}"), _right_form),
    (pattern(rf"is it (?:correct to say )?{_PHRASE.format('one')},? or {_PHRASE.format('other')}"), _right_form),
    (pattern(r"(?:(?:fill in|complete)(?: the)? ?(?:blank|gap|sentence)?s?[:.]? )?[\"']?(?P<subject>i|you|we|they|he|she|it) _+ [a-z' ]{1,40}?[.\"']*(?:[:,.]| with| using)? ?\(?(?P<verbs>[a-z]{1,9}(?: ?(?:/|,|or) ?[a-z]{1,9}){1,3})\)?"), _fill_verb),
    (pattern(rf"{GIVE}(?:the )?(?P<form>singular|singular form|present tense|base form|basic form|infinitive|present) (?:of|for) {_W}"), _basic),
    (pattern(r"(?:what is |give me |write )?(?:the )?(?:contraction|short form|contracted form|long form|full form|uncontracted form|shortened form) (?:of|for) [\"']?(?P<word>[a-z' ]{2,15}?)[\"']?"), _contraction),
    (pattern(r"what (?:is|are) [\"']?(?P<word>[a-z]+'[a-z]+)[\"']? (?:short for|the contraction of|a contraction of)|what does [\"']?(?P<word2>[a-z]+'[a-z]+)[\"']? (?:stand for|mean)"), lambda m: _contraction(with_one_name(m))),
    (pattern(rf"(?:what is )?(?:the )?(?:correct|right|proper) spelling (?:of|for) {_W}|(?:correct|fix)(?: the)? (?:spelling|word|spelling of|spelling mistake|misspelled word|mistake)(?: of| in)?:? {_W.replace('word>', 'word2>')}"), lambda m: correct(with_one_name(m))),
    (pattern(rf"(?P<is_right>is) {_W} (?:spelled|spelt|written) (?:correctly|right)"), correct),
)  # fmt: skip
