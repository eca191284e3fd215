"""Questions about the letters of words for the dictionary: counting, spelling backwards, sorting, repeating.

No meaning and no lexicon is needed. Words that the question only describes, such as "my name", are rejected.
"""

import re

from serving.workers.programs.expressions import NUMBER, read_number
from serving.workers.programs.process import NotForProgram
from serving.workers.programs.rules import ExactAnswer, Rule, pattern, with_one_name

MOST_TIMES, MOST_ITEMS = 50, 100
_ALPHABET = "abcdefghijklmnopqrstuvwxyz"
_ORDINALS = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"]
GIVE = r"(?:what is |what's |what are |give me |tell me |give |name |write |find |say )?(?:me )?"
"""Regular expression for the beginning of a request for one thing."""
LIST = r"(?P<list>[^:?]+)"
"""Regular expression for a list of words, which is in the group `list`."""
_ANY = r"(?:the (?:word|phrase|text) )?(?:[\"'](?P<word>[^\"']{1,80})[\"']|(?P<word2>[a-z]+(?:-[a-z]+)*))"
_ONE = r"(?:the (?:word|name) )?[\"']?(?P<word>[a-z]{2,30})[\"']?"
_LETTER = r"[\"']?(?P<letter>[a-z])[\"']?(?:'s|s)?"
_ORDINAL = rf"(?P<n>last|{'|'.join(_ORDINALS)}|\d{{1,2}}(?:st|nd|rd|th))"


def _letter(match: re.Match[str]) -> ExactAnswer:
    word, which = match["word"], match["n"].casefold()
    is_alphabet = word.casefold() in ("the alphabet", "the english alphabet", "alphabet")
    letters = _ALPHABET if is_alphabet else [char for char in word if char.isalpha()]
    at = len(letters) - 1 if which == "last" else _ordinal(which)
    what = "the alphabet" if is_alphabet else f'"{word}"'
    if not 0 <= at < len(letters):
        raise NotForProgram(f"There is no {which} letter in {what}.")
    return ExactAnswer(f'The {which} letter of {what} is "{letters[at]}".', letters[at])


def _ordinal(text: str) -> int:
    return _ORDINALS.index(text) if text in _ORDINALS else int(re.sub(r"\D", "", text)) - 1


def _next_letter(match: re.Match[str]) -> ExactAnswer:
    letter, is_before = match["letter"].casefold(), match["way"].casefold() == "before"
    at = _ALPHABET.index(letter) + (-1 if is_before else 1)
    way = "before" if is_before else "after"
    if not 0 <= at < 26:
        raise NotForProgram(f'No letter comes {way} "{letter.upper()}" in the alphabet.')
    return ExactAnswer(
        f'"{_ALPHABET[at].upper()}" comes {way} "{letter.upper()}" in the alphabet.', _ALPHABET[at].upper()
    )


def _count_letters(match: re.Match[str]) -> ExactAnswer:
    word, what = match["word"], match["what"].casefold()
    if word.casefold() in ("the alphabet", "the english alphabet", "alphabet"):
        counts = {"letters": 26, "vowels": 5}
        if what not in counts:
            raise NotForProgram("Whether Y is a consonant depends on the word.")
        return ExactAnswer(f"The English alphabet has {counts[what]} {what}.", str(counts[what]))
    if (
        re.match(r"the |an? |this |that |my |your ", word, re.IGNORECASE)
        and '"' not in match[0]
        and "word" not in match[0]
    ):
        raise NotForProgram("The question does not say which word is meant.")
    letters = [char for char in word.casefold() if char.isalpha()]
    vowels = sum(char in "aeiou" for char in letters)
    if what != "letters" and "y" in letters:
        raise NotForProgram(f'Whether Y is a vowel in "{word}" is uncertain.')
    count = {"letters": len(letters), "vowels": vowels, "consonants": len(letters) - vowels}[what]
    name = what if count != 1 else what.removesuffix("s")
    return ExactAnswer(f'"{word}" has {count} {name}.', str(count))


def _count_one_letter(match: re.Match[str]) -> ExactAnswer:
    word, letter = match["word"], match["letter"]
    count = word.casefold().count(letter.casefold())
    return ExactAnswer(
        f'The letter "{letter.casefold()}" appears {count} time{"" if count == 1 else "s"} in "{word}".',
        str(count),
    )


def _reverse(match: re.Match[str]) -> ExactAnswer:
    word = match["word"]
    return ExactAnswer(f'"{word}" spelled backwards is "{word[::-1]}".', word[::-1])


def _case(match: re.Match[str]) -> ExactAnswer:
    is_lower = re.match(r"lower|small", match["case"], re.IGNORECASE) is not None
    text = match["word"].lower() if is_lower else match["word"].upper()
    return ExactAnswer(text, text)


