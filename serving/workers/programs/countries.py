"""Atlas: capitals, continents, languages, currencies, flags and codes of countries.

The facts are in `country_data`. Languages are answered only if CLDR and countryinfo agree.
"""

import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from serving.workers.programs.country_data import (
    AMBIGUOUS_NAMES,
    PARTS_OF_UK,
    Country,
    countries_by_name,
    find_country,
    join_names,
    name_in_sentence,
    plain_name,
)
from serving.workers.programs.process import NotForProgram
from serving.workers.programs.program import ProgramWorker
from serving.workers.programs.question import PlainQuestion
from serving.workers.programs.rules import ExactAnswer, Rule, answer_by, load, pattern, with_one_name

_SEVERAL_CAPITALS = {
    "ZA": "South Africa has three capitals: Pretoria, Cape Town and Bloemfontein.",
    "BO": "Bolivia's constitutional capital is Sucre; its government sits in La Paz.",
    "SZ": "Eswatini has two capitals: Mbabane and Lobamba.",
}
_SOUTH_AMERICA = {"AR", "BO", "BR", "CL", "CO", "EC", "FK", "GF", "GY", "PY", "PE", "SR", "UY", "VE"}
_ON_TWO_CONTINENTS = {"RU": "Europe and Asia", "TR": "Asia and Europe", "KZ": "Asia and Europe"}
_WITHOUT_CONTINENT = {"GE", "AZ", "AM", "CY", "AQ", "IO", "BV", "GS", "TF", "UM", "HM"}
_SWITZERLAND = {"de", "fr", "it", "rm"}


def _capital(match: re.Match[str]) -> ExactAnswer:
    if part := PARTS_OF_UK.get(plain_name(match["country"])):
        return ExactAnswer(f"The capital of {match['country'].title()} is {part}.", part)
    country = find_country(match["country"])
    if several := _SEVERAL_CAPITALS.get(country.code):
        return ExactAnswer(several)
    if not country.capital:
        raise NotForProgram(f"The program's data names no single, undisputed capital of {country.name}.")
    return ExactAnswer(
        f"The capital of {name_in_sentence(country)} is {country.capital.removesuffix('.')}.", country.capital
    )


def _is_capital(match: re.Match[str]) -> ExactAnswer:
    right = _capital(match)
    if not right.value:
        raise NotForProgram("The country has more than one capital.")
    is_so = plain_name(right.value.split(",")[0]) == plain_name(match["city"].split(",")[0])
    if is_so:
        return ExactAnswer(f"Yes, {right.sentence[0].lower()}{right.sentence[1:]}", "Yes")
    return ExactAnswer(f"No, {right.sentence[0].lower()}{right.sentence[1:]}", "No")


def _capital_of(match: re.Match[str]) -> ExactAnswer:
    city = plain_name(re.sub(r",? (?:d\.?c\.?)$", ", d.c.", match["city"], flags=re.IGNORECASE))
    countries = [
        each
        for each in countries_by_name()[0].values()
        if each.capital and plain_name(each.capital) in (city, f"{city}, d.c.")
    ]
    if len(countries) != 1:
        raise NotForProgram(
            f"The program's data does not name exactly one country whose capital is {match['city']!r}."
        )
    return ExactAnswer(
        f"{countries[0].capital} is the capital of {name_in_sentence(countries[0])}.", countries[0].name
    )


def _continent(match: re.Match[str]) -> ExactAnswer:
    if plain_name(match["country"]) in PARTS_OF_UK:
        return ExactAnswer(f"{match['country'].title()} is in Europe.", "Europe")
    country = find_country(match["country"])
    continent = country.region
    if continent == "Americas":
        continent = "South America" if country.code in _SOUTH_AMERICA else "North America"
    if country.code in _WITHOUT_CONTINENT or not continent:
        raise NotForProgram(f"The continent of {country.name} is disputed or unknown.")
    continent = _ON_TWO_CONTINENTS.get(country.code, continent)
    name = name_in_sentence(country)
    return ExactAnswer(f"{name[0].upper()}{name[1:]} is in {continent}.", continent)


