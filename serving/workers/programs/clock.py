"""Times of a clock for the calendar: adding hours and minutes, distances between times, and ways to write a time."""

import re

from serving.workers.programs.expressions import NUMBER, read_number
from serving.workers.programs.process import NotForProgram
from serving.workers.programs.rules import ExactAnswer, Rule, pattern

_DAY = 24 * 60
_HOURS = "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
_PART = r"(?: (?:in the|this|that) (?:morning|afternoon|evening)| at night| tonight)?"
TIME = rf"(?:(?:(?:half past|quarter past|quarter to|a quarter past|a quarter to) (?:\d{{1,2}}|{_HOURS})|noon|midnight|12 noon|12 midnight|\d{{1,2}}:\d\d ?(?:h\b)?(?:am|pm|a\.m\.|p\.m\.)?|(?:\d{{1,2}}|{_HOURS}) ?(?:am|pm|a\.m\.|p\.m\.|o'clock(?: (?:am|pm|in the morning|in the afternoon|in the evening))?)|\d{{1,2}}|{_HOURS}){_PART})"
"""Regular expression for a time of the day. It has no groups."""


def read_time(text: str) -> tuple[int, str]:
    """Return the minutes since midnight, and which half of the day the time names: `am`, `pm`, `24` or nothing.

    Raises:
        NotForProgram: there is no such time.
    """
    text = re.sub(r"(?:in the|this|that) morning", "am", text.casefold().replace(".", ""))
    text = re.sub(r"(?:in the|this|that) (?:afternoon|evening)", "pm", text)
    text = re.sub(
        r"\b((?:six|seven|eight|nine|ten|eleven|[6-9]|1[01])(?::\d\d)?) (?:at night|tonight)", r"\1 pm", text
    )
    if text.endswith(("at night", "tonight")):
        raise NotForProgram("The time does not say which half of the day it means.")
    if "noon" in text or "midnight" in text:
        return (12 * 60 if "noon" in text else 0), "24"
    half = "am" if text.endswith("am") else "pm" if text.endswith("pm") else ""
    shift = 30 if "half" in text else 15 if "quarter past" in text else -15 if "quarter to" in text else 0
    number = re.search(rf"(\d{{1,2}})(?::(\d\d))?|\b(?:{_HOURS})\b", text)
    assert number is not None
    hour = int(number[1] or read_number(number[0]))
    minute = int(number[2] or 0)
    if hour > 23 or minute > 59 or (half and not 1 <= hour <= 12):
        raise NotForProgram("There is no such time.")
    half = half or ("24" if hour > 12 or hour == 0 else "")
    hour = hour % 12 + (12 if half == "pm" else 0) if half in ("am", "pm") else hour
    return hour * 60 + minute + shift, half


def _written(minutes: int, half: str) -> str:
    hour, minute = divmod(minutes % _DAY, 60)
    if half == "24":
        return f"{hour}:{minute:02}"
    name = {"am": " am", "pm": " pm", "": ""}[half and ("am" if hour < 12 else "pm")]
    return f"{(hour - 1) % 12 + 1}:{minute:02}{name}"


def _shift(match: re.Match[str]) -> ExactAnswer:
    start, half = read_time(match["time"])
    amount = (
        read_number(match["n"])
        if match["n"].casefold() not in ("an", "a", "half an")
        else read_number("0.5" if "half" in match["n"].casefold() else "1")
    )
    minutes = amount * (60 if match["unit"].casefold().startswith("hour") else 1)
    if minutes.denominator != 1 or not 0 <= minutes <= _DAY:
        raise NotForProgram("The distance must be at most 24 hours.")
    is_back = match.groupdict().get("back") is not None
    text = _written(start + (-1 if is_back else 1) * int(minutes), half)
    return ExactAnswer(f"It is {text}.", text)


def _between(match: re.Match[str]) -> ExactAnswer:
    (first, half), (last, other) = read_time(match["time"]), read_time(match["time2"])
    if half != other and "" in (half, other) and "24" not in (half, other):
        raise NotForProgram("The times do not say which half of the day they mean.")
    distance = last - first
    if distance <= 0:
        distance += 12 * 60 if not half and not other else _DAY
    unit = (match.groupdict().get("unit") or "").casefold()
    hours, minutes = divmod(distance, 60)
    if unit.startswith("minute"):
        return ExactAnswer(f"It is {distance} minutes.", str(distance))
    if minutes and unit:
        raise NotForProgram("The distance is not a whole number of hours.")
    text = f"{hours} hour{'' if hours == 1 else 's'}" + (f" and {minutes} minutes" if minutes else "")
    return ExactAnswer(f"It is {text}.", str(hours) if not minutes else text)