def _words_of(text: str) -> list[str]:
    words = re.findall(
        r"[a-z]+(?:['-][a-z]+)*", re.sub(r"\b(?:or|and)\b", " ", text, flags=re.IGNORECASE), re.IGNORECASE
    )
    if not 2 <= len(words) <= MOST_ITEMS:
        raise NotForProgram(f"The list must have 2 to {MOST_ITEMS} words.")
    return words


def _longer(match: re.Match[str]) -> ExactAnswer:
    words, how = _words_of(match["list"]), match["how"].casefold()
    is_most = "long" in how or "more" in how or "most" in how
    length = (max if is_most else min)(map(len, words))
    answers = [word for word in words if len(word) == length]
    if len(answers) != 1 or (
        len(words) > 2 and how in ("longer", "shorter", "more letters", "fewer letters")
    ):
        raise NotForProgram(f'"{how}" does not describe exactly one word of the list.')
    return ExactAnswer(
        f'"{answers[0]}" {"is" if "e" in how[-3:] and "letters" not in how else "has"} {how}.', answers[0]
    )


def _begins(match: re.Match[str]) -> ExactAnswer:
    letter, is_end = match["letter"].casefold(), match["end"].casefold() == "ends"
    answers = [word for word in _words_of(match["list"]) if word.casefold()[-1 if is_end else 0] == letter]
    if len(answers) != 1:
        end = match["end"].casefold()
        raise NotForProgram(f'The list does not contain exactly one word that {end} with "{letter}".')
    return ExactAnswer(f'"{answers[0]}" {match["end"].casefold()} with "{letter}".', answers[0])


def _letter_between(match: re.Match[str]) -> ExactAnswer:
    first, last = _ALPHABET.index(match["a"].casefold()), _ALPHABET.index(match["b"].casefold())
    if last - first != 2:
        raise NotForProgram(
            f'There is not exactly one letter between "{match["a"].upper()}" and "{match["b"].upper()}".'
        )
    letter = _ALPHABET[first + 1].upper()
    return ExactAnswer(f'"{letter}" comes between "{match["a"].upper()}" and "{match["b"].upper()}".', letter)


def _some_letters(match: re.Match[str]) -> ExactAnswer:
    count = int(read_number(match["n"])) if match["n"] else 26
    if not 1 <= count <= 26:
        raise NotForProgram("The number of letters must be from 1 to 26.")
    text = " ".join(
        (_ALPHABET[-count:] if (match["end"] or "").casefold() == "last" else _ALPHABET[:count]).upper()
    )
    return ExactAnswer(text, text)


def _range(match: re.Match[str]) -> ExactAnswer:
    first, last = _ALPHABET.index(match["a"].casefold()), _ALPHABET.index(match["b"].casefold())
    if first >= last:
        raise NotForProgram("The first letter must come before the last one in the alphabet.")
    text = " ".join(_ALPHABET[first : last + 1].upper())
    return ExactAnswer(text, text)


def _palindrome(match: re.Match[str]) -> ExactAnswer:
    letters = [char for char in match["word"].casefold() if char.isalnum()]
    text = "Yes" if letters == letters[::-1] else "No"
    return ExactAnswer(f'{text}, "{match["word"]}" is {"" if text == "Yes" else "not "}a palindrome.', text)


def _are_anagrams(match: re.Match[str]) -> ExactAnswer:
    one, other = (sorted(match[name].casefold().replace(" ", "")) for name in ("word", "other"))
    text = "Yes" if one == other else "No"
    return ExactAnswer(
        f'{text}, "{match["word"]}" and "{match["other"]}" are {"" if text == "Yes" else "not "}anagrams.',
        text,
    )


def _sort(match: re.Match[str]) -> ExactAnswer:
    words = [word.strip(" \"'.") for word in re.split(r"\s*(?:,|;|\band\b)\s*", match["list"])]
    words = [word for word in words if word]
    words = words[0].split() if len(words) == 1 and ":" in match[0] else words
    if not 2 <= len(words) <= MOST_ITEMS or (":" not in match[0] and any(" " in word for word in words)):
        raise NotForProgram(
            f"The list to sort is unclear. Write 2 to {MOST_ITEMS} words, separated by commas."
        )
    is_reversed = re.search(r"reverse|z to a|z-a|descending", match[0], re.IGNORECASE) is not None
    text = ", ".join(sorted(words, key=lambda word: (word.casefold(), word), reverse=is_reversed))
    return ExactAnswer(text, text)


def _comes_first(match: re.Match[str]) -> ExactAnswer:
    words = _words_of(match["list"])
    result = (min if match["n"].casefold() == "first" else max)(words, key=str.casefold)
    return ExactAnswer(f'"{result}" comes {match["n"].casefold()} in alphabetical order.', result)


