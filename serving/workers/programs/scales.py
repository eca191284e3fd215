"""Comparisons of things by size, weight, speed and the like, for the almanac.

The scales of `almanac.txt` list things in ascending order. Two things are compared only if one scale has both.
"""

import re

from serving.workers.programs.facts import almanac
from serving.workers.programs.process import NotForProgram
from serving.workers.programs.rules import ExactAnswer, Rule, pattern
from serving.workers.programs.selection import items_of


def _in_order(items: list[str], adjective: str) -> tuple[list[str], bool]:
    """Return `items` in ascending order on the scale of `adjective`, and whether it describes the upper end."""
    content, keys = almanac(), [almanac().key(item) for item in items]
    word = content.same.get(adjective.casefold(), adjective.casefold())
    orders: set[tuple[tuple[str, ...], bool]] = set()
    for scale in content.scales:
        places = [scale.places.get(key) for key in keys]
        if word in (*scale.lower, *scale.higher) and None not in places and len(set(places)) == len(items):
            ordered = sorted(items, key=lambda item: scale.places[content.key(item)])
            orders.add((tuple(ordered), word in scale.higher))
    if len(orders) != 1:
        raise NotForProgram("The almanac has no scale with all of these things.")
    order, is_higher = orders.pop()
    return list(order), is_higher


def _extreme(match: re.Match[str]) -> ExactAnswer:
    items, adjective = items_of(match["items"]), match["how"].casefold()
    ordered, is_higher = _in_order(items, adjective)
    extreme = ordered[-1] if is_higher else ordered[0]
    name = re.sub(r"^(?:an?|the) ", "", extreme, flags=re.IGNORECASE)
    than = (
        f" than {next(item for item in items if item != extreme)}"
        if adjective.endswith("er") or " " in adjective
        else ""
    )
    if (than and len(items) != 2) or (not than and len(items) < 2):
        raise NotForProgram("The comparison needs exactly two things.")
    article = "" if than or adjective == extreme else "the "
    return ExactAnswer(f"{extreme[0].upper()}{extreme[1:]} is {article}{adjective}{than}.", name)


def _is_more(match: re.Match[str]) -> ExactAnswer:
    one, other, adjective = match["one"], match["other"], match["how"].casefold()
    ordered, is_higher = _in_order([one, other], adjective)
    is_so = (ordered[-1] == one) == is_higher
    if match["how2"]:
        adjective = adjective if is_so else match["how2"].casefold()
        return ExactAnswer(f"{one[0].upper()}{one[1:]} is {adjective} than {other}.", adjective)
    word = "Yes" if is_so else "No"
    return ExactAnswer(f"{word}, {one} is {'' if is_so else 'not '}{adjective} than {other}.", word)


def _sort(match: re.Match[str]) -> ExactAnswer:
    items = items_of(match["items"])
    if not match["how"]:
        ordered, is_higher = _in_order(items, "later")
    else:
        ordered, is_higher = _in_order(items, match["how"])
        if _in_order(items, match["how2"])[1] == is_higher:
            raise NotForProgram("The order is unclear.")
    text = ", ".join(reversed(ordered) if match["how"] and is_higher else ordered)
    return ExactAnswer(text, text)


_HOW = r"(?P<how>(?:more |most )?[a-z]{2,12})"
_TO = _HOW.replace("<how>", "<how2>")
_THESE = r"(?: (?:these|those|the|following|words?|animals?|things?|items?|them|names?|three|four|days?|months?|in|of|time))*"
SCALES: tuple[Rule, ...] = (
    (pattern(rf"(?:which|what|who)(?: one| animal| thing| planet| object| vehicle| unit| of these(?: animals| things)?| of the two| country| continent)*(?: is| are| runs?| moves?| goes| flies| travels?| comes| weighs| lasts| has)?(?: usually| normally| generally)? (?:the )?{_HOW}(?: one| animal| planet| thing| in size| unit of time)?[,:?]*\s+(?P<items>[^:?]+)"), _extreme),
    (pattern(rf"(?:is|are|does|do|was) (?P<one>.+?) (?:usually |normally |run |runs |move |last )?{_HOW}(?: or {_TO})? than (?P<other>.+)"), _is_more),
    (pattern(rf"is it true that (?P<one>.+?) (?:is|are) {_HOW}(?P<how2>(?!))? than (?P<other>.+)"), _is_more),
    (pattern(rf"(?:sort|order|arrange|put|rank|list|place){_THESE}(?: in(?: the right| the correct| a)? order)?(?: (?:of|by|in) (?:size|weight|age|speed|height|length|time|order))? ?,?(?:from (?:the )?)?{_HOW}(?: one| first)? to (?:the )?{_TO}(?: one)?[:,.]?\s+(?P<items>[^:?]+)"), _sort),
    (pattern(rf"(?:sort|order|arrange|put){_THESE} in(?:to)? (?:the )?(?:right |correct |chronological |time )?order[:,.]?\s+(?P<items>[^:?]+)(?P<how>(?!))?(?P<how2>(?!))?"), _sort),
)  # fmt: skip
