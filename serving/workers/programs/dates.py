"""Calendar: weekdays, distances between dates, leap years, months, holidays, and the time in other zones.

It covers the Gregorian calendar of the years 1600 to 9999, and holidays whose date follows from a rule. A
date in digits that can be read in two ways, such as 3/4/2025, is rejected. Time zones are those of the IANA
database, and are found by the names of cities.
"""

import re
from calendar import isleap, monthrange
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from conductor.model.usage import FREE, Price
from serving.workers.programs.clock import CLOCK, read_time
from serving.workers.programs.date_text import (
    DATE,
    FIRST_YEAR,
    LAST_YEAR,
    MONTH,
    MONTH_NUMBERS,
    MONTHS,
    ORDINALS,
    WEEKDAYS,
    calendar_day,
    read_date,
    short_date,
    write_date,
)
from serving.workers.programs.expressions import NUMBER, UNITS, read_number
from serving.workers.programs.process import NotForProgram
from serving.workers.programs.program import ProgramWorker
from serving.workers.programs.question import PlainQuestion
from serving.workers.programs.rules import ExactAnswer, Rule, answer_by, pattern
from serving.workers.programs.time_zones import OTHER_TIMES, zone_of

MOST_DAYS = 1_000_000

_SEASONS = ["spring", "summer", "autumn", "winter"]


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if abs(count) == 1 else 's'}"


_WHO = r"(?:(?:an?|the|my|our|his|her) [a-z]+(?: [a-z]+)?|i|he|she|they|we|[a-z]+)"
NUMBER_WORDS = UNITS[1:13]


def _now() -> datetime:
    return datetime.now(UTC)


