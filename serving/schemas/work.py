"""How much work a schema is to check, found before anything is checked.

A few definitions that name the next one twice each would double the work with each of them. So the schemas are
counted that are checked against one and the same value, and those of the whole schema written out. A reference
that leads back counts once there: the validator remembers what it has found for a value and a definition.
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from serving.schemas.walk import SAME_VALUE, Path, Schema, children, subschemas, target

MOST_CHECKS = 1_000
"""Schemas that are checked against one and the same value."""
MOST_PARTS = 50_000
"""Of a schema written out: each definition as often as it is named."""


class TooMuchWork(ValueError):
    """The schema is too much work.

    Args:
        path: of the part at fault.
        why: the rest of a sentence about it.
    """

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(why)
        self.path, self.why = path, why


def check_work(root: Schema) -> None:
    """Raise where `root` is too much work.

    Raises:
        TooMuchWork: naming the part.
    """
    try:
        _check_one_value(root)
        _check_parts(root)
    except RecursionError as exc:
        raise TooMuchWork((), "has references that lead too far") from exc


def _check_one_value(root: Schema) -> None:
    checks: dict[int, int] = {}
    open_parts: set[int] = set()

    def count(path: Path, part: Schema) -> int:
        if id(part) in open_parts:
            raise TooMuchWork(path, "refers to itself without an end")
        if id(part) not in checks:
            open_parts.add(id(part))
            inner = [(below, each) for below, each in _edges(root, part) if below[0] in (*SAME_VALUE, "$ref")]
            checks[id(part)] = 1 + sum(count((*path[:20], *below), each) for below, each in inner)
            open_parts.discard(id(part))
        if checks[id(part)] > MOST_CHECKS:
            raise TooMuchWork(path, f"would check one value more than {MOST_CHECKS:,} times")
        return checks[id(part)]

    for path, part in subschemas(root):
        count(path, part)


def _check_parts(root: Schema) -> None:
    circle_of = circles(root)
    sizes: dict[int, int] = {}

    def size(part: Schema) -> int:
        if id(part) not in sizes:
            sizes[id(part)] = 1 + sum(
                1 if below[0] == "$ref" and leads_back(part, each, circle_of) else size(each)
                for below, each in _edges(root, part)
                if below[0] not in ("$defs", "definitions")
            )
        return sizes[id(part)]

    for path, part in subschemas(root):
        if size(part) > MOST_PARTS:
            raise TooMuchWork(
                path, f"would have more than {MOST_PARTS:,} parts with its references written out"
            )


def leads_back(part: Schema, named: Schema, circle_of: Mapping[int, int]) -> bool:
    """Whether a reference of `part` to `named` is one of a circle."""
    return circle_of[id(part)] == circle_of[id(named)]


def _edges(root: Schema, part: Schema) -> Iterator[tuple[Path, Schema]]:
    """The schemas in a part, and the one that it names."""
    yield from children(part)
    if isinstance(ref := part.get("$ref"), str) and (named := target(root, ref)) is not None:
        yield ("$ref",), named


def circles(root: Schema) -> dict[int, int]:
    """For each part the number of its strongly connected component (Tarjan, SIAM J. Comput. 1, 1972): two parts
    with the same one lead to each other.
    """
    order: dict[int, int] = {}
    lowest: dict[int, int] = {}
    found: dict[int, int] = {}
    stack: list[int] = []

    def visit(part: Schema) -> None:
        this = id(part)
        order[this] = lowest[this] = len(order)
        stack.append(this)
        for _, each in _edges(root, part):
            if id(each) not in order:
                visit(each)
                lowest[this] = min(lowest[this], lowest[id(each)])
            elif id(each) not in found:
                lowest[this] = min(lowest[this], order[id(each)])
        if lowest[this] == order[this]:
            while stack and this not in found:
                found[stack.pop()] = order[this]

    for _, part in subschemas(root):
        if id(part) not in order:
            visit(part)
    return found


def unroll(root: Schema) -> dict[str, Any]:
    """`root` with references that lead back left open: what it says of the first level."""
    circle_of = circles(root)

    def copy(value: object) -> object:
        if isinstance(value, Mapping):
            part = cast(Schema, value)
            ref = part.get("$ref")
            named = target(root, ref) if isinstance(ref, str) else None
            if named is not None and id(part) in circle_of and leads_back(part, named, circle_of):
                return {}
            return {name: copy(each) for name, each in part.items()}
        return [copy(each) for each in cast(list[object], value)] if isinstance(value, list) else value

    return cast(dict[str, Any], copy(root))
