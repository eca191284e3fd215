"""Synthetic questions that programs can answer. A composite question chains two parts.

They are generated from a seed and are the same on every machine. Training and held-out questions never
overlap, because a question's side depends on its text, not on the seed.
"""

import hashlib
import random
from collections.abc import Sequence
from typing import Literal

from evaluation.questions import Question
from evaluation.synthetic.operations import (
    FAMILIES,
    OPERATIONS,
    RESULT,
    TaskOperation,
    of_result,
    operand,
    read,
)

Split = Literal["train", "held_out"]
ALONE = "Answer with the result alone."
HELD_OUT_OF = 5
"""One text in this many is held out."""
TRIES = 2000
"""Number of texts that may be discarded in a row. After that, the families have no more questions."""


def questions(
    seed: int,
    count: int,
    composite_share: float = 0.3,
    families: Sequence[str] = FAMILIES,
    split: Split = "held_out",
) -> list[Question]:
    """Generate different questions. `composite_share` of them need two families, the second of which uses the
    result of the first. The same seed gives the same questions; the splits have no text in common.
    """
    if unknown := [family for family in families if family not in FAMILIES]:
        raise ValueError(f"unknown family {unknown[0]!r}. Choose from: {', '.join(FAMILIES)}")
    rng, drawn = random.Random(f"{seed} {split}"), dict[str, Question]()
    usable = [operation for operation in OPERATIONS if operation.family in families]
    tries, composite = 0, rng.random() < composite_share
    while len(drawn) < count:
        text, chain = _composite(rng, usable) if composite else _single(rng, usable)
        tries += 1
        if text in drawn or split_of(text) != split:
            if tries > TRIES:
                raise ValueError(
                    f"{', '.join(families)} have only {len(drawn)} different questions, not {count}"
                )
            continue
        tries, composite = 0, rng.random() < composite_share
        family = ">".join(chain)
        drawn[text] = Question(
            f"skills/{split}/{seed}/{len(drawn)}",
            text,
            solution(text),
            "exact",
            "skills",
            family,
            {"chain": list(chain), "parts": [verb(words) for words in parts(text)]},
        )
    return list(drawn.values())


def split_of(text: str) -> Split:
    """Return whether a text is for training or held out. This depends only on its words."""
    digest = hashlib.sha256(text.encode()).digest()
    return "held_out" if digest[0] % HELD_OUT_OF == 0 else "train"


def parts(text: str) -> list[str]:
    """Return the parts of a question in order: two if it has the form `First ... Then ...`, else one."""
    body = text.removesuffix(ALONE).strip().removesuffix(".")
    if body.startswith("First ") and ". Then " in body:
        first, then = body.removeprefix("First ").split(". Then ", 1)
        return [first, then]
    return [body]


def verb(part: str) -> str:
    """Return a short form of what a part asks for, such as `Reverse it.`, for plans."""
    return f"{part.split()[0].capitalize()} it."


def solution(text: str) -> str:
    """Return the right answer to a synthetic question, or raise ValueError for another text."""
    result = ""
    for words in parts(text):
        part = read(words)
        if part is None:
            raise ValueError(f"not a synthetic question: {words!r}")
        result = part.solve(result if part.operand == RESULT else part.operand)
    return result


def _family(rng: random.Random, usable: Sequence[TaskOperation]) -> TaskOperation:
    """Draw an operation so that all families are equally likely, whatever their number of operations."""
    family = rng.choice(sorted({operation.family for operation in usable}))
    return rng.choice([operation for operation in usable if operation.family == family])


def _single(rng: random.Random, usable: Sequence[TaskOperation]) -> tuple[str, tuple[str, ...]]:
    operation = _family(rng, usable)
    words = operation.phrase(rng, operand(rng, operation.takes, digits=rng.choice((2, 3))))
    return f"{words[0].upper()}{words[1:]}. {ALONE}", (operation.family,)


def _composite(rng: random.Random, usable: Sequence[TaskOperation]) -> tuple[str, tuple[str, ...]]:
    first = _family(rng, usable)
    fitting = [operation for operation in usable if of_result(operation, first)]
    if not fitting:
        if not any(of_result(b, a) for a in usable for b in usable):
            raise ValueError(
                "no two of the families can be chained. Add families, or set composite_share to 0"
            )
        return _composite(rng, usable)
    then = _family(rng, fitting)
    words = first.phrase(rng, operand(rng, first.takes)), then.phrase(rng, RESULT)
    return f"First {words[0]}. Then {words[1]}. {ALONE}", (first.family, then.family)