class Calendar(ProgramWorker):
    """Program that answers questions about dates and times."""

    topic = "dates, weekdays, holidays and time zones"
    packages = ("babel", "countryinfo", "pycountry")

    def __init__(
        self,
        name: str,
        price: Price | None = FREE,
        clock: Callable[[], datetime] = _now,
    ) -> None:
        super().__init__(name, price)
        self.clock = clock

    def answer(self, question: PlainQuestion) -> ExactAnswer:
        return answer_by((*self._rules, *CLOCK), question)

    @property
    def _today(self) -> date:
        return self.clock().date()

    @property
    def _rules(self) -> tuple[Rule, ...]:
        number = rf"(?P<n>{NUMBER}|an?|one)"
        unit = r"(?P<unit>days?|weeks?|months?|years?)"
        return (
            (pattern(r"what (?:is (?:the )?(?:date|day|weekday)(?: of the week)?|day(?: of the week)? is it|date is it|is the date)(?: (?P<when>today|tomorrow|now))?|what (?:was|is) yesterday's date|what (?:is|was) (?P<when3>today|tomorrow|yesterday)'s (?:date|day)|what (?P<when2>is today|day is it|month is it|year is it)(?: today| now)?"), self._now_date),
            (pattern(rf"(?:what|which) (?:day|weekday|day of the week)(?: of the week)? (?:is|was|will|does|did)(?: it on| be)? (?P<date>{DATE})(?: be| fall on| fall)?(?: on)?"), self._weekday),
            (pattern(rf"(?:on )?(?:what|which) (?:day|weekday|day of the week)(?: of the week)? (?:does|did|will|was) (?P<date>{DATE}) (?:fall|fall on|be|be on|on)"), self._weekday),
            (pattern(rf"when (?:is|was|will be) (?P<date>{DATE})"), self._when),
            (pattern(rf"(?:how many|what is the number of) (?P<unit>days|weeks)(?: are there| are| left| remain| is it)? (?:until|till|to|before|left until) (?P<date>{DATE})"), self._until),
            (pattern(rf"how (?:long|many (?P<unit>days|weeks))(?: is it| has it been| have passed)? since (?P<date>{DATE})"), self._since),
            (pattern(rf"how many (?P<unit>days|weeks)(?: are there| are| is it| lie)? (?:between|from) (?P<date>{DATE}) (?:and|to|until) (?P<date2>{DATE})"), self._between),
            (pattern(rf"(?:what|which) (?:date|day) (?:is|was|will be|will it be) (?:it )?{number} {unit} (?P<way>after|before|from|ago|later)(?: (?P<date>{DATE}|now))?|(?P<x>(?!))"), self._shift_date),
            (pattern(rf"(?:what|which) (?:is the )?(?:date|day)(?: of the week)?(?: is it| will it be| is)? (?P<way>in) {number} {unit}(?P<date>(?!))?"), self._shift_date),
            (pattern(rf"(?:what is )?{number} {unit} (?P<way>after|before|from) (?P<date>{DATE}|now)"), self._shift_date),
            (pattern(rf"(?:(?:(?:an?|the|my|our|this) )?[a-z ]{{2,30}} (?:is|are|was|were) (?:due|ready|planned|finished|over|booked)|it is|it was|it's) {number} {unit} (?P<way>after|before|from) (?P<date>{DATE})[.,;]? (?:(?:what|which) (?:date|day) is (?:that|it)|when is (?:that|it))"), self._shift_date),
            (pattern(rf"(?:if )?{_WHO} (?:am|is|was|were) born (?:on |in )?(?P<born>{DATE}|\d{{4}})[.,;]? how old (?:did|was|were|will|would|is|are|am) (?:he|she|they|i|it)(?: turn| be)?(?: on (?:his|her|their|my|its) birthday)?(?: (?:now|today|in (?P<year>\d{{4}})))?"), self._age_in),
            (pattern(r"how old (?:is|will|would)(?: be)? (?:someone|somebody|a person|a man|a woman)(?: who (?:was|is))? born in (?P<born>\d{4})(?: be| turn)?(?: (?:now|today|in (?P<year>\d{4})))?"), self._age_in),
            (pattern(r"(?:is|was|will) (?:the year )?(?P<year>\d{4}) (?:going to be |be )?a leap[ -]?year"), _leap),
            (pattern(r"(?:when|what|which year) (?:is|was) the (?P<way>next|last|previous) leap year(?: (?:after|before) (?P<year>\d{4}))?"), self._next_leap),
            (pattern(rf"how many days (?:are |does |did |has )?(?:there )?(?:in )?(?P<month>{MONTH})(?: (?:of )?(?P<year>\d{{4}}))?(?: have)?(?P<leap> in a leap year| in a (?:normal|common|non-leap) year)?"), _month_days),
            (pattern(rf"how many days (?:are |do )?(?:there )?(?:in )?(?P<months>(?:{MONTH})(?:(?:,|,? and|,? plus) (?:{MONTH}))+)(?: (?:of |in )?(?P<year>\d{{4}}))?(?: have)?(?: put together| together| combined| in total| altogether| added together)?"), _months_days),
            (pattern(rf"(?:what|which) (?:day|weekday)(?: of the week)? (?:is|will|was)(?: it)?(?: be)? (?P<n>{NUMBER}|an?) (?P<unit>days?|weeks?) (?P<way>after|before|from) an? (?P<day>{'|'.join(WEEKDAYS)})"), _weekday_after),
            (pattern(rf"(?:what|which) (?P<what>month) (?:is|has|comes)(?: the)? (?:month )?number (?P<n>\d+|{'|'.join(NUMBER_WORDS)})"), _month_number),
            (pattern(rf"(?:what|which) number (?:month )?(?:is|of month is) (?:the month )?(?P<month>{MONTH})"), _number_of_month),
            (pattern(r"how many days (?:are |does |did )?(?:there )?(?:in )?(?:the year )?(?P<year>\d{4})(?: have)?"), _year_days),
            (pattern(rf"(?:what|which) (?P<what>month|day|season)(?: of the (?:year|week))? (?:comes|is|follows|is the (?:month|day|one|season)|the (?:month|day|season))? ?(?:right |directly |immediately )?(?P<way>after|before|follows|) ?(?P<name>{MONTH}|{'|'.join(WEEKDAYS)}|{'|'.join(_SEASONS)}|fall)"), _neighbour),
            (pattern(rf"(?:what|which) is the (?P<what>month|day|season) (?P<way>after|before) (?P<name>{MONTH}|{'|'.join(WEEKDAYS)}|{'|'.join(_SEASONS)}|fall)"), _neighbour),
            (pattern(rf"(?:what|which) (?P<what>month|day|season) (?:comes|is|lies) between (?P<name>{MONTH}|{'|'.join(WEEKDAYS)}|{'|'.join(_SEASONS)}) and (?P<other>{MONTH}|{'|'.join(WEEKDAYS)}|{'|'.join(_SEASONS)})"), _middle),
            (pattern(rf"if (?P<when>today|tomorrow|yesterday) (?:is|was|will be) (?:an? )?(?P<day>{'|'.join(WEEKDAYS)}),? (?:then )?(?:what|which) day(?: of the week)? (?:is|was|will be|will it be|is it|was it) (?:(?P<target>today|tomorrow|yesterday|the day after tomorrow|the day before yesterday)|(?:in )?(?P<n>{NUMBER}) days(?P<ago> ago| from now| from today|))"), _weekday_if),
            (pattern(rf"(?:(?:what|which) (?:is|month is|day is|one is) the|name the|the) (?P<n>first|last|{'|'.join(ORDINALS)}) (?P<what>month|day) of the (?P<of>year|week)"), _nth),
            (pattern(r"how many (?P<what>days|seasons|months) (?:are |does |has )?(?:there )?(?:in )?(?:a|one|the) (?P<of>week|year)(?: have)?"), _how_many),
            (pattern(r"(?:list|name|what are|give me|tell me) (?:all )?(?:the |all )?(?:names of the )?(?:12 |twelve |seven |7 |four |4 )?(?P<what>months|days|seasons)(?: of the (?:year|week)| in (?:a|the) (?:year|week))?(?:,? (?:starting|beginning) with (?P<first>[a-z]+))?(?: in order)?"), _list_names),
            (pattern(r"(?:what(?: is the)?(?: current)? |(?:the )?(?:current )?(?=time in ))time(?: is it| is)?(?: right)?(?: now)?(?: in (?P<place>[a-z .'-]+?))?(?: now| right now)?"), self._time),
            *((pattern(each), self._other_time) for each in OTHER_TIMES),
        )  # fmt: skip

    def _now_date(self, match: re.Match[str]) -> ExactAnswer:
        text = match[0].casefold()
        day = self._today + timedelta(days=1 if "tomorrow" in text else -1 if "yesterday" in text else 0)
        name = "Tomorrow is" if "tomorrow" in text else "Yesterday was" if "yesterday" in text else "Today is"
        return ExactAnswer(f"{name} {write_date(day)} (UTC).", short_date(day))

    def _weekday(self, match: re.Match[str]) -> ExactAnswer:
        is_past = " was " in match[0].casefold() or " did " in match[0].casefold()
        day = read_date(match["date"], self._today, past=is_past)
        verb = "was" if day < self._today else "is"
        return ExactAnswer(f"{short_date(day)} {verb} a {WEEKDAYS[day.weekday()]}.", WEEKDAYS[day.weekday()])

    def _when(self, match: re.Match[str]) -> ExactAnswer:
        day = read_date(match["date"], self._today, past=" was " in match[0].casefold())
        name = match["date"][0].upper() + match["date"][1:]
        return ExactAnswer(
            f"{name} {'was' if day < self._today else 'is'} on {write_date(day)}.", short_date(day)
        )

    def _until(self, match: re.Match[str]) -> ExactAnswer:
        day = read_date(match["date"], self._today)
        days = (day - self._today).days
        if days < 0:
            raise NotForProgram(f"The date {short_date(day)} is in the past.")
        return self._distance(
            days, match["unit"], f"until {short_date(day)} (counted from {short_date(self._today)})"
        )

    def _since(self, match: re.Match[str]) -> ExactAnswer:
        day = read_date(match["date"], self._today, past=True)
        days = (self._today - day).days
        if days < 0:
            raise NotForProgram(f"The date {short_date(day)} is in the future.")
        unit = match["unit"] or "days"
        return self._distance(days, unit, f"since {short_date(day)} (counted to {short_date(self._today)})")

    def _between(self, match: re.Match[str]) -> ExactAnswer:
        texts = [match["date"], match["date2"]]
        if not re.search(r"\d{4}|today|tomorrow|yesterday", texts[0]) and re.search(r"\d{4}$", texts[1]):
            texts[0] = f"{texts[0]} {texts[1][-4:]}"
        first = read_date(texts[0], self._today)
        is_near = re.search(r"today|tomorrow|yesterday", texts[1], re.IGNORECASE)
        last = read_date(texts[1], self._today if is_near else first)
        return self._distance(
            abs((last - first).days), match["unit"], f"between {short_date(first)} and {short_date(last)}"
        )

    def _distance(self, days: int, unit: str, where: str) -> ExactAnswer:
        text = _plural(days, "day")
        if unit.casefold() == "weeks":
            weeks, rest = divmod(days, 7)
            text = _plural(weeks, "week") + (f" and {_plural(rest, 'day')}" if rest else "")
        return ExactAnswer(f"{'There is' if text.startswith('1 ') else 'There are'} {text} {where}.", text)

    def _shift_date(self, match: re.Match[str]) -> ExactAnswer:
        way, start = match["way"].casefold(), match["date"] or "today"
        start = "today" if start.casefold() == "now" else start
        if way in ("after", "before", "from") and match["date"] is None:
            raise NotForProgram("The question does not say from which date to count.")
        count = 1 if match["n"].casefold() in ("a", "an") else int(read_number(match["n"]))
        day = read_date(start, self._today)
        sign = -1 if way in ("before", "ago") else 1
        result = _shift(day, sign * count, match["unit"].casefold().removesuffix("s"))
        where = f"{_plural(count, match['unit'].casefold().removesuffix('s'))} {'before' if sign < 0 else 'after'} {short_date(day)}"
        return ExactAnswer(f"{where[0].upper()}{where[1:]} is {write_date(result)}.", short_date(result))

    def _age_in(self, match: re.Match[str]) -> ExactAnswer:
        """Answer the age on the birthday in a year, or both ages of the year if the birthday is not clear."""
        born, year = re.search(r"\d{4}", match["born"]), int(match["year"] or self._today.year)
        if born is None or year <= int(born[0]):
            raise NotForProgram("The question must name the year of birth and a later year.")
        age = year - int(born[0])
        if match["year"] and re.search(r"turn|birthday|will|would", match[0], re.IGNORECASE):
            return ExactAnswer(f"The age on the birthday in {year} is {age}.", str(age))
        if not match["year"] and match["born"] != born[0]:
            day, today = read_date(match["born"], self._today, past=True), self._today
            age -= (today.month, today.day) < (day.month, day.day)
            return ExactAnswer(f"The age on {short_date(today)} is {age}.", str(age))
        return ExactAnswer(f"The age is {age - 1} until the birthday in {year}, and {age} from then on.")

    def _next_leap(self, match: re.Match[str]) -> ExactAnswer:
        step = 1 if match["way"].casefold() == "next" else -1
        year = int(match["year"] or self._today.year) + step
        while not isleap(year):
            year += step
        return ExactAnswer(
            f"The {match['way'].casefold()} leap year is {calendar_day(year, 1, 1).year}.", str(year)
        )

    def _time(self, match: re.Match[str]) -> ExactAnswer:
        zone = zone_of(match["place"] or "UTC")
        now = self.clock().astimezone(ZoneInfo(zone))
        where = f"in {match['place'].title()}" if match["place"] else "in UTC"
        return ExactAnswer(f"It is {now:%H:%M} on {write_date(now.date())} {where}.", f"{now:%H:%M}")

    def _other_time(self, match: re.Match[str]) -> ExactAnswer:
        minutes, half = read_time(match["time"])
        if (half == "" and ":" not in match["time"]) or not match["place"] or not match["other"]:
            raise NotForProgram(
                "The time does not say which half of the day it means. Write a time such as 15:30 or 3 pm."
            )
        day = self._today
        if month := match.groupdict().get("month"):
            day = read_date(f"15 {month}", day)
        hour, minute = divmod(minutes % (24 * 60), 60)
        here = datetime(*day.timetuple()[:3], hour, minute, tzinfo=ZoneInfo(zone_of(match["place"])))
        there = here.astimezone(ZoneInfo(zone_of(match["other"])))
        shift = (there.date() - here.date()).days
        days = {0: "", 1: " on the next day", -1: " on the day before"}.get(shift, f" {shift} days later")
        return ExactAnswer(
            f"When it is {here:%H:%M} in {match['place'].title()} on {short_date(here.date())}, it is {there:%H:%M} in {match['other'].title()}{days}.",
            f"{there:%H:%M}",
        )


