from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.workers.programs.calculator import Calculator
from serving.workers.programs.expressions import MOST_BITS, compute, read_number, show
from serving.workers.programs.process import NotForProgram
from tests.serving.workers.programs.phrasings import NOT_FOR_ANY, check, check_refusals, never_fails, say

CALCULATOR = Calculator("calculator")
ANSWERS = {
    "What is 3 + 4?": "3 + 4 = 7.",
    "Could you please work out 8 + 7 for me?": "8 + 7 = 15.",
    "what's 15 percent of 80?": "15 % of 80 is 12.",
    "What is 15% of $80?": "15 % of 80 is 12.",
    "20% off $50": "$50 reduced by 20 % is $40.",
    "increase 50 by 10%": "50 increased by 10 % is 55.",
    "what percent of 80 is 12": "12 is 15 % of 80.",
    "30 is what percent of 120?": "30 is 25 % of 120.",
    "How much is 14 plus 9?": "14 plus 9 is 23.",
    "What is half of 10, that is, 10 divided by 2?": "10 divided by 2 is 5.",
    "Add up 1, 2 and 3 please.": "1 + 2 + 3 = 6.",
    "add 5 to 7": "5 + 7 = 12.",
    "subtract 4 from 9": "9 − 4 = 5.",
    "divide 10 by 4": "10 ÷ 4 = 2.5.",
    "What is four plus five?": "Four plus five is 9.",
    "twenty-five times four": "Twenty-five times four = 100.",
    "two million plus 5": "Two million plus 5 is 2,000,005.",
    "a hundred and five minus 5": "A hundred and five minus 5 is 100.",
    "three quarters of 20": "Three quarters of 20 is 15.",
    "5!": "5! is 120.",
    "2 to the power of 10": "2 to the power of 10 is 1,024.",
    "-3 + 5": "-3 + 5 = 2.",
    "2 + 2 * 3": "2 + 2 * 3 = 8.",
    "(2 + 2) * 3": "(2 + 2) * 3 = 12.",
    "2 ^ 3 ^ 2": "2 ^ 3 ^ 2 = 512.",
    "0.1 + 0.2": "0.1 + 0.2 = 0.3.",
    "10/3": "10/3 is about 3.33333 (10/3).",
    "1,234 + 1": "1,234 + 1 = 1,235.",
    "7 mod 3": "7 mod 3 is 1.",
    "square root of 16": "The square root of 16 is 4.",
    "square root of 2": "The square root of 2 is about 1.4142136.",
    "What is 12 squared?": "12 squared is 144.",
    "average of 3, 5 and 10": "The average of 3, 5 and 10 is 6.",
    "median of 5, 1 and 9": "The median of 5, 1 and 9 is 5.",
    "largest of 4, 9 and 2": "The largest of 4, 9 and 2 is 9.",
    "round 3.456 to 2 decimal places": "3.456 rounded to 2 decimal places is 3.46.",
    "gcd of 12 and 18": "The greatest common divisor of 12 and 18 is 6.",
    "lcm of 4 and 6": "The least common multiple of 4 and 6 is 12.",
    "is 97 prime?": "Yes, 97 is a prime number.",
    "Is 91 a prime number?": "No, 91 is not a prime number: it is 7 × 13.",
    "prime factors of 360": "The prime factors of 360: 360 = 2^3 × 3^2 × 5.",
    "Is 8 an even or an odd number?": "8 is an even number.",
    "is 7 odd": "Yes, 7 is odd.",
    "Is 10 greater than 5? Answer yes or no.": "Yes",
    "Is 3+4 equal to 8?": "No, 7 is not equal to 8.",
    "Which is smaller: 7 or 3?": "3 is smaller than 7.",
    "What number comes right before 20?": "19 comes right before 20.",
    "what number is between 4 and 6": "5 comes between 4 and 6.",
    "Count from 1 to 5.": "1, 2, 3, 4, 5.",
    "Count backwards from 5 to 1": "5, 4, 3, 2, 1.",
    "list the numbers from 3 to 6": "3, 4, 5, 6.",
    "What is 6 times 7? Just the number.": "42",
    "How many sides does a hexagon have?": "A hexagon has 6 sides.",
    "How many corners does a square have?": "A square has 4 corners.",
    "solve 2x + 3 = 7": "2x + 3 = 7 has the solution x = 2.",
    "solve x^2 - 5x + 6 = 0": "x^2 - 5x + 6 = 0 has the solutions x = 2 or x = 3.",
    "solve x^2 = 2": "x^2 = 2 has the solutions x = -sqrt(2) (about -1.41421) or x = sqrt(2) (about 1.41421).",
    "solve x^2 + 1 = 0": "x^2 + 1 = 0 has no real solution.",
    "find y if 3y - 2 = 10": "3y - 2 = 10 has the solution y = 4.",
    "factor x^2 - 1": "x^2 - 1 = (x - 1)(x + 1).",
    "expand (x+1)^3": "(x+1)^3 = x^3 + 3x^2 + 3x + 1.",
    "the derivative of 3x^2 + 2x": "The derivative of 3x^2 + 2x is 6x + 2.",
    "Tom has 10 sweets and eats 4. How many are left?": "6 sweets are left.",
    "I have 5 apples and eat 2. How many do I have left?": "You have 3 apples now.",
    "Sam has 8 marbles and finds 3. How many marbles does he have?": "Sam has 11 marbles now.",
    "A pencil costs 2 dollars. How much do 4 pencils cost?": "4 pencils cost 8 dollars.",
    "A ticket is 5 euros. What do 3 tickets cost in euros?": "3 tickets cost 15 euros.",
    "Four friends share 12 cookies equally. How many does each one get?": "Each one gets 3 cookies.",
    "A box has 6 eggs. How many eggs are in 2 boxes?": "2 boxes have 12 eggs.",
    "A book costs 7 dollars. You pay with 10 dollars. How much change do you get?": "That is 3 dollars.",
    "There are 5 birds on a tree. 2 fly away. How many are left?": "3 birds are left.",
    "A bus has 10 people. 3 get off and 5 get on. How many people are on the bus?": "12 people are there.",
    "Tom has 4 cars and Ben has 3 cars. How many cars do they have together?": "That is 7 cars.",
    "Tom has 8 marbles and Ben has 3 marbles. How many more marbles does Tom have than Ben?": "That is 5 marbles.",
    "If 3 pens cost 6 dollars, how much do 5 pens cost?": "5 pens cost 10 dollars.",
    "There are 4 rows with 5 chairs in each row. How many chairs are there?": "That is 20 chairs.",
    "Tom is 8 years old. How old will he be in 2 years?": "The age is 10 years.",
    "What do you get when you add 2 and 5?": "2 + 5 = 7.",
    "What is 5 more than 7?": "5 more than 7 is 12.",
    "4 plus what equals 9?": "The number is 5: 4 + 5 = 9.",
    "12 divided by what is 3?": "The number is 4: 12 / 4 = 3.",
    "What times 3 is 12?": "The number is 4: 4 * 3 = 12.",
    "How many times does 3 go into 12?": "12 ÷ 3 = 4.",
    "What is the remainder when 7 is divided by 2?": "The remainder of 7 ÷ 2 is 1.",
    "Is 15 divisible by 5?": "Yes, 15 is divisible by 5.",
    "x + 2 = 5. What is x?": "x + 2 = 5 has the solution x = 3.",
    "What comes next: 1, 4, 9, 16?": "The next one is 25.",
    "What is the missing number: 1, 2, _, 4": "The missing one is 3.",
    "What is the area of a rectangle with sides 3 and 4?": "The area of the rectangle is 12.",
    "True or false? A triangle has four sides.": "False",
    "True or false: 2 + 2 = 5": "False",
    "Is 2 + 2 = 4?": "Yes, 2 + 2 = 4.",
    "Which is bigger, 1/2 or 1/3?": "1/2 is bigger.",
    "What is 3 dozen?": "3 dozen is 36.",
    "List the even numbers from 2 to 8.": "2, 4, 6, 8.",
    "Sort 4, 1, 3 in ascending order.": "1, 3, 4.",
    "What is 1999 in Roman numerals?": "1999 is MCMXCIX in Roman numerals.",
    "What number is XIV in Roman numerals?": "The Roman numeral XIV is 14.",
    "Write the number 1234 in words.": "1,234 in words is one thousand two hundred and thirty-four.",
    "Answer in one word: what is 3 + 4?": "7",
    "What is 1 + 1? A) 1 B) 2 C) 3": "B) 2",
}  # fmt: skip
REFUSED = (
    "2(3+4)", "6/2(1+2)", "half of 10 plus 2", "1,23 + 1", "1.234,5 + 1", "What is 5?", "100 + 10%", "1/0", "5 mod 0", "0^0",
    "2^0.5", "(1 + 2", "1 + 2)", "sqrt(-4)", "one two three", "What is five?", "Is Paris bigger than London?", "is 2.5 even",
    "how many apples are left?", "Tom has 10 apples and eats 4. How many oranges are left?", "average of apples and pears",
    "Tom has 3 sweets and eats 4. How many are left?", "A pencil costs 2 dollars. How much do 4 pens cost?", "solve x + y = 3",
    "solve x^5 - x + 1 = 0", "solve x = x", "factor x^2 + 1", "find x", "What is the 5th number?", "seven of nine",
    "What is the sum of its parts?", "Three people share 10 cookies equally. How many does each one get?", "12 times", "round 3.456 to 1.5 decimal places",
    "Tom has 3 apples. Anna has 4 pears. How many apples do they have?", "Tom has 5 apples. Anna eats 2. How many does Tom have?",
    "Tom has 3 apples and 4 pears. How many apples does he have?", "I have 10 dollars. I spend half. How much is left?", "What comes next: 2, 3, 5, 7, 11?",
    "What comes next: 1, 2, ...?", "What is XIIII in Roman numerals?", "Tom has 5 apples. He gives Anna 2. How many does Anna have?",
    "what is 1e5 + 1", "count from 1 to 1000000", "is 10000000000000000000000 prime?", "what number is between 4 and 9",
)  # fmt: skip