def _is_on(match: re.Match[str]) -> ExactAnswer:
    right = _continent(match)
    if " and " in right.value:
        raise NotForProgram("The country lies on two continents.")
    text = "Yes" if right.value.casefold() == match["continent"].casefold() else "No"
    return ExactAnswer(f"{text}, {right.sentence}", text)


def _currency(match: re.Match[str]) -> ExactAnswer:
    get_territory_currencies: Any = load("babel.numbers").get_territory_currencies

    code = "GB" if plain_name(match["country"]) in PARTS_OF_UK else find_country(match["country"]).code
    country = countries_by_name()[0][code]
    names: Any = load("babel").Locale("en").currencies
    currencies: list[str] = list(get_territory_currencies(code))
    if not currencies or code == "PS":
        raise NotForProgram(f"The currency of {country.name} is uncertain or unknown.")
    shown = join_names([f"{names[each]} ({each})" for each in currencies])
    verb = "currency of {} is the" if len(currencies) == 1 else "currencies of {} are the"
    return ExactAnswer(
        f"The {verb.format(name_in_sentence(country))} {shown}.",
        join_names([names[each] for each in currencies]),
    )


def _language(match: re.Match[str]) -> ExactAnswer:
    get_official_languages: Any = load("babel.languages").get_official_languages

    code = "GB" if plain_name(match["country"]) == "england" else find_country(match["country"]).code
    country = countries_by_name()[0][code]
    languages: Any = get_official_languages(code) or get_official_languages(code, de_facto=True)
    cldr = {str(each).split("_")[0] for each in languages}
    cldr, other = (_SWITZERLAND, _SWITZERLAND) if code == "CH" else (cldr, set(country.languages))
    if code == "GB":
        other = {"en"}
    cldr, other = ({"no"} if each & {"no", "nb"} else each for each in (cldr, other))
    names: Any = load("babel").Locale("en").languages
    both = sorted(names[each] for each in cldr & other)
    wants_all = re.search(r"languages", match[0], re.IGNORECASE) is not None
    if not both or (cldr != other and (wants_all or len(both) > 1)):
        raise NotForProgram(f"The program's sources disagree about the official languages of {country.name}.")
    name = name_in_sentence(country)
    if len(both) > 1:
        return ExactAnswer(f"The official languages of {name} are {join_names(both)}.", join_names(both))
    if cldr == other:
        return ExactAnswer(f"The official or main language of {name} is {both[0]}.", both[0])
    return ExactAnswer(f"{both[0]} is an official language of {name}.", both[0])


def _code(match: re.Match[str]) -> ExactAnswer:
    iso: Any = load("pycountry").countries

    country = find_country(match["country"])
    entry: Any = iso.get(alpha_2=country.code)
    kind = (match["kind"] or "").casefold()
    if "3" in kind or "three" in kind:
        return ExactAnswer(
            f"The three-letter ISO code of {name_in_sentence(country)} is {entry.alpha_3}.", entry.alpha_3
        )
    if "numeric" in kind:
        return ExactAnswer(
            f"The numeric ISO code of {name_in_sentence(country)} is {entry.numeric}.", entry.numeric
        )
    sentence = f"The ISO codes of {name_in_sentence(country)} are {entry.alpha_2}, {entry.alpha_3} and {entry.numeric}."
    if "2" in kind or "two" in kind:
        sentence = f"The two-letter ISO code of {name_in_sentence(country)} is {entry.alpha_2}."
    return ExactAnswer(sentence, entry.alpha_2)


def _calling_code(match: re.Match[str]) -> ExactAnswer:
    country_code_for_region: Any = load("phonenumbers").country_code_for_region

    country = find_country(match["country"])
    number: int = country_code_for_region(country.code)
    if not number:
        raise NotForProgram(f"The calling code of {country.name} is unknown.")
    return ExactAnswer(f"The calling code of {name_in_sentence(country)} is +{number}.", f"+{number}")


