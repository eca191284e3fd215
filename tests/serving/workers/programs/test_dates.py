from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.workers.programs.date_text import easter, read_date, short_date
from serving.workers.programs.dates import Calendar
from serving.workers.programs.process import NotForProgram
from tests.serving.workers.programs.phrasings import NOT_FOR_ANY, check, check_refusals, never_fails, say

CALENDAR = Calendar("calendar", clock=lambda: datetime(2026, 11, 30, 9, 30, tzinfo=UTC))
TODAY = date(2026, 11, 30)
ANSWERS = {
    "what day is it today?": "Today is Monday, 30 November 2026 (UTC).",
    "What is today's date?": "Today is Monday, 30 November 2026 (UTC).",
    "what is tomorrow's date": "Tomorrow is Tuesday, 1 December 2026 (UTC).",
    "what time is it in Tokyo?": "It is 18:30 on Monday, 30 November 2026 in Tokyo.",
    "what time is it": "It is 09:30 on Monday, 30 November 2026 in UTC.",
    "if it's 3pm in London what time is it in New York?": "When it is 15:00 in London on 30 November 2026, it is 10:00 in New York.",
    "how many days until Christmas 2026": "There are 25 days until 25 December 2026 (counted from 30 November 2026).",
    "how many days until christmas": "There are 25 days until 25 December 2026 (counted from 30 November 2026).",
    "how many weeks until new year": "There are 4 weeks and 4 days until 1 January 2027 (counted from 30 November 2026).",
    "how many days since 1 January 2026": "There are 333 days since 1 January 2026 (counted to 30 November 2026).",
    "How many days are there between 1 March and 24 December?": "There are 298 days between 1 March 2027 and 24 December 2027.",
    "How many days from 25 December to 1 January?": "There are 7 days between 25 December 2026 and 1 January 2027.",
    "How many days from 3 March to today?": "There are 93 days between 3 March 2027 and 30 November 2026.",
    "how many days are between 1 March 2024 and 1 March 2025?": "There are 365 days between 1 March 2024 and 1 March 2025.",
    "what weekday was 4 July 1776": "4 July 1776 was a Thursday.",
    "What day of the week is 2026-12-25?": "25 December 2026 is a Friday.",
    "what day was 25/4/2025": "25 April 2025 was a Friday.",
    "on which day does Christmas fall": "25 December 2026 is a Friday.",
    "when is easter 2027": "Easter 2027 is on Sunday, 28 March 2027.",
    "what date is 30 days after 2026-01-15": "30 days after 15 January 2026 is Saturday, 14 February 2026.",
    "what date is it 3 weeks from today": "3 weeks after 30 November 2026 is Monday, 21 December 2026.",
    "what date is 1 month after January 31 2025": "1 month after 31 January 2025 is Friday, 28 February 2025.",
    "What's the date in 3 weeks?": "3 weeks after 30 November 2026 is Monday, 21 December 2026.",
    "What day is it in 10 days?": "10 days after 30 November 2026 is Thursday, 10 December 2026.",
    "I have a meeting at 3 pm in London. What time is it in New York?": "When it is 15:00 in London on 30 November 2026, it is 10:00 in New York.",
    "time in New York": "It is 04:30 on Monday, 30 November 2026 in New York.",
    "how many days has February 2028?": "February 2028 has 29 days.",
    "How old is someone born in 1985?": "The age is 40 until the birthday in 2026, and 41 from then on.",
    "I was born in 1990. How old am I?": "The age is 35 until the birthday in 2026, and 36 from then on.",
    "If someone was born in 1985, how old are they in 2030?": "The age is 44 until the birthday in 2030, and 45 from then on.",
    "I was born on 5 May 1990. How old am I?": "The age on 30 November 2026 is 36.",
    "I was born on 24 December 1990. How old am I now?": "The age on 30 November 2026 is 35.",
    "is 2024 a leap year?": "Yes, 2024 is a leap year.",
    "Was 1900 a leap year?": "No, 1900 is not a leap year.",
    "What is the next leap year?": "The next leap year is 2028.",
    "How many days does February have in a leap year?": "February has 29 days in a leap year.",
    "how many days in february": "February has 28 days, and 29 in a leap year.",
    "how many days in february 2024": "February 2024 has 29 days.",
    "how many days are in april": "April has 30 days.",
    "how many days in a week": "A week has 7 days.",
    "How many months are there in a year?": "A year has 12 months.",
    "what month comes after march": "April comes after March.",
    "What is the day after Tuesday": "Wednesday comes after Tuesday.",
    "what day comes before monday": "Sunday comes before Monday.",
    "which month comes between April and June?": "May comes between April and June.",
    "Which season comes after winter?": "Spring comes after winter.",
    "which is the last month of the year": "December is the last month of the year.",
    "what is the third month of the year": "March is the third month of the year.",
    "List the four seasons, starting with spring.": "Spring, summer, autumn and winter.",
    "What are the months of the year?": "January, February, March, April, May, June, July, August, September, October, November and December.",
    "If today is Monday, what day is tomorrow?": "If today is Monday, tomorrow is Tuesday.",
    "if today is friday, what day will it be in 10 days?": "If today is Friday, 10 days later is Monday.",
}  # fmt: skip
REFUSED = (
    "what day was 3/4/2025", "what day is 30 february 2025", "when is my birthday", "When was Christmas invented?", "How old am I?",
    "what is the date of the battle of Hastings", "how many days until the election", "what time is it in Springfield",
    "what time does the shop close", "what is the first day of the week", "how many days until 1 January 1990", "when is Ramadan",
    "what day was 1 January 1200", "if it's 3 in London what time is it in Tokyo", "if it's 25:00 in London what time is it in Tokyo",
    "What month is best to visit Japan?", "which month comes between April and August", "Name two months of summer in Europe.",
    "what date is 5 days after", "what date is 99999999999 days after 2026-01-01", "How many days does a year on Mars have?",
)  # fmt: skip


