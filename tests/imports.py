"""Check that the names which the tests import from this repository are there: `python -m tests.imports`.

`make check` runs it, because it does not import the tests. It reads `from x import y` and `lazy("x:y")`, and imports
nothing, so it takes a few seconds.
"""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from podium.cli import OURS

ROOT = Path(__file__).parents[1]
PACKAGES = {*OURS, "tests", "examples"}


def file_of(module: str) -> Path | None:
    """Return the file of a module, its folder if that has no `__init__.py`, or None if there is neither."""
    path = ROOT.joinpath(*module.split("."))
    places = (path / "__init__.py", path.with_suffix(".py"), path)
    return next((each for each in places if each.exists()), None)


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, also those below `if`, `try` and `with`."""
    for node in body:
        yield node
        for field in ("body", "orelse", "finalbody", "handlers"):
            if isinstance(node, ast.If | ast.Try | ast.With | ast.ExceptHandler):
                yield from statements(getattr(node, field, []))


@cache
def names_in(path: Path) -> frozenset[str]:
    """Return the names that a module defines or imports."""
    names = set[str]()
    for node in statements(ast.parse(path.read_text()).body):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Import() | ast.ImportFrom():
                names |= {(each.asname or each.name).partition(".")[0] for each in node.names}
            case _:
                names |= {
                    each.id
                    for each in ast.walk(node)
                    if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
                }
    return frozenset(names)


def has(module: str, name: str) -> bool:
    """Return whether `from module import name` finds a name or a submodule. A module of `__getattr__` has all."""
    path = file_of(module)
    if path is None:
        return False
    names = names_in(path) if path.is_file() else frozenset[str]()
    return name in names or "__getattr__" in names or file_of(f"{module}.{name}") is not None


def imports_in(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the module and the name of each import from this repository."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module)):
                yield from ((node.lineno, module, each.name) for each in node.names)
            case ast.Call(func=ast.Name("lazy"), args=[ast.Constant(str(where))]):
                module, _, name = where.replace(":", ".").rpartition(".")
                yield node.lineno, module, name
            case _:
                pass


def missing(path: Path) -> list[str]:
    """Return a line for each name that the file imports and that is not there."""
    return [
        f"{path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}:{line}: {module} has no {name}"
        for line, module, name in sorted(imports_in(ast.parse(path.read_text())))
        if module.partition(".")[0] in PACKAGES and name != "*" and not has(module, name)
    ]


def main() -> int:
    faults = [each for path in sorted((ROOT / "tests").rglob("*.py")) for each in missing(path)]
    print("\n".join(faults) or "Every name that the tests import is there.")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
