"""Groups of things for the almanac: naming members of a group, and whether a thing belongs to one."""

import re
from collections.abc import Iterator

from serving.workers.programs.expressions import NUMBER, read_number
from serving.workers.programs.facts import Group, almanac
from serving.workers.programs.process import NotForProgram
from serving.workers.programs.rules import ExactAnswer, Rule
from serving.workers.programs.selection import and_list, article_of

MOST_NAMED = 20
_NAME = re.compile(
    r"(?:(?:can you )?(?:name|list|give|say|write|write down|mention|state|provide|make a list of|think of|enumerate|show)"
    r"(?: me)?|what (?:are|is)|which are|tell me|(?=(?:one|two|three|four|five|\d)\b))\s*"
    rf"(?:(?:any|the|all|all of the|the names of)\s+)*(?:(?P<n>{NUMBER}|an?|some|any)\s+)?(?:of the\s+)?"
    r"(?:different\s+)?(?:examples? (?:of|for)\s+)?(?:(?:an?|the)\s+)?(?P<what>.+?)"
    r"(?:,? (?:that|which|whose name)?\s*(?:starts?|begins?|starting|beginning) with (?:the letter |an? )?[\"']?(?P<letter>[a-z])[\"']?)?",
    re.IGNORECASE,
)
_CLASSES = ("mammal", "bird", "fish", "insect", "reptile", "amphibian", "arachnid")
_SORTS = (
    "animal", "fruit", "colour", "piece of furniture", "piece of clothing", "vehicle", "tool", "musical instrument", "sport", "flower",
    "tree", "metal", "job", "country", "city", "planet", "continent", "month", "season", "day of the week", "vegetable",
)  # fmt: skip
"""Groups of which no two have a member in common, except for the members that both list."""
_MASS = frozenset([
    "colour", "metal", "gas", "liquid", "drink", "sport", "language", "food", "season", "school subject", "kind of meat",
])  # fmt: skip
"""Groups whose members have no article."""


def memberships(words: tuple[str, ...]) -> Iterator[tuple[bool, str]]:
    """Yield whether the first words are a member of the group that the last words name."""
    for group in almanac().groups:
        for at in range(1, min(len(words), 4)):
            member = " ".join(words[:at])
            if not group.named(frozenset(words[at:])) or not (
                own_groups := [each for each in almanac().groups if member in each.keys]
            ):
                continue
            name = next(each for each in own_groups[0].members if almanac().key(each) == member)
            is_plain = name[0].isupper() or any(each.title in _MASS for each in own_groups)
            subject = name if is_plain else f"{article_of(name)} {name}"
            subject = f"{subject[0].upper()}{subject[1:]}"
            if group in own_groups:
                yield True, f"{subject} is {article_of(group.title)} {group.title}."
            elif member not in group.disputed and _excludes(group, own_groups):
                yield False, f"{subject} is not {article_of(group.title)} {group.title}."


def _excludes(group: Group, others: list[Group]) -> bool:
    titles = {each.title for each in others}
    return any(group.title in kinds and titles & set(kinds) for kinds in (_CLASSES, _SORTS))


def _name_members(match: re.Match[str]) -> ExactAnswer:
    words = frozenset(almanac().words(match["what"]))
    groups = [group for group in almanac().groups if group.named(words)]
    if not groups:
        raise NotForProgram("The almanac has no such group of things.")
    group, n, letter = min(groups, key=lambda each: len(each.optional)), match["n"], match["letter"]
    members = [each for each in group.members if not letter or each.casefold().startswith(letter.casefold())]
    wants_all = not n and (
        re.match(
            r"(?:list|what are|which are|name all|name the|give me all|say the|tell me the)\b",
            match[0],
            re.IGNORECASE,
        )
        is not None
    )
    is_plural = match["what"].split()[-1].endswith("s") or " " in match["what"]
    if wants_all and (not group.is_complete or letter or not is_plural):
        raise NotForProgram("The list of the almanac is not complete.")
    count = len(members) if wants_all else _count(n)
    if not 1 <= count <= len(members) or (
        re.match(r"what is", match[0], re.IGNORECASE) and "example" not in match[0]
    ):
        raise NotForProgram("The almanac does not know as many things.")
    text = and_list(members[:count])
    if count == 1:
        return ExactAnswer(f"One example is {text}.", text)
    lead = (
        "They are"
        if group.is_complete and count == len(group.members)
        else f"{match['n'].capitalize()} examples are"
        if n and not n.isdigit() and n != "some"
        else "Examples are"
    )
    return ExactAnswer(f"{lead} {text}.", text)


def _count(text: str | None) -> int:
    if (text or "a").casefold() in ("a", "an", "any"):
        return 1
    return 3 if (text or "").casefold() == "some" else int(read_number(text or "1"))


NAMES: tuple[Rule, ...] = ((_NAME, _name_members),)
