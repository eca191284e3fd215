"""Time zones by city and country, from the IANA database."""

from collections import Counter, defaultdict
from datetime import datetime
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from serving.workers.programs.clock import TIME
from serving.workers.programs.date_text import MONTH
from serving.workers.programs.process import NotForProgram
from serving.workers.programs.rules import load

_MORE_CITIES = {
    "UTC": "utc, gmt", "Asia/Kolkata": "india, mumbai, delhi, new delhi, bangalore, bengaluru, chennai, hyderabad", "Europe/Berlin":
    "germany, munich, hamburg, frankfurt, cologne", "Asia/Tokyo": "japan, osaka, kyoto", "Asia/Shanghai": "china, beijing, shenzhen, guangzhou",
    "America/Los_Angeles": "san francisco, seattle, san diego, las vegas, california, la, silicon valley, portland oregon",
    "America/New_York": "new york city, nyc, washington, washington dc, washington d.c., boston, miami, philadelphia, atlanta",
    "America/Chicago": "houston, dallas, austin, new orleans, minneapolis", "Europe/Madrid": "barcelona, seville, valencia",
    "Europe/Rome": "milan, naples, florence, venice, turin", "Europe/London": "uk, the uk, england, scotland, wales, manchester, edinburgh, glasgow, liverpool",
    "Europe/Paris": "france, lyon, marseille, nice", "Europe/Zurich": "geneva, basel, bern", "America/Toronto": "ottawa, montreal",
    "America/Sao_Paulo": "rio, rio de janeiro", "Asia/Dubai": "abu dhabi", "Australia/Sydney": "canberra", "America/Denver": "salt lake city",
    "Africa/Johannesburg": "cape town, pretoria, durban", "Asia/Ho_Chi_Minh": "hanoi", "Pacific/Auckland": "wellington", "Asia/Karachi": "lahore, islamabad",
    "Europe/Istanbul": "ankara", "Africa/Casablanca": "marrakesh, rabat",
}  # fmt: skip
"""Cities that the IANA database does not name, and countries with one time on the mainland, by their zone."""

_PLACE = r"(?!a\b|an\b|the (?!uk|us|usa)|my|it|what)[^\W\d_][^\W\d_ .'-]*(?:[ -](?!is\b|and\b|when\b|what\b|but\b|if\b|time\b|on\b|in\b|for\b)[^\W\d_][^\W\d_.'-]*){0,3}"
_AT, _IN, _THERE = (
    rf"(?P<time>{TIME})",
    rf"(?:in )?(?P<place>{_PLACE})(?: time)?",
    rf"(?:in )?(?P<other>{_PLACE})(?: time)?",
)
_DAY = rf"(?: (?:on (?:a|an) |in )(?P<month>{MONTH})(?: day)?)?"
_ASK_TIME = r"(?:what time|what|when) (?:is it|is that|is this|would it be|will it be|would that be|will that be|is|does that make it)"
OTHER_TIMES = (
    rf"(?:if|when) (?:it's|it is|its) {_AT} {_IN}{_DAY}[,.]? {_ASK_TIME} {_THERE}",
    rf"(?:it's|it is|its) {_AT} {_IN}{_DAY}[,.;]? (?:so )?{_ASK_TIME} {_THERE}",
    rf"{_ASK_TIME} {_THERE} (?:when|if|at) (?:(?:it's|it is|its) )?{_AT} {_IN}{_DAY}",
    rf"{_ASK_TIME} {_AT} {_IN}{_DAY} {_THERE}",
    rf"(?:convert |change )?{_AT} {_IN}{_DAY} (?:to|into|is what time|is when|is) {_THERE}",
    rf"(?:i have|i've got|we have|there is|there's) (?:a|an|my|our) [a-z]+(?: [a-z]+)? at {_AT} {_IN}{_DAY}[,.]? (?:but |and )?(?:i'm|i am|im|we are|we're) in (?P<other>{_PLACE})[.,]? {_ASK_TIME}(?: for (?:me|us)| here)?",
    rf"(?:i have|i've got|we have|there is|there's) (?:a|an|my|our) [a-z]+(?: [a-z]+)? at {_AT} {_IN}{_DAY}[,.]? (?:and |so )?{_ASK_TIME}(?: it)? {_THERE}",
    rf"(?:i'm|i am|im|we are|we're|i live) in (?P<other>{_PLACE})[.,]? {_ASK_TIME}(?: it)?(?: here| for me)? (?:when|if|at) (?:(?:it's|it is|its) )?{_AT} {_IN}{_DAY}",
)
"""Questions for the time at another place."""


@cache
def _cities() -> dict[str, str]:
    """Return the time zones by lower-case city, for cities in exactly one zone."""
    atlas: Any = load("serving.workers.programs.country_data")
    zones = [
        zone
        for zone in available_timezones()
        if zone.count("/") and not zone.startswith(("Etc/", "SystemV/", "US/"))
    ]
    rules = {
        zone: tuple(datetime(2026, month, 1, tzinfo=ZoneInfo(zone)).utcoffset() for month in (1, 7))
        for zone in zones
    }
    names = Counter(
        name
        for name, _ in {(zone.rsplit("/", 1)[1].replace("_", " ").casefold(), rules[zone]) for zone in zones}
    )
    cities = {zone.rsplit("/", 1)[1].replace("_", " ").casefold(): zone for zone in zones}
    of_country: dict[str, list[str]] = defaultdict(list)
    for zone, code in load("babel.core").get_global("zone_territories").items():
        of_country[code].append(zone)
    countries, by_name = atlas.countries_by_name()
    same = {name: of_country[code][0] for name, code in by_name.items() if len(of_country[code]) == 1}
    same |= {
        atlas.plain_name(country.capital): of_country[code][0]
        for code, country in countries.items()
        if country.capital and len(of_country[code]) == 1
    }
    same |= {city: zone for zone, text in _MORE_CITIES.items() for city in text.split(", ")}
    return {name: zone for name, zone in cities.items() if names[name] == 1} | same


def zone_of(place: str) -> str:
    """Return the IANA name of the time zone of a city or country. Raise `NotForProgram` if it is unknown or ambiguous."""
    zone = _cities().get(place.strip().casefold())
    if zone is None:
        raise NotForProgram(f"The time zone of {place!r} is unknown or ambiguous.")
    return zone