def _flag(match: re.Match[str]) -> ExactAnswer:
    country = find_country(match["country"])
    flag = "".join(chr(0x1F1E6 + ord(letter) - ord("A")) for letter in country.code)
    return ExactAnswer(f"The flag of {name_in_sentence(country)} is {flag}.", flag)


def _neighbour_names(country: Country) -> list[str]:
    iso: Any = load("pycountry").countries

    entries: list[Any] = [iso.get(alpha_3=each) for each in country.borders]
    names = sorted(
        name_in_sentence(countries_by_name()[0][each.alpha_2])
        for each in entries
        if each and each.alpha_2 in countries_by_name()[0]
    )
    if not names or len(names) != len(country.borders):
        raise NotForProgram(
            f"The program's data about the land borders of {country.name} is missing or incomplete."
        )
    return names


def _neighbours(match: re.Match[str]) -> ExactAnswer:
    country = find_country(match["country"])
    names, name = _neighbour_names(country), name_in_sentence(country)
    return ExactAnswer(f"{name[0].upper()}{name[1:]} borders {join_names(names)}.", join_names(names))


_UNCLEAR_CODES = "FR NL ES GB DK US CY MA RS IL PS XK SD SS EG AE OM CU IN AF BR SR"
_UNCLEAR_BORDERS = frozenset(_UNCLEAR_CODES.split())
"""Countries with borders that are disputed, or far away."""


def _n_neighbours(match: re.Match[str]) -> ExactAnswer:
    country = find_country(match["country"])
    if country.code in _UNCLEAR_BORDERS:
        raise NotForProgram("The number of neighbours depends on territories that are disputed or far away.")
    names, name = _neighbour_names(country), name_in_sentence(country)
    if not all(name_in_sentence(country) in _neighbour_names(find_country(each)) for each in names):
        raise NotForProgram(f"The program's sources disagree about the borders of {country.name}.")
    things = "country" if len(names) == 1 else "countries"
    return ExactAnswer(
        f"{name[0].upper()}{name[1:]} borders {len(names)} {things}: {join_names(names)}.", str(len(names))
    )


def _n_languages(match: re.Match[str]) -> ExactAnswer:
    right = _language(match)
    if "an official language" in right.sentence:
        raise NotForProgram("The program's sources do not have all languages of the country.")
    count = len(re.split(", | and ", right.value))
    return ExactAnswer(f"{right.sentence[:-1]}, so that makes {count}.", str(count))


def _country_of(match: re.Match[str]) -> ExactAnswer:
    """Answer in which country a capital is."""
    right = _capital_of(match)
    if load("serving.workers.programs.names").is_place(match["city"]):
        raise NotForProgram(f"{match['city']!r} is the name of several places.")
    return ExactAnswer(
        f"{match['city'].title()} is in {right.sentence.partition(' is the capital of ')[2]}", right.value
    )


def _border(match: re.Match[str]) -> ExactAnswer:
    country, other = find_country(match["country"]), find_country(match["other"])
    is_so = name_in_sentence(other) in _neighbour_names(country)
    if (
        is_so != (name_in_sentence(country) in _neighbour_names(other))
        or country.code == other.code
        or (not is_so and {country.code, other.code} <= _UNCLEAR_BORDERS)
    ):
        raise NotForProgram("The program's sources disagree about this border.")
    text = "Yes" if is_so else "No"
    return ExactAnswer(
        f"{text}, {name_in_sentence(country)} {'borders' if is_so else 'does not border'} {name_in_sentence(other)}.",
        text,
    )


