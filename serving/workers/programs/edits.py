"""Small edits of words and short texts for the dictionary: adding, removing and replacing letters and words, joining,
punctuation, unscrambling, and repeating a text as it is.
"""

import re
from collections.abc import Callable

from serving.workers.programs.process import NotForProgram
from serving.workers.programs.rules import ExactAnswer, Rule, pattern, with_one_name
from serving.workers.programs.wordnet import PARTS_OF_SPEECH, senses

MOST_TEXT = 200
_SIGNS = {
    "full stop": ".", "period": ".", "question mark": "?", "exclamation mark": "!", "exclamation point": "!", "comma": ",",
    "colon": ":", "semicolon": ";", "dot": ".", "hyphen": "-", "dash": "-", "space": " ",
}  # fmt: skip


def _text(text: str) -> ExactAnswer:
    return ExactAnswer(text, text)


def _plain(text: str) -> str:
    return re.sub(r"^[\"'](.*)[\"']$", r"\1", text.strip()).strip()


def _echo(match: re.Match[str]) -> ExactAnswer:
    return _text(_plain(match["word"]))


def _start(match: re.Match[str]) -> ExactAnswer:
    word = _plain(match["word"])
    return ExactAnswer(f"{word}.", word)


def _replace(match: re.Match[str]) -> ExactAnswer:
    old, new, text = (_plain(match[name]) for name in ("old", "new", "text"))
    occurrences = re.findall(
        rf"(?<!\w){re.escape(old)}(?!\w)" if " " in text else re.escape(old), text, re.IGNORECASE
    )
    if len(occurrences) != 1:
        raise NotForProgram(f'"{old}" must occur exactly once in the text.')
    return _text(
        re.sub(
            rf"(?<!\w){re.escape(old)}(?!\w)" if " " in text else re.escape(old),
            lambda _: new,
            text,
            flags=re.IGNORECASE,
        )
    )


def _remove(match: re.Match[str]) -> ExactAnswer:
    old, text = _plain(match["old"]), _plain(match["text"])
    if len(old) == 1 or " " not in text:
        if text.casefold().count(old.casefold()) != 1:
            raise NotForProgram(f'"{old}" must occur exactly once in the word.')
        at = text.casefold().index(old.casefold())
        return _text(text[:at] + text[at + len(old) :])
    words = text.split()
    rest = [word for word in words if word.strip(".,!?").casefold() != old.casefold()]
    if len(words) - len(rest) != 1:
        raise NotForProgram(f'"{old}" must occur exactly once in the text.')
    return _text(" ".join(rest))


def _change_letter(match: re.Match[str]) -> ExactAnswer:
    word, letter, is_first = _plain(match["text"]), match["new"], match["n"].casefold() == "first"
    return _text(letter + word[1:] if is_first else word[:-1] + letter)


def _drop_letter(match: re.Match[str]) -> ExactAnswer:
    word = _plain(match["text"])
    return _text(word[1:] if match["n"].casefold() == "first" else word[:-1])


def _join(match: re.Match[str]) -> ExactAnswer:
    joined = _plain(match["one"]) + _plain(match["other"])
    if not joined.isalpha():
        raise NotForProgram("Only words of letters are joined.")
    return ExactAnswer(f'"{_plain(match["one"])}" and "{_plain(match["other"])}" make "{joined}".', joined)


def _add_letters(match: re.Match[str]) -> ExactAnswer:
    word, letters = _plain(match["text"]), _plain(match["new"])
    is_before = re.search(r"beginning|start|front|before", match["where"] or "", re.IGNORECASE)
    return _text(letters + word if is_before else word + letters)


def _add_word(match: re.Match[str]) -> ExactAnswer:
    new, text = _plain(match["new"]), _plain(match["text"])
    return _text(f"{new} {text}" if match["where"].casefold() == "before" else f"{text} {new}")


def _add_sign(match: re.Match[str]) -> ExactAnswer:
    text = re.sub(r"[.!?]$", "", _plain(match["text"]))
    return _text(text + _SIGNS[match["sign"].casefold()])


def _sign(match: re.Match[str]) -> ExactAnswer:
    return _text(_SIGNS[match["sign"].casefold()])