def test_ordinary_phrasings_have_exact_answers():
    check(CALCULATOR, ANSWERS)


def test_questions_outside_its_scope_are_rejected():
    check_refusals(CALCULATOR, (*NOT_FOR_ANY, *REFUSED))


def test_no_input_raises_an_unexpected_error():
    never_fails(CALCULATOR)


@given(st.integers(-(10**12), 10**12), st.integers(-(10**12), 10**12), st.sampled_from("+-*"))
def test_results_match_python_arithmetic(first: int, second: int, sign: str):
    value = {"+": first + second, "-": first - second, "*": first * second}[sign]
    assert compute(f"{first} {sign} ({second})")[0] == value


@given(st.fractions(max_denominator=1000), st.fractions(max_denominator=1000).filter(bool))
def test_a_quotient_times_its_divisor_is_the_dividend(dividend: Fraction, divisor: Fraction):
    text = f"({dividend.numerator}/{dividend.denominator}) / ({divisor.numerator}/{divisor.denominator})"
    assert compute(text)[0] * divisor == dividend


@given(st.integers(-(10**14), 10**14))
def test_a_displayed_number_can_be_parsed(number: int):
    assert read_number(show(Fraction(number))) == number


@given(st.text(alphabet="0123456789+-*/^()!x% .", max_size=60))
def test_any_expression_gives_a_bounded_number_or_a_reason(text: str):
    try:
        value = compute(text)[0]
    except NotForProgram:
        return
    assert max(value.numerator.bit_length(), value.denominator.bit_length()) <= MOST_BITS


@pytest.mark.parametrize(
    ("text", "number"),
    [("nineteen", 19), ("twenty-one", 21), ("a hundred", 100), ("two hundred and five", 205), ("a dozen", 12),
     ("three thousand two hundred", 3200), ("one million", 10**6), ("1,000,000", 10**6), ("-7", -7)],
)  # fmt: skip
def test_numbers_may_be_written_as_words(text: str, number: int):
    assert read_number(text) == number


@given(st.integers(-50, 50).filter(bool), st.integers(-50, 50), st.integers(-50, 50))
def test_the_solution_of_a_linear_equation_is_correct(factor: int, shift: int, root: int):
    text = say(CALCULATOR, f"solve {factor}x + ({shift}) = {factor * root + shift}")
    assert text.endswith(f"has the solution x = {root}.")
