"""Translations of common words and phrases for the dictionary.

`phrasebook.txt` has about 450 words and phrases in five languages, and a few in 25 others. Names of days, months,
languages and countries come from CLDR. Whole sentences are not translated unless the phrasebook has them.
"""

import re
import unicodedata
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from serving.workers.programs.expressions import NUMBER, read_number
from serving.workers.programs.process import NotForProgram
from serving.workers.programs.rules import ExactAnswer, Rule, load, pattern, with_one_name
from serving.workers.programs.wordnet import senses

FILE = Path(__file__).with_name("phrasebook.txt")
MAIN = ("Spanish", "French", "German", "Italian", "Portuguese")
CODES = {
    "Spanish": "es", "French": "fr", "German": "de", "Italian": "it", "Portuguese": "pt", "Dutch": "nl", "Polish": "pl",
    "Swedish": "sv", "Danish": "da", "Norwegian": "nb", "Finnish": "fi", "Greek": "el", "Turkish": "tr", "Russian": "ru",
    "Japanese": "ja", "Czech": "cs", "Hungarian": "hu", "Romanian": "ro", "Catalan": "ca", "Welsh": "cy", "Latin": "la",
    "Indonesian": "id", "Ukrainian": "uk", "Korean": "ko", "Chinese": "zh", "Hebrew": "he", "Arabic": "ar", "Hindi": "hi",
}  # fmt: skip
_ARTICLES = re.compile(r"(?:el|la|los|las|le|les|der|die|das|il|lo|i|gli|o|a|os|as) (?=\S)|l'(?=\S)")
_INDEFINITE = {
    "el": "un", "la": {"Spanish": "una", "French": "une", "Italian": "una"}, "le": "un", "der": "ein", "die": "eine",
    "das": "ein", "il": "un", "lo": "uno", "o": "um", "a": "uma",
}  # fmt: skip
_PEOPLE = {
    "germans": "German",
    "spaniards": "Spanish",
    "italians": "Italian",
    "russians": "Russian",
    "greeks": "Greek",
}


@dataclass(frozen=True, slots=True)
class Phrase:
    """Word or phrase in English and in another language.

    Args:
        english: forms in English, the usual one first.
        language: name of the other language.
        forms: forms in that language, the usual one first. Nouns have their article.
            note: which meaning is meant, if the English word has several.
        is_noun: whether the forms begin with an article.
    """

    english: tuple[str, ...]
    language: str
    forms: tuple[str, ...]
    note: str = ""
    is_noun: bool = False

    def bare(self, form: str) -> str:
        """Return one of the forms without its article."""
        return _ARTICLES.sub("", form, count=1) if self.is_noun else form


def key_of(text: str) -> str:
    """Return `text` without case, accents and punctuation."""
    text = text.casefold().replace("ß", "ss").replace("’", "'")
    plain = "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))
    return " ".join(re.sub(r"[¿?¡!.,\"]", " ", plain).split())


@cache
def entries() -> tuple[Phrase, ...]:
    """Return the entries of the phrasebook."""
    phrases: list[Phrase] = []
    for line in FILE.read_text(encoding="utf-8").splitlines():
        if line.startswith("@ "):
            language, _, pairs = line[2:].partition(" | ")
            for pair in pairs.split("; "):
                english, _, form = pair.partition(": ")
                phrases.append(Phrase((english,), language, (form,)))
        elif line and not line.startswith("#"):
            english, *columns = (column.strip() for column in line.split("|"))
            note = re.search(r" \((.+)\)$", english)
            names = tuple(re.sub(r" \(.+\)$", "", english).split(" / "))
            is_noun = all(_ARTICLES.match(column) for column in columns)
            for language, column in zip(MAIN, columns, strict=True):
                forms = tuple(column.split(" / "))
                phrases.append(Phrase(names, language, forms, note[1] if note else "", is_noun))
    return tuple(phrases)


@cache
def _to_language() -> dict[tuple[str, str], list[Phrase]]:
    index: dict[tuple[str, str], list[Phrase]] = {}
    for entry in entries():
        for name in entry.english:
            index.setdefault((entry.language, key_of(name)), []).append(entry)
    return index


@cache
def _to_english() -> dict[str, list[Phrase]]:
    index: dict[str, list[Phrase]] = {}
    for entry in entries():
        for form in entry.forms:
            plain, _, script = form.partition(" (")
            for each in {plain, entry.bare(plain), script.rstrip(")")} - {""}:
                index.setdefault(key_of(each), []).append(entry)
    return index