def _quote(match: re.Match[str]) -> ExactAnswer:
    return _text(f'"{_plain(match["text"])}"')


def _separate(match: re.Match[str]) -> ExactAnswer:
    words = re.findall(r"[\"']([^\"']+)[\"']", match["list"]) or re.split(
        r",? and |, | ", match["list"].strip()
    )
    how = next(match[name] for name in ("sign", "sign2") if match[name]).casefold()
    if not 2 <= len(words) <= 20 or {"from", "to", "all", "the", "first", "last", "of", "in"} & set(words):
        raise NotForProgram("The words to separate are not clear.")
    joint = {"comma": ", ", "commas": ", ", "line": "\n", "lines": "\n", "hyphen": "-", "hyphens": "-", "dash": "-", "space": " ", "spaces": " ", "semicolon": "; ", "semicolons": "; "}[how.split()[-1]]  # fmt: skip
    return _text(joint.join(words))


def _capital(match: re.Match[str]) -> ExactAnswer:
    text = _plain(match["text"])
    return _text(text[0].upper() + text[1:])


def _common(words: list[str]) -> list[str]:
    return sorted(words, key=lambda each: (-sum(sense.count for sense in senses()[each]), each))


def _unscramble(match: re.Match[str]) -> ExactAnswer:
    letters = sorted(re.sub(r"[^a-z]|\band\b", "", match["text"].casefold()))
    if not 3 <= len(letters) <= 12:
        raise NotForProgram("Three to twelve letters can be unscrambled.")
    anagrams = _common([word for word in senses() if len(word) == len(letters) and sorted(word) == letters])
    anagrams = [word for word in anagrams if word != match["text"].casefold().strip()]
    if not anagrams:
        raise NotForProgram("The dictionary has no word with exactly these letters.")
    return ExactAnswer(f'The letters make "{anagrams[0]}".', anagrams[0])


def _word_like(match: re.Match[str]) -> ExactAnswer:
    """Answer with a common word that starts or ends with letters, or has a number of letters."""
    groups = match.groupdict()
    part, letters = (groups.get("part") or "word").casefold(), (groups.get("letters") or "").casefold()
    part = {"ate": "verb", "ly": "adverb"}.get(letters, "noun") if part == "word" else part
    length = {"three": 3, "four": 4, "five": 5, "six": 6, "seven": 7}.get(
        (groups.get("n") or "").casefold()
    ) or int(groups.get("n") or 0)
    codes = {code for code, name in PARTS_OF_SPEECH.items() if name == part}
    tests: list[Callable[[str], bool]] = [lambda word: not length or len(word) == length]
    if letters:
        is_end = match["end"].casefold().startswith("end")
        tests.append(lambda word: word.endswith(letters) if is_end else word.startswith(letters))
    candidates = [
        word
        for word, all_senses in senses().items()
        if all(test(word) for test in tests) and len(word) > max(2, len(letters)) and word.isalpha()
        and max(all_senses, key=lambda sense: sense.count).part_of_speech in codes
    ]  # fmt: skip
    if not candidates:
        raise NotForProgram("The dictionary knows no such word.")
    word = _common(candidates)[0]
    return ExactAnswer(f'"{word}" is such a word.', word)


def _position(match: re.Match[str]) -> ExactAnswer:
    words = [word.strip(".,!?;:\"'") for word in _plain(match["text"]).split()]
    places = {"first": 0, "second": 1, "third": 2, "fourth": 3, "fifth": 4, "last": -1}
    at = places[match["n"].casefold()]
    if len(words) < 2 or at >= len(words):
        raise NotForProgram("The sentence does not have so many words.")
    return ExactAnswer(f'The {match["n"].casefold()} word is "{words[at]}".', words[at])


