"""Limits on the work of checking a value against a schema, computed from the schema alone.

If each definition refers twice to the next one, every further definition doubles the work. So two numbers are
limited: how many schemas are checked against the same value, and the size of the schema with all references
expanded. A reference that closes a cycle counts once, because the validator caches the result for each pair
of value and definition.
"""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from serving.schemas.walk import SAME_VALUE, Path, Schema, children, subschemas, target

MOST_CHECKS = 1_000
"""Maximum number of schemas that are checked against the same value."""
MOST_PARTS = 50_000
"""Maximum number of subschemas in a schema with all references expanded."""


class SchemaFault(ValueError):
    """The client's schema is rejected.

    Args:
        path: path of the faulty subschema.
        why: the rest of a sentence whose subject is that subschema, such as "must be a finite number".
    """

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(why)
        self.path, self.why = path, why

    @property
    def place(self) -> str:
        """Path of the faulty subschema, such as `properties.tags.items`, or "" for the whole schema."""
        return ".".join(map(str, self.path))


def check_work(root: Schema) -> None:
    """Check that checking a value against `root` is limited work. The SchemaFault names the subschema."""
    try:
        _check_one_value(root)
        _check_parts(root)
    except RecursionError as exc:
        raise SchemaFault((), "contains a chain of references that is too long") from exc


def _check_one_value(root: Schema) -> None:
    checks: dict[int, int] = {}
    open_parts: set[int] = set()

    def count(path: Path, part: Schema) -> int:
        if id(part) in open_parts:
            raise SchemaFault(path, "refers to itself in an endless loop")
        if id(part) not in checks:
            open_parts.add(id(part))
            inner = [(below, each) for below, each in _edges(root, part) if below[0] in (*SAME_VALUE, "$ref")]
            checks[id(part)] = 1 + sum(count((*path[:20], *below), each) for below, each in inner)
            open_parts.discard(id(part))
        if checks[id(part)] > MOST_CHECKS:
            raise SchemaFault(path, f"must not require more than {MOST_CHECKS:,} checks of one value")
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
            raise SchemaFault(
                path, f"must have at most {MOST_PARTS:,} subschemas when all references are expanded"
            )


def leads_back(part: Schema, named: Schema, circle_of: Mapping[int, int]) -> bool:
    return circle_of[id(part)] == circle_of[id(named)]


def _edges(root: Schema, part: Schema) -> Iterator[tuple[Path, Schema]]:
    """Yield the schemas directly inside `part`, and the one that its `$ref` refers to."""
    yield from children(part)
    if isinstance(ref := part.get("$ref"), str) and (named := target(root, ref)) is not None:
        yield ("$ref",), named


def circles(root: Schema) -> dict[int, int]:
    """Map the `id()` of each subschema to its strongly connected component, by Tarjan's algorithm (SIAM J.
    Comput. 1, 1972). Subschemas of one refer to each other.
    """
    order: dict[int, int] = {}
    lowest: dict[int, int] = {}
    components: dict[int, int] = {}
    stack: list[int] = []

    def visit(part: Schema) -> None:
        this = id(part)
        order[this] = lowest[this] = len(order)
        stack.append(this)
        for _, each in _edges(root, part):
            if id(each) not in order:
                visit(each)
                lowest[this] = min(lowest[this], lowest[id(each)])
            elif id(each) not in components:
                lowest[this] = min(lowest[this], order[id(each)])
        if lowest[this] == order[this]:
            while stack and this not in components:
                components[stack.pop()] = order[this]

    for _, part in subschemas(root):
        if id(part) not in order:
            visit(part)
    return components


def unroll(root: Schema) -> dict[str, Any]:
    """Replace references that close a cycle by a schema that accepts everything, after the first level."""
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