@cache
def _names_in(language: str) -> dict[str, str]:
    """Return the names of days, months, languages and countries in a language, by their English names."""
    english, other = load("babel").Locale("en"), load("babel").Locale(CODES[language])
    names: dict[str, str] = {}
    one: Any
    two: Any
    for one, two in (
        (english.days["stand-alone"]["wide"], other.days["stand-alone"]["wide"]),
        (english.months["stand-alone"]["wide"], other.months["stand-alone"]["wide"]),
        (english.languages, other.languages),
        (english.territories, other.territories),
    ):
        for key, name in one.items():
            if key in two:
                names.setdefault(name.casefold(), two[key])
    return names


def _language(text: str) -> str:
    text = _PEOPLE.get(text.casefold(), text.title())
    return {"Mandarin": "Chinese", "English": ""}.get(text, text)


def translate(word: str, language: str) -> tuple[str, str]:
    """Return the usual translation of an English word, and the same with its article if it is a noun.

    Raises:
        NotForProgram: the phrasebook does not have the word.
    """
    article, _, noun = word.partition(" ")
    phrases = _to_language().get((language, key_of(word)), [])
    if not phrases and article.casefold() in ("the", "a", "an"):
        return _with_article(_to_language().get((language, key_of(noun)), []), article.casefold(), language)
    if phrases:
        forms = list(dict.fromkeys(entry.bare(entry.forms[0]) for entry in phrases))
        return '" or "'.join(forms), phrases[0].forms[0] if len(forms) == 1 else ""
    is_ambiguous = word.casefold() in ("may", "march", "turkey", "china")
    if language in CODES and not is_ambiguous and (name := _names_in(language).get(word.casefold())):
        return name, ""
    raise NotForProgram(f'The phrasebook has no translation of "{word}".')


def _with_article(phrases: list[Phrase], article: str, language: str) -> tuple[str, str]:
    if len(phrases) != 1 or not phrases[0].is_noun:
        raise NotForProgram("The phrasebook has no such noun.")
    form = phrases[0].forms[0]
    if article == "the":
        return form, ""
    start, _, noun = form.partition(" ")
    indefinite = _INDEFINITE.get(start)
    indefinite = indefinite.get(language) if isinstance(indefinite, dict) else indefinite
    if not noun or indefinite is None:
        raise NotForProgram("The indefinite article of this noun is not certain.")
    return f"{indefinite} {noun}", ""


def _translation(match: re.Match[str]) -> ExactAnswer:
    word, language = match["word"].strip(" \"'"), _language(match["language"])
    form, noun = translate(word, language)
    with_article = f" ({noun})" if noun and noun != form and noun != form.split(" (")[0] else ""
    return ExactAnswer(f'"{word}" is "{form}"{with_article} in {language}.', form)


def meanings(word: str, language: str = "") -> dict[str, str]:
    """Return the English meaning of a foreign word, by the languages that have it. The main languages come first.

    Raises:
        NotForProgram: the phrasebook does not have the word.
    """
    by_language: dict[str, str] = {}
    matches = [entry for entry in _to_english().get(key_of(word), []) if language in ("", entry.language)]
    exact = [
        entry for entry in matches if word.casefold() in {entry.bare(form).casefold() for form in entry.forms}
    ]
    for entry in exact or matches:
        meaning = by_language.setdefault(entry.language, entry.english[0])
        if entry.english[0] not in meaning.split('" or "'):
            by_language[entry.language] = f'{meaning}" or "{entry.english[0]}'
    if by_language.keys() & set(MAIN):
        by_language = {name: text for name, text in by_language.items() if name in MAIN}
    if not by_language:
        for name in [language] if language in CODES else [] if language else MAIN:
            english = {one for one, other in _names_in(name).items() if key_of(other) == key_of(word)}
            if len(english) == 1:
                by_language[name] = english.pop().title()
    if not by_language:
        raise NotForProgram(f'The phrasebook has no word "{word}".')
    return by_language


def _meaning(match: re.Match[str]) -> ExactAnswer:
    groups = match.groupdict()
    word, language = match["word"].strip(" \"'"), _language(groups.get("language") or "")
    if not language and not groups.get("english") and word.casefold() in senses():
        raise NotForProgram(f'"{word}" is also an English word.')
    by_language = meanings(word, language)
    meanings_of = [set(text.split('" or "')) for text in by_language.values()]
    shared = meanings_of[0].intersection(*meanings_of[1:])
    if len(set(by_language.values())) == 1 or len(shared) == 1:
        text = shared.pop() if len(shared) == 1 else next(iter(by_language.values()))
        return ExactAnswer(f'"{word}" means "{text}" in English.', text)
    parts = [f'"{text}" in {name}' for name, text in by_language.items()]
    return ExactAnswer(f'"{word}" means {" and ".join(parts)}.')