def _shift(day: date, count: int, unit: str) -> date:
    days = count * {"day": 1, "week": 7}.get(unit, 0)
    if abs(count) > MOST_DAYS or abs(days) > MOST_DAYS:
        raise NotForProgram(f"The distance must be at most {MOST_DAYS:,} days.")
    if days or unit in ("day", "week"):
        try:
            return day + timedelta(days=days)
        except OverflowError as exc:
            raise NotForProgram(f"The result must be in the years {FIRST_YEAR} to {LAST_YEAR}.") from exc
    year, month = divmod(day.year * 12 + day.month - 1 + count * (12 if unit == "year" else 1), 12)
    if not FIRST_YEAR <= year <= LAST_YEAR:
        raise NotForProgram(f"The result must be in the years {FIRST_YEAR} to {LAST_YEAR}.")
    return calendar_day(year, month + 1, min(day.day, monthrange(year, month + 1)[1]))


def _months_days(match: re.Match[str]) -> ExactAnswer:
    months = [MONTH_NUMBERS[each.casefold()] for each in re.findall(MONTH, match["months"], re.IGNORECASE)]
    if 2 in months and not match["year"]:
        raise NotForProgram("The length of February depends on the year.")
    days = sum(monthrange(int(match["year"] or 2023), month)[1] for month in months)
    return ExactAnswer(
        f"{', '.join(MONTHS[each - 1] for each in months[:-1])} and {MONTHS[months[-1] - 1]} have {days} days together.",
        str(days),
    )