def _echo(match: re.Match[str]) -> ExactAnswer:
    return ExactAnswer(match["word"], match["word"])


def _repeat(match: re.Match[str]) -> ExactAnswer:
    times = match["times"].casefold()
    count = {"once": 1, "twice": 2}.get(times) or int(read_number(times.removesuffix("times").strip()))
    if not 1 <= count <= MOST_TIMES:
        raise NotForProgram(f"A word can be repeated 1 to {MOST_TIMES} times.")
    text = " ".join([match["word"]] * count)
    return ExactAnswer(text, text)


def _with_way(match: re.Match[str]) -> re.Match[str]:
    if not match["way"] and "follows" not in match[0].casefold():
        raise NotForProgram("The program does not understand the question.")
    return match


def _contains(match: re.Match[str]) -> ExactAnswer:
    word, letter = match["word"], match["letter"]
    text = "Yes" if letter.casefold() in word.casefold() else "No"
    return ExactAnswer(
        f'{text}, "{word}" {"contains" if text == "Yes" else "does not contain"} the letter "{letter}".', text
    )


def _end_letter(match: re.Match[str]) -> ExactAnswer:
    words, is_end = (
        [match["word"], match["other"] or match["word"]],
        match["end"].casefold().startswith("end"),
    )
    letters = {word.casefold()[-1 if is_end else 0] for word in words}
    if len(letters) != 1:
        raise NotForProgram("The two words have different letters there.")
    letter = letters.pop()
    verb = (
        f"{'ends' if is_end else 'starts'} with"
        if not match["other"]
        else f"{'end' if is_end else 'start'} with"
    )
    names = f'"{words[0]}"' + (f' and "{words[1]}"' if match["other"] else "")
    return ExactAnswer(f'{names} {verb} "{letter}".', letter)


def _is_vowel(match: re.Match[str]) -> ExactAnswer:
    letter, what = match["letter"].casefold(), match["what"].casefold()
    if letter == "y":
        raise NotForProgram('"Y" is sometimes a vowel and sometimes a consonant.')
    kind = "vowel" if letter in "aeiou" else "consonant"
    if match["other"]:
        return ExactAnswer(f'"{letter.upper()}" is a {kind}.', kind)
    text = "Yes" if kind == what else "No"
    return ExactAnswer(f'{text}, "{letter.upper()}" is a {kind}.', text)


