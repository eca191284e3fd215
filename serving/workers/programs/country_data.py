"""Names and facts of countries, from countryinfo, CLDR and ISO, with the corrections in `_CAPITALS`."""

import re
import unicodedata
from dataclasses import dataclass
from functools import cache
from typing import Any

from serving.workers.programs.process import NotForProgram
from serving.workers.programs.rules import load

_CAPITALS = {
    "KZ": "Astana", "BI": "Gitega", "LK": "Sri Jayawardenepura Kotte", "US": "Washington, D.C.", "VA": "Vatican City",
    "SG": "Singapore", "MX": "Mexico City", "CO": "Bogotá", "BO": "", "ZA": "", "SZ": "", "IL": "", "PS": "", "EH": "",
    "HK": "", "MO": "", "GQ": "", "NR": "", "MS": "", "AN": "", "CS": "", "GE": "", "IO": "", "BQ": "", "TK": "",
}  # fmt: skip
"""Corrections of countryinfo's capitals, or "" if a country has no capital, several, a disputed or a moving one."""
PARTS_OF_UK = {
    "england": "London",
    "scotland": "Edinburgh",
    "wales": "Cardiff",
    "northern ireland": "Belfast",
}
_ALIASES = {
    "usa": "US", "u.s.": "US", "us": "US", "u.s.a.": "US", "united states of america": "US", "america": "US", "uk": "GB",
    "u.k.": "GB", "britain": "GB", "great britain": "GB", "holland": "NL", "uae": "AE", "emirates": "AE", "czechia": "CZ",
    "czech republic": "CZ", "drc": "CD", "dr congo": "CD", "vatican": "VA", "vatican city": "VA", "cabo verde": "CV",
    "swaziland": "SZ", "burma": "MM", "macedonia": "MK", "turkey": "TR", "ivory coast": "CI", "cote d'ivoire": "CI",
    "saint lucia": "LC", "russian federation": "RU", "persia": "IR", "bosnia": "BA", "trinidad": "TT", "east timor": "TL",
}  # fmt: skip
AMBIGUOUS_NAMES = {
    "georgia",
    "congo",
    "the congo",
    "korea",
    "guinea",
    "micronesia",
    "samoa",
    "ireland island",
    "sudans",
}


@dataclass(frozen=True, slots=True)
class Country:
    """Facts about a country or territory. A field is empty if its value is not certain."""

    code: str
    name: str
    capital: str
    region: str
    borders: tuple[str, ...]
    languages: frozenset[str]


def plain_name(text: str) -> str:
    plain = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return re.sub(
        r"^the ", "", plain.casefold().replace("’", "'").replace("&", "and").replace("st.", "saint")
    ).strip()


@cache
def countries_by_name() -> tuple[dict[str, Country], dict[str, str]]:
    """Return the countries by ISO code, and the codes by name."""
    all_countries: Any = load("countryinfo").all_countries
    iso: Any = load("pycountry").countries

    names: Any = load("babel").Locale("en").territories
    countries: dict[str, Country] = {}
    by_name: dict[str, str] = {}
    for each in all_countries():
        facts: Any = each.info()
        code = facts.get("ISO", {}).get("alpha2") or ""
        official: Any = iso.get(alpha_2=code) if code else None
        if official is None or code in countries:
            continue
        capital = facts.get("capital")
        capital = capital if isinstance(capital, str) else ""
        name = getattr(official, "common_name", None) or names.get(code, facts["name"])
        countries[code] = Country(
            code,
            name.replace("&", "and").replace("Congo - Kinshasa", "the Democratic Republic of the Congo"),
            _CAPITALS.get(code, capital),
            facts.get("region") or "",
            tuple(facts.get("borders") or ()),
            frozenset(facts.get("languages") or ()),
        )
        for alias in (
            names.get(code, ""),
            facts["name"],
            official.name,
            getattr(official, "official_name", ""),
        ):
            by_name.setdefault(plain_name(alias), code)
            by_name.setdefault(
                plain_name(alias.split(" (")[0].split(",")[0])
                if alias.count(",") == 1
                else plain_name(alias),
                code,
            )
    by_name |= _ALIASES
    for name in ("", *AMBIGUOUS_NAMES):
        by_name.pop(name, None)
    return countries, by_name


def find_country(text: str) -> Country:
    countries, by_name = countries_by_name()
    if (key := plain_name(text)) in AMBIGUOUS_NAMES:
        raise NotForProgram(f"{text!r} is the name of more than one place.")
    code = by_name.get(key)
    if code is None:
        raise NotForProgram(f"The program has no data about a country named {text!r}.")
    return countries[code]


def name_in_sentence(country: Country) -> str:
    needs_article = (
        country.code in {"US", "GB", "NL", "PH", "AE", "BS", "GM", "MV", "CZ"} and country.name != "Czechia"
    )
    return f"the {country.name}" if needs_article else country.name


def join_names(texts: list[str]) -> str:
    return f"{', '.join(texts[:-1])} and {texts[-1]}" if len(texts) > 1 else texts[0]
