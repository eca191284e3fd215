"""Reader and writer of dates in words and digits, for the Gregorian calendar of the years 1600 to 9999.

Holidays whose date follows from a rule are read as well. A date in digits that can be read in two ways, such
as 3/4/2025, is rejected.
"""

import re
from collections.abc import Callable
from datetime import date, timedelta

from serving.workers.programs.process import NotForProgram

FIRST_YEAR, LAST_YEAR = 1600, 9999

MONTHS = [
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November", "December",
]  # fmt: skip
WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
_SEASONS = ["spring", "summer", "autumn", "winter"]
MONTH_NUMBERS = {
    **{name.casefold(): n for n, name in enumerate(MONTHS, 1)},
    **{name[:3].casefold(): n for n, name in enumerate(MONTHS, 1)},
    "sept": 9,
}
_FIXED = {
    "christmas": (12, 25), "christmas day": (12, 25), "christmas eve": (12, 24), "new year's eve": (12, 31), "new year": (1, 1),
    "new year's day": (1, 1), "new years": (1, 1), "halloween": (10, 31), "valentine's day": (2, 14), "valentines day": (2, 14),
    "st patrick's day": (3, 17), "boxing day": (12, 26), "april fools' day": (4, 1), "april fool's day": (4, 1),
    "st. patrick's day": (3, 17), "independence day": (7, 4), "bastille day": (7, 14),
}  # fmt: skip
_FROM_EASTER = {
    "easter": 0,
    "easter sunday": 0,
    "good friday": -2,
    "easter monday": 1,
    "pentecost": 49,
    "ash wednesday": -46,
}
_ORDINAL_WORDS = [
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh", "twelfth",
]  # fmt: skip
ORDINALS = {word: number for number, word in enumerate(_ORDINAL_WORDS, 1)}

MONTH = "|".join(sorted(MONTH_NUMBERS, key=len, reverse=True))
_HOLIDAY = "|".join(sorted(map(re.escape, [*_FIXED, *_FROM_EASTER]), key=len, reverse=True))
DATE = (
    rf"(?:(?:{'|'.join(WEEKDAYS)}),? )?(?:\d{{4}}-\d{{1,2}}-\d{{1,2}}|\d{{1,2}}[/.]\d{{1,2}}[/.]\d{{4}}"
    rf"|(?:the )?\d{{1,2}}(?:st|nd|rd|th)?(?: of)? (?:{MONTH})\.?(?:,? (?:of )?\d{{4}})?"
    rf"|(?:{MONTH})\.? (?:the )?\d{{1,2}}(?:st|nd|rd|th)?(?:,? (?:of )?\d{{4}})?"
    rf"|(?:the )?(?:next )?(?:{_HOLIDAY})(?:(?: day)?(?: of| in|,)? \d{{4}})?|today|tomorrow|yesterday"
    r"|(?:the )?(?:end|start|beginning) of (?:the year|this year|\d{4}))"
)
"""Regular expression for a date. It has no groups."""
_PARTS = re.compile(
    rf"(?:the )?(?:(?P<iso>\d{{4}}-\d{{1,2}}-\d{{1,2}})|(?P<a>\d{{1,2}})[/.](?P<b>\d{{1,2}})[/.](?P<y1>\d{{4}})"
    rf"|(?P<d2>\d{{1,2}})(?:st|nd|rd|th)?(?: of)? (?P<m2>{MONTH})\.?(?:,? (?:of )?(?P<y2>\d{{4}}))?"
    rf"|(?P<m3>{MONTH})\.? (?:the )?(?P<d3>\d{{1,2}})(?:st|nd|rd|th)?(?:,? (?:of )?(?P<y3>\d{{4}}))?"
    rf"|(?:next )?(?P<holiday>{_HOLIDAY})(?:(?: day)?(?: of| in|,)? (?P<y4>\d{{4}}))?|(?P<day>today|tomorrow|yesterday)"
    r"|(?P<edge>end|start|beginning) of (?P<y5>the year|this year|\d{4}))",
    re.IGNORECASE,
)


def easter(year: int) -> date:
    """Return Easter Sunday of the Western churches, by the algorithm of Meeus, Jones and Butcher."""
    a, (b, c) = year % 19, divmod(year, 100)
    d, e = divmod(b, 4)
    g = (8 * b + 13) // 25
    h = (19 * a + b - d - g + 15) % 30
    i, k = divmod(c, 4)
    n = (32 + 2 * e + 2 * i - h - k) % 7
    m = (a + 11 * h + 22 * n) // 451
    month, day = divmod(h + n - 7 * m + 114, 31)
    return date(year, month, day + 1)


def calendar_day(year: int, month: int, day: int) -> date:
    if not FIRST_YEAR <= year <= LAST_YEAR:
        raise NotForProgram(f"The year must be from {FIRST_YEAR} to {LAST_YEAR}.")
    try:
        return date(year, month, day)
    except ValueError as exc:
        raise NotForProgram(f"The date {year}-{month:02}-{day:02} does not exist.") from exc


def read_date(text: str, today: date, *, past: bool = False) -> date:
    """Read `text` as a date. Without a year it is the next one from `today` on, or if `past` the most recent."""
    bare = re.sub(rf"^(?:{'|'.join(WEEKDAYS)}),? ", "", text.strip(), flags=re.IGNORECASE)
    match = _PARTS.fullmatch(bare)
    if match is None:
        raise NotForProgram(f"{text!r} is not a date that the program can read.")
    if match["iso"]:
        return calendar_day(*(int(part) for part in match["iso"].split("-")))
    if match["a"]:
        a, b = int(match["a"]), int(match["b"])
        if a <= 12 and b <= 12 and a != b:
            raise NotForProgram(f"The date {text!r} is ambiguous. Write the month as a word.")
        return calendar_day(int(match["y1"]), min(a, b) if a != b else a, max(a, b))
    if match["day"]:
        return today + timedelta(days={"today": 0, "tomorrow": 1, "yesterday": -1}[match["day"].casefold()])
    if match["edge"]:
        year = int(match["y5"]) if match["y5"].isdigit() else today.year
        return calendar_day(year, 12, 31) if match["edge"].casefold() == "end" else calendar_day(year, 1, 1)
    if match["holiday"]:
        return _holiday(match["holiday"].casefold(), match["y4"], today, past=past)
    month = MONTH_NUMBERS[(match["m2"] or match["m3"]).casefold()]
    day, year = int(match["d2"] or match["d3"]), match["y2"] or match["y3"]
    return _in_year(lambda each: calendar_day(each, month, day), year, today, past=past)


def _holiday(name: str, year: str | None, today: date, *, past: bool) -> date:
    if name in _FIXED:
        return _in_year(lambda each: calendar_day(each, *_FIXED[name]), year, today, past=past)
    days = timedelta(days=_FROM_EASTER[name])
    return _in_year(lambda each: easter(calendar_day(each, 1, 1).year) + days, year, today, past=past)


def _in_year(make: Callable[[int], date], year: str | None, today: date, *, past: bool) -> date:
    if year is not None:
        return make(int(year))
    this = make(today.year)
    if past:
        return this if this <= today else make(today.year - 1)
    return this if this >= today else make(today.year + 1)


def write_date(day: date) -> str:
    """Return `day` in words, such as `Friday, 25 December 2026`."""
    return f"{WEEKDAYS[day.weekday()]}, {day.day} {MONTHS[day.month - 1]} {day.year}"


def short_date(day: date) -> str:
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"