def _weekday_after(match: re.Match[str]) -> ExactAnswer:
    count = 1 if match["n"].casefold() in ("a", "an") else int(read_number(match["n"]))
    days = (
        count
        * (7 if match["unit"].casefold().startswith("week") else 1)
        * (-1 if match["way"].casefold() == "before" else 1)
    )
    day = WEEKDAYS[(WEEKDAYS.index(match["day"].capitalize()) + days) % 7]
    return ExactAnswer(f"It is a {day}.", day)


def _month_number(match: re.Match[str]) -> ExactAnswer:
    number = int(read_number(match["n"]))
    if not 1 <= number <= 12:
        raise NotForProgram("A year has twelve months.")
    return ExactAnswer(f"Month number {number} is {MONTHS[number - 1]}.", MONTHS[number - 1])


def _number_of_month(match: re.Match[str]) -> ExactAnswer:
    number = MONTH_NUMBERS[match["month"].casefold()]
    return ExactAnswer(f"{MONTHS[number - 1]} is month number {number}.", str(number))


def _leap(match: re.Match[str]) -> ExactAnswer:
    year = calendar_day(int(match["year"]), 1, 1).year
    text = "Yes" if isleap(year) else "No"
    return ExactAnswer(f"{text}, {year} is {'' if isleap(year) else 'not '}a leap year.", text)