_TEXT = r"(?:the (?:word|words|sentence|phrase|text|name|letters?)[:,]? )?(?P<text>[\"'][^\"]{1,200}[\"']|[\w' -]{1,60}?)"
_Q = r"(?:the (?:word|letters?|phrase|sentence|name) )?[\"'](?P<{0}>[^\"']{{1,60}})[\"']"
_BARE = r"(?:the (?:word|letters?) )?[\"']?(?P<{0}>[\w'-]{{1,30}})[\"']?"
_ONLY = r"(?:,? ?(?:and )?(?:nothing (?:else|more)|only|alone|exactly(?: once)?|once|without anything else|with no other words|no other words|(?:with )?nothing around it))*"
_SAY = r"(?:(?:please )?(?:just |only |simply )?(?:reply|answer|respond|repeat|say|write|type|print|output|return|send)(?: back)?(?: to this| with| me| using)*)"
_SIGN = rf"(?P<sign>{'|'.join(_SIGNS)})"
_DO = r"(?:what (?:word )?(?:do|would|will) (?:you|we|i) (?:get|have|form|make) (?:if|when) (?:you|we|i) |what (?:word )?is (?:left|formed|made) (?:if|when) (?:you|we|i) )?"
EDITS: tuple[Rule, ...] = (
    (pattern(rf"{_SAY}(?: with)?(?: only| just| exactly| nothing but| simply)*(?: with)?(?: the)?(?: single| one)?(?: word| words| number| letter| phrase| text| sentence)*[:,]? [\"'](?P<word>[^\"]{{1,200}})[\"'](?: in english)?{_ONLY}"), _echo),
    (pattern(rf"{_SAY}(?: with)?(?: only| just| exactly)*(?: with)?(?: the)(?: single| one)? (?:word|number|letter)[:,]? (?P<word>[\w-]{{1,30}}){_ONLY}"), _echo),
    (pattern(r"(?:reply|answer|respond|say|write|type|print) (?:with )?(?:nothing|no words?) (?:but|except|other than) (?:the word )?[\"']?(?P<word>[^\"']{1,60})[\"']?|(?:do not|don't) (?:say|write|reply|answer)(?: with)? anything (?:but|except|other than) (?:the word )?[\"']?(?P<word2>[^\"']{1,60})[\"']?"), lambda m: _echo(with_one_name(m))),
    (pattern(r"(?:copy|echo|repeat)(?: after me| this| the following| exactly)*(?: (?:word|sentence|phrase|text|line))?(?: exactly)?[:,]? ?[\"'](?P<word>[^\"]{1,200})[\"'](?: exactly| back(?: to me)?)*"), _echo),
    (pattern(r"(?:copy|echo)(?: this| the)*(?: word)? [\"']?(?P<word>[\w-]{1,30})[\"']?"), _echo),
    (pattern(rf"with (?:just |only |exactly )?(?:the )?(?:single |one )?(?:word |number |letter )?[\"'](?P<word>[^\"]{{1,60}})[\"']{_ONLY}"), _echo),
    (pattern(r"(?:choose|pick|select)(?: one| between)?(?: of these| of the two)?:? (?P<word>(?!up |out |any )(?:(?! (?:between|from|of|for|with) )[\w -]){1,30}?) (?:or|and) [\w -]{1,30}"), _echo),
    (pattern(r"(?:start|begin|end|finish) your (?:answer|reply|response|message|sentence) with (?:the (?:word|words|phrase|letter) )?[\"']?(?P<word>[^\"']{1,60}?)[\"']?"), _start),
    (pattern(rf"{_DO}(?:replace|substitute|change|swap|exchange)(?: the)?(?: word| letter| letters)? {_Q.format('old')} (?:with|by|for|to|into) {_Q.format('new')} in {_TEXT}"), _replace),
    (pattern(rf"in {_TEXT},? (?:replace|substitute|change|swap) {_Q.format('old')} (?:with|by|for|to) {_Q.format('new')}"), _replace),
    (pattern(rf"{_DO}(?:remove|delete|take (?:away|out)|drop|leave out|take)(?: the)? {_Q.format('old')} (?:away )?(?:from|in|out of) {_TEXT}"), _remove),
    (pattern(rf"{_DO}(?:change|replace|turn) the (?P<n>first|last) letter (?:of|in) {_TEXT} (?:to|into|with|by) (?:an? |the letter )?[\"']?(?P<new>[a-z])[\"']?"), _change_letter),
    (pattern(rf"(?:{_DO}(?:remove|delete|drop|take away|leave out) the (?P<n>first|last) letter (?:of|from|in) {_TEXT}|write {_TEXT.replace('text>', 'text2>')} without (?:the|its) (?P<n2>first|last) letter)"), lambda m: _drop_letter(with_one_name(m))),
    (pattern(rf"{_DO}(?:combine|join|put|connect|merge|attach)(?: together)?(?: the words?)? {_BARE.format('one')} (?:and|with) {_BARE.format('other')}(?: together)?(?: in ?to| to (?:make|form|get)| as)?(?: one| a single)?(?: compound)?(?: word)?"), _join),
    (pattern(rf"{_DO}add {_Q.format('new')} (?P<where>to the (?:end|beginning|start|front) of|to|at the (?:end|beginning|start) of|after) {_TEXT}"), _add_letters),
    (pattern(rf"(?:add|put|write) {_Q.format('new')} (?P<where>before|after) {_TEXT}"), _add_word),
    (pattern(rf"(?:put|add|write|place|use) (?:an? |the )?{_SIGN} (?:after|at the end of|to the end of|at the end)(?: of)?(?: this| the)?(?: sentence| word| text| following sentence)?:? {_TEXT}"), _add_sign),
    (pattern(rf"(?:write|print|type|give me|show|output) (?:only )?(?:an?|the|one) {_SIGN}{_ONLY}"), _sign),
    (pattern(rf"put (?:quotation marks|quotes) around {_TEXT}|put {_TEXT.replace('text>', 'text2>')} in (?:quotation marks|quotes)"), lambda m: _quote(with_one_name(m))),
    (pattern(r"(?:write|put|print|list|type) (?:the (?:words|letters|numbers|names) )?(?P<list>[\w\"', ]{3,120}?) (?:(?:separated by|with) (?:an? )?(?P<sign>commas?|hyphens?|dash|spaces?|semicolons?)(?: between them)?|on (?P<sign2>(?:separate|different) lines))"), _separate),
    (pattern(r"separate (?:these|the) (?:words|letters|numbers) (?:with|by) (?:an? )?(?P<sign>commas?|hyphens?|spaces?|semicolons?)(?P<sign2>(?!))?:? (?P<list>[\w ]{3,120})"), _separate),
    (pattern(rf"(?:capitali[sz]e(?: the first letter(?: of)?)?|write|how do (?:you|i) write|how is)(?: the word)?:? {_TEXT}(?: written)? with a capital(?: letter)?|capitali[sz]e(?: the first letter(?: of)?)?(?: the word)?:? {_TEXT.replace('text>', 'text2>')}"), lambda m: _capital(with_one_name(m))),
    (pattern(r"(?:unscramble|rearrange|what word can (?:you|i) (?:make|form|spell) (?:from|with|out of)|make an? (?:english )?word (?:from|with|out of|using)|which word do|what word do|find the word in)(?: the)?(?: scrambled)?(?: these)?(?: letters| word)*(?: to (?:make|form) a word)?:? [\"']?(?P<text>[a-z](?:[a-z]{2,11}|(?:,? (?:and )?[a-z]){2,11}))[\"']?(?: make| spell| form)?"), _unscramble),
    (pattern(r"(?:name|give me|tell me|say|write|what is|find|think of)? ?(?:an?|one|any)(?: (?P<n>three|four|five|six|seven|[3-7])[- ]letter)?(?: english)? (?P<part>word|noun|verb|adjective) (?:that |which )?(?P<end>starts?|begins?|ends?|starting|beginning|ending) (?:with|in) (?:the letters? |an? )?[\"']?-?(?P<letters>[a-z]{1,4})[\"']?"), lambda m: _word_like(with_one_name(m))),
    (pattern(r"(?:name|give me|tell me|say|write|what is|find|think of)? ?(?:an?|one|any) (?:(?P<n>three|four|five|six|seven|[3-7])[- ]letter (?:english )?word|(?:english )?word (?:with|of|that has) (?P<n2>three|four|five|six|seven|[3-7]) letters)"), lambda m: _word_like(with_one_name(m))),
    (pattern(r"(?:what|which) is the (?P<n>first|second|third|fourth|fifth|last) word (?:of|in)(?: the| this)? ?(?:sentence|phrase|text|line)?:? [\"'](?P<text>[^\"]{3,200})[\"']"), _position),
)  # fmt: skip