def test_ordinary_phrasings_have_exact_answers():
    check(CALENDAR, ANSWERS)


def test_questions_outside_its_scope_are_rejected():
    check_refusals(CALENDAR, (*NOT_FOR_ANY, *REFUSED))


def test_no_input_raises_an_unexpected_error():
    never_fails(CALENDAR)


@pytest.mark.parametrize(
    ("year", "day"), [(1818, (3, 22)), (1961, (4, 2)), (2000, (4, 23)), (2024, (3, 31)), (2038, (4, 25))]
)
def test_easter_dates_are_correct(year: int, day: tuple[int, int]):
    assert easter(year) == date(year, *day)


@given(
    st.dates(date(1600, 1, 1), date(9999, 12, 31)),
    st.sampled_from(["{0:%Y-%m-%d}", "{1}", "the {2} of {0:%B} {0:%Y}"]),
)
def test_every_written_form_of_a_date_is_parsed(day: date, form: str):
    assert read_date(form.format(day, short_date(day), f"{day.day}th"), TODAY) == day


@given(st.dates(date(1900, 1, 1), date(2900, 1, 1)), st.integers(0, 100_000))
def test_adding_days_to_a_date_matches_the_difference(day: date, count: int):
    later = day + timedelta(days=count)
    assert say(CALENDAR, f"how many days between {day} and {later}").startswith(
        f"There {'is' if count == 1 else 'are'} {count:,} day"
    )
    assert short_date(later) in say(CALENDAR, f"what date is {count} days after {day}")


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1600, 9999))
def test_an_ambiguous_date_in_digits_is_rejected(first: int, second: int, year: int):
    if first == second:
        assert read_date(f"{first}/{second}/{year}", TODAY) == date(year, first, first)
    else:
        with pytest.raises(NotForProgram, match="is ambiguous"):
            read_date(f"{first}/{second}/{year}", TODAY)
