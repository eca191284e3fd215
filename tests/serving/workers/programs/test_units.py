import itertools
from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.workers.programs.currencies import exchange_rates
from serving.workers.programs.process import NotForProgram
from serving.workers.programs.units import UNITS, UnitConverter, convert
from tests.serving.workers.programs.phrasings import NOT_FOR_ANY, check, check_refusals, never_fails, say

CONVERTER = UnitConverter("converter")
ANSWERS = {
    "How many minutes are in an hour?": "1 hour is 60 minutes.",
    "How many hours are there in a day?": "1 day is 24 hours.",
    "How many metres are in a kilometre?": "1 kilometre is 1,000 metres.",
    "How many days are there in 3 weeks?": "3 weeks are 21 days.",
    "how many minutes in a quarter of an hour": "A quarter of an hour is 15 minutes.",
    "An hour has 60 minutes. How many minutes is half an hour?": "Half an hour is 30 minutes.",
    "One hour is 60 minutes. How many minutes are two hours?": "2 hours are 120 minutes.",
    "Convert 5 miles to km": "5 miles are 8.04672 kilometres.",
    "10 kg in pounds": "10 kilograms are about 22.0462 pounds.",
    "5 feet in inches": "5 feet are 60 inches.",
    "convert 100 celsius to fahrenheit": "100 degrees Celsius are 212 degrees Fahrenheit.",
    "-40 celsius in fahrenheit": "-40 degrees Celsius are -40 degrees Fahrenheit.",
    "60 mph in km/h": "60 miles per hour are 96.56064 kilometres per hour.",
    "500 g to kg": "500 grams are 0.5 kilograms.",
    "how many cups in a gallon": "1 gallon is 16 cups.",
    "how many litres in a gallon": "1 gallon is about 3.78541 litres (US) or 4.54609 litres (imperial).",
    "5 tons in kg": "5 tons is 4,535.9237 kilograms (US) or about 5,080.23 kilograms (British) or 5,000 kilograms (metric).",
    "How many days has a leap year?": "A leap year has 366 days.",
    "how many days in a year": "A year has 365 days; a leap year has 366.",
    "how many days in a year that is not a leap year": "A year that is not a leap year has 365 days.",
    "how many weeks are in a year": "A year has 52 weeks and one day, or two days in a leap year.",
    "how many months are there in a year": "A year has 12 months.",
    "How many years is a decade?": "A decade has 10 years.",
    "How many decades are in 50 years?": "50 years are 5 decades.",
    "how many eggs are in a dozen": "A dozen has 12 eggs.",
    "How many pence are in one British pound?": "A British pound has 100 pence.",
    "how many quarters make a whole": "A whole has 4 quarters.",
    "Which is longer, a minute or an hour?": "An hour is longer than a minute.",
    "which is heavier: a kilogram or a pound?": "A kilogram is heavier than a pound.",
    "Is a mile longer than a kilometre?": "Yes, a mile is longer than a kilometre.",
    "what does \"km\" stand for": "\"km\" stands for kilometre.",
    "how many bytes in a kilobyte": "1 kilobyte is 1,000 bytes.",
}  # fmt: skip
REFUSED = (
    "convert 5 kg to miles", "How much is 100 dollars in euros?", "how many bananas in a week", "5 miles", "celsius in fahrenheit", "how long is a mile?",
    "how many ounces in a cup", "How many days are in a month?", "convert to km", "1e400 km in m", "How tall is a giraffe in metres?",
    "An hour has 50 minutes. How many minutes are two hours?", "how many gallons of milk does a family need", "what does it stand for",
    "What does NASA stand for?", "Which is bigger, an elephant or a mouse?", "is a gallon bigger than a litre", "100 euros in bitcoin",
    "how many weeks is a pregnancy", "Convert my CSV to JSON", "100 in euros", "how fast is 5 km", "Which is longer, 5 or 7?",
)  # fmt: skip


def test_ordinary_phrasings_have_exact_answers():
    check(CONVERTER, ANSWERS)


def test_questions_outside_its_scope_are_rejected():
    check_refusals(CONVERTER, (*NOT_FOR_ANY, *REFUSED))


def test_no_input_raises_an_unexpected_error():
    never_fails(CONVERTER)


def test_zero_converts_between_all_units_of_a_quantity():
    units = {unit for meanings in UNITS.values() for unit in meanings}
    for one, other in itertools.permutations(units, 2):
        with suppress(NotForProgram):
            assert isinstance(convert(Fraction(), one, other), Fraction)


@given(
    st.sampled_from(sorted(UNITS)),
    st.sampled_from(sorted(UNITS)),
    st.fractions(-(10**6), 10**6, max_denominator=100),
)
def test_a_conversion_round_trips(source: str, target: str, amount: Fraction):
    one, other = UNITS[source][0], UNITS[target][0]
    try:
        there = convert(amount, one, other)
    except NotForProgram:
        return
    back = convert(there, other, one)
    assert back == amount or abs(back - amount) <= abs(amount) * Fraction(1, 10**9), (source, target)


@pytest.mark.parametrize(
    "question", ["100 usd to eur", "convert 100 USD into euros", "how many euros are 100 usd"]
)
def test_currencies_are_converted_at_a_rate_with_its_date(question: str):
    date, rates = exchange_rates()
    amount = f"{float(round(100 / rates['USD'], 2)):,.2f} EUR"
    assert (
        say(CONVERTER, question)
        == f"100 USD is {amount}, at the European Central Bank's reference rate of {date}."
    )
