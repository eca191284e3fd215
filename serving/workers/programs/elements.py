"""Chemical elements for the almanac: symbols, names and atomic numbers."""

import re

from serving.workers.programs.facts import almanac
from serving.workers.programs.process import NotForProgram
from serving.workers.programs.rules import ExactAnswer, Rule, pattern, with_one_name

_ALIASES = {"aluminum": "aluminium", "sulphur": "sulfur", "cesium": "caesium"}


def _element(text: str) -> str:
    name = _ALIASES.get(text.casefold(), text.casefold())
    if name not in almanac().symbols:
        raise NotForProgram(f"{text!r} is not the name of a chemical element.")
    return name


def _symbol(match: re.Match[str]) -> ExactAnswer:
    name = _element(match["name"])
    return ExactAnswer(
        f"The chemical symbol of {name} is {almanac().symbols[name]}.", almanac().symbols[name]
    )


def _of_symbol(match: re.Match[str]) -> ExactAnswer:
    names = [name for name, symbol in almanac().symbols.items() if symbol == match["symbol"]]
    if not names:
        raise NotForProgram(f"{match['symbol']!r} is not the symbol of a chemical element.")
    return ExactAnswer(f"{match['symbol']} is the chemical symbol of {names[0]}.", names[0])


def _atomic_number(match: re.Match[str]) -> ExactAnswer:
    name = _element(match["name"])
    number = list(almanac().symbols).index(name) + 1
    return ExactAnswer(f"The atomic number of {name} is {number}.", str(number))


def _of_number(match: re.Match[str]) -> ExactAnswer:
    number = int(match["number"])
    if not 1 <= number <= len(almanac().symbols):
        raise NotForProgram(f"There is no chemical element with the number {number}.")
    name = list(almanac().symbols)[number - 1]
    return ExactAnswer(f"The element with the atomic number {number} is {name}.", name)


_OF = r"(?:for|of) (?:the element )?(?P<name>[a-z]{3,13})(?: in the periodic table)?"
_SYMBOL = r"[\"']?(?P<symbol>(?-i:[A-Z][a-z]?))[\"']?"
ELEMENTS: tuple[Rule, ...] = (
    (pattern(rf"(?:what is )?(?:the )?(?:chemical |element |atomic )*(?:symbol|abbreviation) {_OF}"), _symbol),
    (pattern(rf"(?:which|what) (?:chemical )?element (?:has|is|does have|uses) (?:the )?(?:chemical )?(?:symbol )?{_SYMBOL}"), _of_symbol),
    (pattern(rf"what (?:chemical )?element (?:does )?(?:the symbol )?{_SYMBOL} (?:stand for|represent|mean)|what does (?:the (?:chemical )?symbol )?{_SYMBOL.replace('symbol>', 'symbol2>')} (?:stand for|mean|represent) (?:in chemistry|in the periodic table|on the periodic table)"), lambda m: _of_symbol(with_one_name(m))),
    (pattern(rf"(?:what is )?(?:the )?atomic number {_OF}"), _atomic_number),
    (pattern(r"(?:which|what) element has (?:the )?atomic number (?P<number>\d{1,3})"), _of_number),
)  # fmt: skip