def _month_days(match: re.Match[str]) -> ExactAnswer:
    month, year, leap = MONTH_NUMBERS[match["month"].casefold()], match["year"], match["leap"] or ""
    name = MONTHS[month - 1]
    if month == 2 and year is None and not leap:
        return ExactAnswer("February has 28 days, and 29 in a leap year.")
    days = monthrange(int(year) if year else 2024 if leap == " in a leap year" else 2023, month)[1]
    when = f" {year}" if year else leap
    return ExactAnswer(
        f"{name} has {days} days{leap}." if not year else f"{name}{when} has {days} days.", str(days)
    )


def _year_days(match: re.Match[str]) -> ExactAnswer:
    year = calendar_day(int(match["year"]), 1, 1).year
    return ExactAnswer(f"{year} has {366 if isleap(year) else 365} days.", str(366 if isleap(year) else 365))


def _names_of(what: str) -> list[str]:
    return {"month": MONTHS, "day": WEEKDAYS, "season": _SEASONS}[what.casefold().removesuffix("s")]


def _neighbour(match: re.Match[str]) -> ExactAnswer:
    what, name = match["what"], match["name"].casefold()
    names = _names_of(what)
    name = (
        MONTHS[MONTH_NUMBERS[name] - 1].casefold()
        if what.casefold() == "month" and name in MONTH_NUMBERS
        else {"fall": "autumn"}.get(name, name)
    )
    if name not in [each.casefold() for each in names] or not (
        match["way"] or "follows" in match[0].casefold()
    ):
        raise NotForProgram(f"The question must name a {what} and ask what comes before or after it.")
    step = -1 if match["way"].casefold() == "before" else 1
    at = [each.casefold() for each in names].index(name)
    result = names[(at + step) % len(names)]
    return ExactAnswer(
        f"{result[0].upper()}{result[1:]} comes {'before' if step < 0 else 'after'} {names[at]}.", result
    )