def _form(match: re.Match[str]) -> ExactAnswer:
    minutes, half = read_time(match["time"])
    wants_24 = match["form"] == "24"
    if half == "" or ((half == "24") == wants_24 and minutes >= 13 * 60):
        raise NotForProgram("The time does not say which half of the day it means.")
    text = f"{minutes // 60 % 24:02}:{minutes % 60:02}" if wants_24 else _written(minutes, "pm")
    return ExactAnswer(f"{match['time']} is {text}.", text)


def _in_digits(match: re.Match[str]) -> ExactAnswer:
    minutes, half = read_time(match["time"])
    if not re.search(r"past|to|o'clock|noon|midnight", match["time"], re.IGNORECASE):
        raise NotForProgram("The time is written in digits already.")
    text = _written(minutes, half)
    return ExactAnswer(f"{match['time'][0].upper()}{match['time'][1:]} is {text}.", text)


_T, _T2 = rf"(?P<time>{TIME})", rf"(?P<time2>{TIME})"
_D = rf"(?P<n>half an|an?|{NUMBER}) (?P<unit>hours?|minutes?)"
_BEGINS = r"(?:starts?|started|begins?|began|leaves?|left|opens?|departs?|takes off|goes to bed|went to bed|starts work|is from|sets off|set off|(?:was|were|got|gets|get|woke|wakes) up)"
_ENDS = r"(?:ends?|ended|finish(?:es|ed)?|stops?|arrives?|arrived|closes?|lands?|landed|gets? (?:in|there|home|back|up)|got (?:in|there|home|back|up)|wakes? up|woke up|went to bed|goes to bed|is over|was over|comes? back|came back)"
_WHO = r"(?:(?:if )?(?:an?|the|my|our|his|her|this) [a-z ]{2,30}|i|we|he|she|they)"
CLOCK: tuple[Rule, ...] = (
    (pattern(rf"(?:if )?(?:it is|it's) {_T}(?: now)?[.,]? what time (?:will it be|is it|will it be then) (?:in )?{_D}(?: later| from now)?"), _shift),
    (pattern(rf"(?:if )?(?:it is|it's) {_T}(?: now)?[.,]? what time was it (?P<back>){_D} ago"), _shift),
    (pattern(rf"what time (?:is it|is|will it be) {_D} (?:after|past|from|later than) {_T}"), _shift),
    (pattern(rf"what time (?:is it|is|was it) {_D} (?P<back>before) {_T}"), _shift),
    (pattern(rf"(?:an?|the|my|our) [a-z ]{{2,30}} {_BEGINS} at {_T} and (?:lasts|takes|is|goes on for) {_D}(?: long)?\. (?:when|at what time|what time) (?:does|will) (?:it|the [a-z ]+) (?:end|finish|be over|arrive)"), _shift),
    (pattern(rf"{_WHO} {_BEGINS} (?:at )?{_T}(?:,? and|,)(?: then)?(?: (?:i|we|he|she|it|they))? {_ENDS} (?:at )?{_T2}[.,;]? how (?:long|many (?P<unit>hours|minutes)) (?:does|do|is|did|was|were|will|am|are) (?:it|that|the [a-z ]+?|i|he|she|we|they)(?: last| take| open| up(?: for)?| up for| away(?: for)?| sleep(?: for)?| asleep(?: for)?| be)?"), _between),
    (pattern(rf"how many (?P<unit>hours|minutes) (?:are|is|are there|is it|lie)?\s*(?:there )?(?:from|between) {_T} (?:to|and|until|till) {_T2}"), _between),
    (pattern(rf"how long is it (?:from|between) {_T} (?:to|and|until|till) {_T2}"), _between),
    (pattern(rf"(?:what is|write|how do you write|convert) {_T} (?:in|to|using|on a) (?:the )?(?P<form>12|24)[- ]?(?:hour)?(?: time| format| clock| notation)*"), _form),
    (pattern(rf"(?:what time is|write|how do you write|what is) {_T}(?: in digits| in numbers| as a digital time)?"), _in_digits),
)  # fmt: skip