_FRAMES: tuple[tuple[frozenset[str], frozenset[str], Callable[[re.Match[str]], ExactAnswer]], ...] = tuple(
    (frozenset(keys.split()), frozenset(fillers.split()), rule)
    for keys, fillers, rule in (
        ("capital", "capital city town name called", _capital),
        (
            "currency",
            "currency money official do i need for use used uses using pay with people there their national have has name called called",
            _currency,
        ),
        ("pay", "do they people you i pay with there", _currency),
        ("money", "money they do i need for use used uses kind sort type people there have take", _currency),
        (
            "language",
            "language languages official main most people speak spoken do they does there mainly national mostly everyone",
            _language,
        ),
        ("speak", "language languages people speak do they there mainly most mostly", _language),
        ("speaks", "language everyone everybody mainly speaks", _language),
        ("continent", "continent on located lie lies belong to does part", _continent),
        ("neighbours", "countries neighbours neighbouring have has does list all direct", _neighbours),
        ("countries border", "countries border borders do share a with does", _neighbours),
        ("countries borders", "countries borders does", _neighbours),
        (
            "how many neighbours",
            "how many countries neighbours neighbouring have has does are there",
            _n_neighbours,
        ),
        (
            "how many countries border",
            "how many countries border borders does do share a with land have has",
            _n_neighbours,
        ),
        ("how many countries borders", "how many countries borders does have has land", _n_neighbours),
        ("how many countries next", "how many countries next to are right directly", _n_neighbours),
        (
            "how many official languages",
            "how many languages official are there does have has spoken",
            _n_languages,
        ),
        ("flag", "flag emoji show", _flag),
        ("dialling code", "dialling code international phone telephone country number", _calling_code),
        ("calling code", "calling code international phone telephone country number", _calling_code),
    )
)
"""Words that a question must have, further words that it may have, and the rule that answers it. The country is the rest."""
_ALWAYS_TEXT = "what which whats what's is are the of in for country's please a it its tell me"
_ALWAYS = frozenset(_ALWAYS_TEXT.split())
_SPELLINGS = {"neighbors": "neighbours", "neighbor": "neighbours", "neighbour": "neighbours", "neighboring": "neighbours", "neighbouring": "neighbours", "dialing": "dialling", "currencies": "currency", "capitol": "capital"}  # fmt: skip
_KEYWORDS = ("capital", "currency", "language", "languages", "continent", "neighbours", "official", "countries", "border")  # fmt: skip


def _spelling(word: str) -> str:
    """Return the keyword for which `word` is a wrong spelling, or the word."""
    word = _SPELLINGS.get(word, word)
    if (
        word in _KEYWORDS
        or len(word) < 6
        or word in countries_by_name()[1]
        or word in load("serving.workers.programs.wordnet").senses()
    ):
        return word
    close = [
        each
        for each in _KEYWORDS
        if sorted(each) == sorted(word) or get_close_matches(word, [each], cutoff=0.85)
    ]
    return close[0] if len(close) == 1 else word


def _by_words(match: re.Match[str]) -> ExactAnswer:
    """Answer a question that has one country, the words of one relation, and no other words."""
    words = [
        _spelling(word)
        for word in re.findall(r"[^\s,?!:;]+", re.sub(r"'s\b", "", match[0].casefold().rstrip(".")))
    ]
    text = " ".join(words)
    names = countries_by_name()[1].keys() | PARTS_OF_UK.keys() | AMBIGUOUS_NAMES
    spans = [(i, j) for i in range(len(words)) for j in range(i + 1, min(i + 6, len(words)) + 1)]
    named = [
        (i, j)
        for i, j in spans
        if plain_name(" ".join(words[i:j])) in names
        and words[i] not in ("in", "the")
        and (words[i:j] != ["us"])
    ]
    if not named:
        raise NotForProgram("The question names no country.")
    start, end = max(named, key=lambda span: span[1] - span[0])
    others = words[:start] + words[end:]
    if "most" in others and "people" not in others:
        raise NotForProgram("The program has no numbers of speakers.")
    if any(i < start or j > end for i, j in named):
        raise NotForProgram("The question names several countries.")
    for keys, fillers, rule in sorted(_FRAMES, key=lambda frame: -len(frame[0])):
        if keys <= set(others) and set(others) <= keys | fillers | _ALWAYS:
            country_match = re.fullmatch(rf".*?(?P<country>{re.escape(' '.join(words[start:end]))}).*", text)
            assert country_match is not None
            return rule(country_match)
    raise NotForProgram("The program does not understand some words around the country's name.")