def _middle(match: re.Match[str]) -> ExactAnswer:
    names = _names_of(match["what"])
    lower = [name.casefold() for name in names]
    first, last = (
        MONTHS[MONTH_NUMBERS[n] - 1].casefold() if (n := match[g].casefold()) in MONTH_NUMBERS else n
        for g in ("name", "other")
    )
    if first not in lower or last not in lower or (lower.index(last) - lower.index(first)) % len(names) != 2:
        raise NotForProgram(
            f"There is not exactly one {match['what']} between {match['name']} and {match['other']}."
        )
    result = names[(lower.index(first) + 1) % len(names)]
    return ExactAnswer(
        f"{result[0].upper()}{result[1:]} comes between {match['name']} and {match['other']}.", result
    )


def _weekday_if(match: re.Match[str]) -> ExactAnswer:
    offsets = {
        "today": 0,
        "tomorrow": 1,
        "yesterday": -1,
        "the day after tomorrow": 2,
        "the day before yesterday": -2,
    }
    target = match["target"]
    days = (
        offsets[target.casefold()]
        if target
        else int(read_number(match["n"])) * (-1 if match["ago"] == " ago" else 1)
    )
    today = [name.casefold() for name in WEEKDAYS].index(match["day"].casefold()) - offsets[
        match["when"].casefold()
    ]
    result = WEEKDAYS[(today + days) % 7]
    when = target or f"{match['n']} days {'ago' if match['ago'] == ' ago' else 'later'}"
    return ExactAnswer(f"If {match['when']} is {match['day'].capitalize()}, {when} is {result}.", result)


def _nth(match: re.Match[str]) -> ExactAnswer:
    what, of, nth = match["what"].casefold(), match["of"].casefold(), match["n"].casefold()
    if (what, of) != ("month", "year"):
        raise NotForProgram(
            "Only the months of a year are numbered, because the first day of the week differs between countries."
        )
    result = MONTHS[11 if nth == "last" else ORDINALS[nth] - 1]
    return ExactAnswer(f"{result} is the {nth} month of the year.", result)


def _how_many(match: re.Match[str]) -> ExactAnswer:
    counts = {("days", "week"): 7, ("seasons", "year"): 4, ("months", "year"): 12}
    what, of = match["what"].casefold(), match["of"].casefold()
    if (what, of) not in counts:
        return ExactAnswer("A year has 365 days; a leap year has 366.")
    return ExactAnswer(f"A {of} has {counts[what, of]} {what}.", str(counts[what, of]))


def _list_names(match: re.Match[str]) -> ExactAnswer:
    names = _names_of(match["what"])
    if first := match["first"]:
        lower = [name.casefold() for name in names]
        start = {"fall": "autumn"}.get(first.casefold(), first.casefold())
        if start not in lower:
            raise NotForProgram(f"{first!r} is not one of the {match['what']}.")
        names = names[lower.index(start) :] + names[: lower.index(start)]
    text = f"{', '.join(names[:-1])} and {names[-1]}"
    return ExactAnswer(f"{text[0].upper()}{text[1:]}.", text)
