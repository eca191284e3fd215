"""Questions that offer a list of words, for the almanac: the odd one out, and the ones of a group."""

import re
from functools import cache

from serving.workers.programs.facts import almanac
from serving.workers.programs.process import NotForProgram
from serving.workers.programs.rules import ExactAnswer, Rule, pattern

MOST_ITEMS = 12
_ONE = r"(?: one| word| words| item| thing| of these(?: words| things| animals)?| of the following(?: words)?| of them)*"
_ITEMS = r"[:,?.]*\s*(?P<items>[^:?]+)"


def items_of(text: str) -> list[str]:
    """Return the items of a list that is separated by commas, `and` or `or`."""
    parts = re.split(r",\s*(?:and |or )?|;\s*|\s+(?:and|or)\s+", text.strip(" .?\"'"))
    items = [part.strip(" \"'.?") for part in parts if part.strip(" \"'.?")]
    if not 2 <= len(items) <= MOST_ITEMS or any(len(item.split()) > 4 for item in items):
        raise NotForProgram(f"The list must have 2 to {MOST_ITEMS} words.")
    return items


def and_list(items: list[str]) -> str:
    """Join items with commas and `and`."""
    return f"{', '.join(items[:-1])} and {items[-1]}" if len(items) > 1 else items[0]


def article_of(noun: str) -> str:
    """Return the indefinite article of a noun."""
    return "an" if re.match(r"[aeiou](?!ni|ur)|hour", noun, re.IGNORECASE) else "a"


@cache
def _member_keys() -> frozenset[str]:
    return frozenset[str]().union(*(group.keys for group in almanac().groups))


def _odd_one_out(match: re.Match[str]) -> ExactAnswer:
    items = items_of(match["items"])
    if len(items) < 3:
        raise NotForProgram("An odd one out needs at least three words.")
    odd: set[str] = set()
    for group in almanac().groups:
        if group.title.startswith(("thing ", "animal that ")) and "farm" not in group.title:
            continue
        others = [item for item in items if almanac().key(item) not in group.keys]
        if len(others) == 1 and almanac().key(others[0]) not in group.disputed:
            odd.add(others[0])
    if len(odd) != 1:
        raise NotForProgram("The almanac does not know exactly one word that differs from the others.")
    word = odd.pop()
    return ExactAnswer(f'The odd one out is "{word}".', word)


def _of_group(match: re.Match[str]) -> ExactAnswer:
    items, words = items_of(match["items"]), frozenset(almanac().words(match["group"]))
    groups = [group for group in almanac().groups if group.named(words)]
    if not groups:
        raise NotForProgram("The almanac has no such group of things.")
    group = groups[0]
    inside = [item for item in items if almanac().key(item) in group.keys]
    outside = [item for item in items if item not in inside]
    if any(almanac().key(item) in group.disputed for item in outside):
        raise NotForProgram("Opinions differ about one of the words.")
    answers = outside if match["no"] else inside
    if len(answers) != 1 or (
        not match["no"]
        and len(items) > 2
        and not any(almanac().key(each) in _member_keys() for each in outside)
    ):
        raise NotForProgram("The almanac does not know exactly one word that fits.")
    return ExactAnswer(
        f'"{answers[0]}" is {"not " if match["no"] else ""}{article_of(group.title)} {group.title}.',
        answers[0],
    )


_ODD = (
    r"(?:the )?(?:odd (?:one|man|word) out|(?:one |word |thing )?(?:that |which )?(?:does not|doesn't|do not|don't) (?:belong|fit)"
    r"(?:(?: in)?(?: with| to| into)? (?:the |this )?(?:group|list|others?|rest|set))?|is different(?: from the (?:others|rest))?)"
)
SELECTIONS: tuple[Rule, ...] = (
    (pattern(rf"(?:(?:which|what|who){_ONE}(?: is)? |(?:find|pick|choose|name|spot|identify|select|tell me|give me) )?{_ODD}(?: here| in this list| of these(?: words)?| among)?{_ITEMS}"), _odd_one_out),
    (pattern(rf"(?:which|what){_ONE} (?:is|are)(?P<no> not|n't)? (?:an? |the name of an? |a kind of |a type of |a part of )?(?P<group>[a-z ]{{3,40}}?){_ITEMS}"), _of_group),
    (pattern(r"(?:find|pick|choose|name|spot|identify|select)(?: the)?(?P<no>(?!))? (?P<group>[a-z ]{3,30}?)(?: in this list| among these| from this list| from the list)?: (?P<items>[^:?]+)"), _of_group),
)  # fmt: skip