def _which_language(match: re.Match[str]) -> ExactAnswer:
    word = match["word"].strip(" \"'")
    by_language = meanings(word)
    if meaning := match.groupdict().get("meaning"):
        by_language = {
            name: text
            for name, text in by_language.items()
            if key_of(meaning.strip(" \"'")) in _english_forms(word, name)
        }
    if not by_language or (word.casefold() in senses() and len(by_language) > 1):
        raise NotForProgram(f'The phrasebook does not know the language of "{word}".')
    names = " and ".join(by_language)
    return ExactAnswer(f'"{word}" is {names} and means "{next(iter(by_language.values()))}".', names)


def _english_forms(word: str, language: str) -> set[str]:
    return {
        key_of(name)
        for entry in _to_english().get(key_of(word), [])
        if entry.language == language
        for name in entry.english
    }


def _means(match: re.Match[str]) -> ExactAnswer:
    """Answer whether a foreign word means an English one, or which one of two."""
    word, language = match["word"].strip(" \"'"), _language(match["language"] or "")
    options = [match[name].strip(" \"'.") for name in ("one", "other") if match[name]]
    forms = {form for name in meanings(word, language) for form in _english_forms(word, name)}
    right = [option for option in options if key_of(re.sub(r"^(?:an?|the) ", "", option)) in forms]
    meaning = next(iter(meanings(word, language).values()))
    if len(options) == 2:
        if len(right) != 1:
            raise NotForProgram("The phrasebook does not know which of the two is right.")
        return ExactAnswer(f'"{word}" means "{right[0]}".', right[0])
    if not right and not any((language, key_of(options[0])) in _to_language() for language in MAIN):
        raise NotForProgram(f'The phrasebook does not know "{options[0]}".')
    return ExactAnswer(f'{"Yes" if right else "No"}, "{word}" means "{meaning}".', "Yes" if right else "No")


def _count(match: re.Match[str]) -> ExactAnswer:
    last, language = int(read_number(match["last"])), _language(match["language"])
    if not 2 <= last <= 20 or language not in MAIN:
        raise NotForProgram("The program counts up to 20 in Spanish, French, German, Italian and Portuguese.")
    text = ", ".join(_to_language()[language, str(number)][0].forms[0] for number in range(1, last + 1))
    return ExactAnswer(f"{text}.", text)


