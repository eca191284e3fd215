"""Check the rules against growth, and print the lines of each package: `python -m tests.growth`, part of `make check`.

`Call` has at most 10 fields, no two public classes have the same name, and no module has fewer than 20 lines. Migrations
are exempt from the last rule, because a revision may change one column.
"""

import ast
import sys
from collections import defaultdict
from pathlib import Path

from msgspec.structs import fields

from conductor.model.call import Call
from podium.cli import OURS

ROOT = Path(__file__).parents[1]
MOST_FIELDS, FEWEST_LINES = 10, 20
LAST_RELEASE = {
    "cluster": 4_943, "conductor": 8_749, "evaluation": 7_245, "loadtest": 12_196, "podium": 3_717, "serving": 41_558,
    "training": 6_650, "tests": 59_521,
}  # fmt: skip
"""Lines of Python per package in the release of 2026-11-28. Its `bench`, `prove` and `capacity` are in `loadtest` now."""


def modules(package: str) -> list[Path]:
    """Return the Python files of a package."""
    return sorted((ROOT / package).rglob("*.py"))


def homonyms() -> list[str]:
    """Return one line per public class name that two modules define."""
    places = defaultdict[str, list[str]](list)
    for path in (each for package in sorted(OURS) for each in modules(package)):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(ROOT)))
    return [
        f"class {name} is defined {len(files)} times: {', '.join(files)}. Rename all but one."
        for name, files in places.items()
        if len(files) > 1
    ]


def tiny_modules() -> list[str]:
    """Return one line per module with fewer than `FEWEST_LINES` lines."""
    paths = [each for package in sorted(OURS) for each in modules(package)]
    counted = [(each, len(each.read_text().splitlines())) for each in paths]
    return [
        f"{path.relative_to(ROOT)} has {n} lines. Move them to the module that uses them."
        for path, n in counted
        if n < FEWEST_LINES and path.name != "__init__.py" and "migrations" not in path.parts
    ]


def main() -> int:
    for package in (*sorted(OURS), "tests"):
        n, before = (
            sum(len(each.read_text().splitlines()) for each in modules(package)),
            LAST_RELEASE.get(package),
        )
        print(
            f"size: {n:6,} lines in {package}{'' if before is None else f' ({n - before:+,} since 2026-11-28)'}"
        )
    faults = [*homonyms(), *tiny_modules()]
    if (n_fields := len(fields(Call))) > MOST_FIELDS:
        faults.append(
            f"Call has {n_fields} fields, at most {MOST_FIELDS} are allowed. What a run sets once is in Terms."
        )
    for fault in faults:
        print(f"size: {fault}")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