_C = r"(?P<country>[^\W\d_][\w .,'’&()-]{1,60}?)"
_BE = r"(?:(?:what|which)(?: city| town)?(?: is| are)?|name|give me|tell me|where is)? ?"
RULES: tuple[Rule, ...] = (
    (pattern(rf"{_BE}(?:the )?(?:name of the )?capital(?: city)? (?:of|in|for) {_C}(?: called| named| is what| is(?: ?\.\.\.)?)?"), _capital),
    (pattern(rf"{_C}'s capital(?: city)?(?: is)?|what is {_C.replace('country', 'country2')}'s capital(?: city)?"), lambda m: _capital(with_one_name(m))),
    (pattern(rf"is (?!it true)(?P<city>[\w .,'-]{{2,40}}?) the capital(?: city)? of {_C}"), _is_capital),
    (pattern(rf"is it true that (?P<city>[\w .,'-]{{2,40}}?) is the capital(?: city)? of {_C}"), _is_capital),
    (pattern(rf"is it true that {_C} is (?:a country )?in (?P<continent>europe|asia|africa|oceania|north america|south america)"), _is_on),
    (pattern(r"(?:which|what) country(?: has| is| does have)? (?P<city>[\w .'-]{2,40}?) (?:as its capital(?: city)?|the capital(?: city)? of|for its capital|for a capital)"), _capital_of),
    (pattern(r"(?P<city>[\w .'-]{2,40}?) is the capital(?: city)? of (?:which|what)(?: country)?|of (?:which|what) country is (?P<city2>[\w .'-]{2,40}?) the capital"), lambda m: _capital_of(with_one_name(m))),
    (pattern(rf"(?:is|does) {_C} (?:located in|lie in|a country in|a part of|part of|in|on) (?P<continent>europe|asia|africa|oceania|north america|south america)"), _is_on),
    (pattern(rf"(?:on|in)? ?(?:which|what) continent (?:is|does|do) {_C}(?: in| on| located| located in| lie| lie in| lie on| belong to| part of)?"), _continent),
    (pattern(rf"(?:what|which)(?: is)?(?: the)?(?: official| national)? (?:currency|money)(?: is used| do they use| do people use| does| is)? ?(?:of|in|for|used in)? ?{_C}(?: use| have)?"), _currency),
    (pattern(rf"(?:what|which)(?: is| are)?(?: the)?(?: official| main| national)? languages?(?: do they| do people| does one| is| are)? ?(?:of|in|speak in|spoken in|mainly spoken in|officially spoken in) {_C}"), _language),
    (pattern(rf"(?:what is )?(?:the )?(?P<kind>(?:two|three|2|3)[- ]letter |alpha-?[23] |numeric )?(?:iso )?(?:country )?code (?:of|for) {_C}"), _code),
    (pattern(r"(?:in )?(?:which|what) country is (?P<city>[\w .'-]{2,40}?)(?: located| situated)?(?: in)?|where is (?P<city2>[\w .'-]{2,40}?)"), lambda m: _country_of(with_one_name(m))),
    (pattern(rf"(?:does|do) {_C} (?:border|share a border with|have a border with) (?P<other>[^\W\d_][\w .'&()-]{{1,40}})|is {_C.replace('country', 'country2')} (?:a neighbou?r of|next to) (?P<other2>[^\W\d_][\w .'&()-]{{1,40}})"), lambda m: _border(with_one_name(m))),
    (pattern(r".*"), _by_words),
)  # fmt: skip


class Atlas(ProgramWorker):
    """Program that answers questions about countries, from the data of CLDR, ISO and countryinfo."""

    topic = "capitals, continents, languages, currencies, flags and codes of countries"
    packages = ("babel", "countryinfo", "pycountry", "phonenumbers")

    def answer(self, question: PlainQuestion) -> ExactAnswer:
        return answer_by(RULES, question)
