"""Sides, corners, areas and perimeters of shapes, for the calculator."""

import math
import re
from fractions import Fraction

from serving.workers.programs.expressions import NUMBER, approximate, read_number, show
from serving.workers.programs.process import NotForProgram
from serving.workers.programs.puzzles import WHAT
from serving.workers.programs.rules import ExactAnswer, Rule, pattern

_POLYGONS = {
    "triangle": 3, "square": 4, "rectangle": 4, "quadrilateral": 4, "rhombus": 4, "trapezoid": 4, "parallelogram": 4,
    "pentagon": 5, "hexagon": 6, "heptagon": 7, "octagon": 8, "nonagon": 9, "decagon": 10, "dodecagon": 12,
}  # fmt: skip
_SOLIDS = {
    ("cube", "faces"): 6, ("cube", "sides"): 6, ("cube", "edges"): 12, ("cube", "corners"): 8, ("cube", "vertices"): 8,
    ("tetrahedron", "faces"): 4, ("octahedron", "faces"): 8, ("dodecahedron", "faces"): 12, ("icosahedron", "faces"): 20,
}  # fmt: skip


def _shape(match: re.Match[str]) -> ExactAnswer:
    shape, what = match["shape"].casefold(), match["what"].casefold()
    is_flat = what in ("sides", "corners", "angles", "vertices", "edges")
    count = _SOLIDS.get((shape, what)) or (_POLYGONS.get(shape) if is_flat else None)
    if count is None:
        raise NotForProgram(f'The program has no data about the {what} of the shape "{shape}".')
    return ExactAnswer(f"{'An' if shape[0] in 'aeio' else 'A'} {shape} has {count} {what}.", str(count))


def _has_sides(match: re.Match[str]) -> ExactAnswer:
    right = _shape(match)
    text = "Yes" if read_number(match["n"]) == int(right.value) else "No"
    return ExactAnswer(f"{text}, {right.sentence[0].lower()}{right.sentence[1:]}", text)


def _area(match: re.Match[str]) -> ExactAnswer:
    one = read_number(match["one"])
    other = read_number(match["other"]) if match["other"] else one
    shape, what = match["shape"].casefold(), match["what"].casefold()
    if (shape == "square") != (match["other"] is None):
        raise NotForProgram("A square has one length of its sides, and a rectangle has two.")
    value = one * other if what == "area" else 2 * (one + other)
    return ExactAnswer(f"The {what} of the {shape} is {show(value)}.", show(value))


def _circle(match: re.Match[str]) -> ExactAnswer:
    radius, what = read_number(match["length"]), match["what"].casefold()
    radius = radius / 2 if match["kind"].casefold() == "diameter" else radius
    times = radius**2 if what == "area" else 2 * radius
    value = f"about {approximate(times * Fraction(math.pi))}"
    unit = f" {'square ' if what == 'area' else ''}{match['unit']}" if match["unit"] else ""
    return ExactAnswer(f"The {what} of the circle is {value}{unit} ({show(times)} × π).", f"{value}{unit}")


_LENGTHS = r"(?:centi|milli|kilo)?met(?:er|re)s?|cm|mm|km|m|inches|feet|ft|miles"
SHAPES: tuple[Rule, ...] = (
    (pattern(rf"{WHAT}(?P<what>area|circumference) of an? circle (?:with|of|whose|that has)(?: an?)? (?P<kind>radius|diameter)(?: of| is)? (?P<length>{NUMBER})(?: ?(?P<unit>{_LENGTHS}))?"), _circle),
    (pattern(rf"{WHAT}(?P<what>area|perimeter) of an? (?P<shape>square|rectangle) (?:with|whose|that has)(?: an?)? (?:sides?|side length|length|sides of length|sides of|side of|a side of)(?: of| is| are)? (?P<one>{NUMBER})(?:(?: and| by|,? and (?:a )?width(?: of)?) (?P<other>{NUMBER}))?"), _area),
    (pattern(rf"is it true that (?:an?|every|the) (?P<shape>[a-z]+) (?:has|have) (?P<n>{NUMBER}) (?P<what>sides|corners|angles|vertices|edges|faces)"), _has_sides),
    (pattern(rf"(?:does|do|has) (?:an?|every|the) (?P<shape>[a-z]+) (?:has|have) (?P<n>{NUMBER}) (?P<what>sides|corners|angles|vertices|edges|faces)"), _has_sides),
    (pattern(r"how many (?P<what>sides|corners|angles|vertices|edges|faces) (?:does|do|has|are there in|are in|in)(?: an?| the)? (?P<shape>[a-z]+)(?: have| has)?"), _shape),
)  # fmt: skip