_LANGUAGES = "|".join(sorted({*CODES, "Swahili", "Hawaiian", "Irish", "Vietnamese", "Thai", "Mandarin"}))
_L = rf"(?:the )?(?P<language>{_LANGUAGES})(?: language)?"
_W = r"(?:the )?(?:english )?(?:word |phrase |expression |sentence |name |number |greeting )?(?:for )?(?P<word>[\"'][^\"]{1,60}[\"']|[^\"?:]{1,60}?)"
_F = _W.replace("(?:english )?", rf"(?:(?P<language>{_LANGUAGES}) )?")
_ENGLISH = r"(?P<english>,?(?: in| into| to) (?:the )?english(?: language)?)"
_ASK = r"(?:what is|what are|give me|tell me|write|say|name|show me|do you know)"
_DAYS = r"(?:colou?r|number|day|month|animal|country|fruit|drink|food|season)"
PHRASES: tuple[Rule, ...] = (
    (pattern(rf"(?:how|what) (?:do|would|can|does|should|could|might) (?:you|i|one|we|they|people|someone|a person) (?:say|write|call|translate|put|express) {_W} (?:in|into|to|using) {_L}"), _translation),
    (pattern(rf"how (?:to|do you) (?:say|write|translate) {_W} (?:in|into|to) {_L}"), _translation),
    (pattern(rf"(?:how|what) (?:is|are) {_W} (?:said|written|called|translated|spelled) (?:in|into|to) {_L}"), _translation),
    (pattern(rf"{_ASK} (?:a |the )?{_L} (?:word|words|name|translation|term|phrase|expression|equivalent|version|greeting|way to say|way of saying|for) ?(?:for|of|to)? {_W}"), _translation),
    (pattern(rf"{_L} (?:word|translation|name|term) (?:for|of) {_W}|{_L.replace('language>', 'language2>')} for {_W.replace('word>', 'word2>')}"), lambda m: _translation(with_one_name(m))),
    (pattern(rf"(?:{_ASK} )?(?:a |the )?translation (?:of|for) {_W} (?:in|into|to) {_L}"), _translation),
    (pattern(rf"translate {_W} (?:from english )?(?:in|into|to) {_L}"), _translation),
    (pattern(rf"(?:translate |say |write )?(?:this |the following |the word |the phrase )*(?:from english )?(?:in|into|to) {_L}[:,] {_W}"), _translation),
    (pattern(rf"(?:what is|what are|what would be|say|write|give me|tell me|spell) {_W} (?:in|into) {_L}"), _translation),
    (pattern(rf"(?P<word>[\"'][^\"]{{1,60}}[\"']|[^\"?: ]{{1,20}}(?: [^\"?: ]{{1,20}})?) in {_L}"), _translation),
    (pattern(rf"(?:what|how) do (?:the )?(?P<language>{_LANGUAGES}|{'|'.join(_PEOPLE)})(?: people| speakers| person)? (?:say|call) (?:for |to say |instead of |when they mean )?{_W}"), _translation),
    (pattern(rf"what do(?:es)? {_F} mean(?:,? in (?P<language2>{_LANGUAGES}))?{_ENGLISH}?(?:,? as a word in english)?"), lambda m: _meaning(with_one_name(m))),
    (pattern(rf"what do(?:es)? {_F} mean in (?P<language2>{_LANGUAGES}),? as a word in (?P<english>english)"), lambda m: _meaning(with_one_name(m))),
    (pattern(rf"(?:{_ASK} )?(?:the )?(?P<english>english) (?:word|words|translation|meaning|equivalent|term|name|phrase|for) ?(?:for|of)? {_F}"), _meaning),
    (pattern(rf"(?:{_ASK} )?(?:the )?(?:translation|meaning) (?:of|for) {_F}{_ENGLISH}"), _meaning),
    (pattern(rf"(?:{_ASK} )?(?:the )?meaning of the (?P<language>{_LANGUAGES}) (?:word|phrase) (?P<word>[^?:]{{1,60}})"), _meaning),
    (pattern(rf"(?:what is|what are|how do you say|how is|what would be|say|translate) {_F}(?: said)?(?: from (?P<language2>{_LANGUAGES}))?{_ENGLISH}"), lambda m: _meaning(with_one_name(m))),
    (pattern(rf"translate (?:this |the following )?(?:(?:word|phrase|sentence) )?(?:from (?P<language>{_LANGUAGES}) )?(?P<english>(?:into|to) english)[:,] (?P<word>.{{1,60}})"), _meaning),
    (pattern(rf"{_F} means what{_ENGLISH}?"), _meaning),
    (pattern(rf"(?:what|which) {_DAYS} (?:is|does) (?:the )?(?:(?P<language>{_LANGUAGES}) )?(?:word )?[\"'](?P<word>[^\"']{{1,30}})[\"'](?: mean)?{_ENGLISH}?"), _meaning),
    (pattern(r"(?:what|which|in (?:what|which)) language (?:is|does)(?: the)?(?: word| phrase)? (?P<word>[\"'][^\"]{1,40}[\"']|\S+)(?: from| in| come from| belong to| a word in)?"), _which_language),
    (pattern(r"(?:in )?(?:what|which) language (?:does|is)(?: the word)? (?P<word>[\"'][^\"]{1,40}[\"']|\S+) (?:means?|the word for|used for) (?P<meaning>[^?]{1,40})"), _which_language),
    (pattern(rf"(?:does|do|is|did) (?:the (?:(?P<language>{_LANGUAGES}) )?word )?(?P<word>[\"'][^\"]{{1,40}}[\"']|\S+) (?:mean|(?P<language2>{_LANGUAGES}) for|the (?P<language3>{_LANGUAGES}) word for) (?P<one>[^?,]{{1,30}}?)(?:,? or (?P<other>[^?,]{{1,30}}?))?(?: in (?P<language4>{_LANGUAGES}|english))?"), lambda m: _means(with_one_name(m))),
    (pattern(rf"(?:how (?:do|would|can) you |can you )?count (?:from (?:one|1) )?(?:up )?to (?P<last>{NUMBER}) in {_L}"), _count),
)  # fmt: skip