LETTERS: tuple[Rule, ...] = (
    (pattern(rf"(?:does|do) {_ONE} (?:contain|have|include)(?: the letter| an?)? [\"']?(?P<letter>[a-z])[\"']?(?: in it)?"), _contains),
    (pattern(rf"(?:is|are) there (?:the letter |an? )?[\"']?(?P<letter>[a-z])[\"']? in {_ONE}"), _contains),
    (pattern(rf"(?:which|what)(?: is the)? letter (?:do|does)(?: the words?)? {_ONE}(?: and {_ONE.replace('word>', 'other>')})?(?: both)? (?P<end>start|begin|end) with"), _end_letter),
    (pattern(rf"(?:with )?(?:which|what) letter (?:do|does)(?: the words?)? {_ONE}(?: and {_ONE.replace('word>', 'other>')})?(?: both)? (?P<end>start|begin|end)"), _end_letter),
    (pattern(r"is (?:the letter )?[\"']?(?P<letter>[a-z])[\"']? an? (?P<what>vowel|consonant)(?:,? or an? (?P<other>vowel|consonant))?"), _is_vowel),
    (pattern(rf"(?:what|which)(?: letter)? (?:comes |is )(?:right |just |directly )?(?P<way>after|before) the letter {_LETTER}(?: in the (?:english )?alphabet)?"), _next_letter),
    (pattern(rf"{GIVE}(?:is |which letter is |what letter is )?(?:the )?{_ORDINAL} letter (?:of|in) (?:the (?:word|name) )?[\"']?(?P<word>the (?:english )?alphabet|alphabet|[a-z]+)[\"']?"), _letter),
    (pattern(rf"(?:which|what) letter (?:comes |is |follows )?(?:right |just |directly )?(?P<way>after|before|) ?{_LETTER}(?: in the (?:english )?alphabet)?"), lambda m: _next_letter(_with_way(m))),
    (pattern(r"(?:how many|count the|count how many|what is the number of|number of)(?P<of>)? (?P<what>letters|vowels|consonants) (?:are |is |does |do |has )?(?:there )?(?:in |there in )?(?:the (?:word|name|english word) )?[\"']?(?P<word>the (?:english )?alphabet|[a-z]+(?:-[a-z]+)*)[\"']?(?: have| has| contain)?"), _count_letters),
    (pattern(rf"(?:how many times does|how often does) (?:the )?(?:letter )?[\"']?(?P<letter>[a-z])[\"']? (?:appear|occur|show up|come up)s? in {_ANY}"), lambda m: _count_one_letter(with_one_name(m))),
    (pattern(rf"how many (?:letter |times the letter )?[\"']?(?P<letter>[a-z])[\"']?(?:'s|s)? (?:are |are there |is |is there |does |do )?(?:there )?(?:in )?{_ANY}(?: have| has| contain)?"), lambda m: _count_one_letter(with_one_name(m))),
    (pattern(rf"(?:(?:can you )?(?:spell|write|say|reverse|print|read)|what is)(?: out)? {_ANY}(?: spelled| written| spelt)? (?:backwards?|in reverse|reversed|from back to front)"), lambda m: _reverse(with_one_name(m))),
    (pattern(rf"(?:reverse|flip)(?: the letters (?:of|in))? {_ANY}"), lambda m: _reverse(with_one_name(m))),
    (pattern(rf"(?:write|put|print|say|type|convert|turn|change) {_ANY} (?:in|into|to|with|all in) (?:all )?(?P<case>capital letters|capitals|caps|upper ?case(?: letters)?|lower ?case(?: letters)?|small letters)"), lambda m: _case(with_one_name(m))),
    (pattern(rf"(?:which|what)(?: of these)? word (?:is|has) (?P<how>longer|longest|shorter|shortest|more letters|fewer letters|the most letters|the fewest letters)[:,]? {LIST}"), _longer),
    (pattern(rf"(?:which|what)(?: of these| of the)?(?: words?| one)? (?P<end>starts|begins|ends) with (?:the letter |an? )?[\"']?(?P<letter>[a-z])[\"']?[:,]? {LIST}"), _begins),
    (pattern(r"(?:which|what) letter (?:comes|is) between (?P<a>[a-z]) and (?P<b>[a-z])(?: in the alphabet)?"), _letter_between),
    (pattern(r"(?:write|list|say|give me|recite|name)(?: all)? (?:the )?(?:alphabet|letters|letters of the alphabet) from [\"']?(?P<a>[a-z])[\"']? to [\"']?(?P<b>[a-z])[\"']?"), _range),
    (pattern(rf"(?:{GIVE}|list |recite )(?:the )?(?:(?P<end>first|last) (?P<n>{NUMBER}) letters (?:of|in) )?the (?:english )?alphabet"), _some_letters),
    (pattern(r"(?:repeat|copy|echo)(?: exactly)?(?: after me| this| the following| this exactly)(?: sentence| word| text| phrase| exactly)?[:,] [\"']?(?P<word>[^\"']+?)[\"']?"), _echo),
    (pattern(rf"(?:put|sort|arrange|order|list|write)(?: (?:these|the|this|following|list of|three|four|five|six|two|\d+|words?|names?|items?|list))* (?:in(?:to)? |by )?(?:reverse )?(?:alphabetical(?:ly| order)?|alphabetic order|the alphabet|a to z|a-z|z to a)(?: order)?: ?{LIST}"), _sort),
    (pattern(r"(?:put|sort|arrange|order|write)(?: (?:these|the|following|words?|names?))* ?:? ?(?P<list>[^:?]+?) (?:in(?:to)? |by )?(?:reverse )?(?:alphabetical(?:ly| order)|alphabetic order)"), _sort),
    (pattern(rf"alphabeti[sz]e(?: (?:these|the|following|words?|names?|list))*:? {LIST}"), _sort),
    (pattern(rf"which (?:of these |word |one |of these words |name )*(?:comes|is) (?P<n>first|last) (?:in the alphabet|alphabetically|in alphabetical order|in the dictionary|in a dictionary)[:,]? {LIST}"), _comes_first),
    (pattern(rf"(?:repeat|write|say|type|print) (?:the word )?[\"']?(?P<word>[a-z]+)[\"']? (?:exactly )?(?P<times>once|twice|{NUMBER} times)"), _repeat),
    (pattern(r"is (?:the (?:word|phrase) )?[\"']?(?P<word>[^\"']{1,80}?)[\"']? a palindrome"), _palindrome),
    (pattern(r"are [\"']?(?P<word>[a-z ]{1,40}?)[\"']? and [\"']?(?P<other>[a-z ]{1,40}?)[\"']? anagrams(?: of each other)?"), _are_anagrams),
    (pattern(r"say (?P<word>hello|hi|goodbye|bye|yes|no|thanks|thank you|good morning|good night)"), lambda m: ExactAnswer(f"{m['word'].capitalize()}!", m["word"].capitalize())),
)  # fmt: skip
"""Rules of the dictionary that do not need a lexicon."""
