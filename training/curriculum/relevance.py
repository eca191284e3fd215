"""Decide whether a subtask is about a part of a request, by the words of that part."""

import re


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text.lower()))


COMMON = _words(
    """
    a about after all also an and any are as at be but by can do for from get has have how i if in into
    is it its just me more my no not of on one only or out please so some than that the their them then
    there these this to two up use using want what when where which who why will with you your
    """
)
"""Words that do not depend on the topic of a request, such as articles and pronouns."""
TASK_WORDS = _words(
    """
    add answer answered answers ask asked asks begin best better carefully change check checked checking
    clear clearly complete correct corrected correction corrections correctly create describe detail
    details did does doing done each error errors every everything explain explained explanation fault
    faults find first fix following found gave give given gives go going good help here improve improved
    information instruction instructions job keep know known last let list look made make makes making
    mistake mistakes must need needed needs new next nothing now other output outputs part parts perform
    prepare previous problem problems produce provide put question questions read reply request
    requested requests respond response responses result results return review right said say says
    second see send should show shown solution solve something state step steps suggest sure take task
    tasks tell text thing things think try user verify very we well whether whole work write written
    wrong
    """
)
"""Words that can ask for any part, as in "Find the answer" and "Check whether it is right"."""


def own_words(clause: str) -> frozenset[str]:
    """Return the own words of `clause`: those that distinguish it from other clauses."""
    return _words(clause) - COMMON - TASK_WORDS


def is_about(subtask: str, clause: str) -> bool:
    """Return whether `subtask` has at least a third of the own words of `clause`, and at least one."""
    return share_named(subtask, clause) >= 1 / 3


def share_named(subtask: str, clause: str) -> float:
    """Return the share of the own words of `clause` that `subtask` contains, or 0 if `clause` has none."""
    words = own_words(clause)
    return len(words & own_words(subtask)) / max(len(words), 1)
