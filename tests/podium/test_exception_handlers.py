"""docs/architecture.md names each file that catches all exceptions."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from podium.cli import OURS
from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("without_collector")

EVERYTHING = {"Exception", "BaseException"}


def caught(handler: ast.ExceptHandler) -> set[str]:
    """Return the names of the exceptions that it catches."""
    if handler.type is None:
        return EVERYTHING
    return {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}


def catchers(path: Path) -> Iterator[ast.ExceptHandler]:
    """Yield the handlers that catch all exceptions and do not always raise them again."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ExceptHandler) and caught(node) & EVERYTHING:
            last = node.body[-1]
            if not (isinstance(last, ast.Raise) and last.exc is None):
                yield node


def test_files_that_catch_all_exceptions_are_listed_in_the_architecture_page() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    (errors,) = re.findall(r"^\* \*\*Errors\.\*\*.*?(?=^\* )", page, re.MULTILINE | re.DOTALL)
    files = {
        str(path.relative_to(ROOT))
        for package in sorted(OURS)
        for path in (ROOT / package).rglob("*.py")
        if any(catchers(path))
    }
    handler = {"serving/api/app.py"}
    """FastAPI catches through a handler for `Exception`."""
    assert set(re.findall(r"`(\w[\w/]*\.py)`", errors)) - {"conductor/errors.py"} == files | handler
