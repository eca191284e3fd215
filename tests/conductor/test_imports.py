"""`conductor` imports only itself, the standard library and msgspec."""

import ast
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.usefixtures("without_collector")

MODULES = sorted((ROOT / "conductor").rglob("*.py"))


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_conductor_imports_only_itself_the_standard_library_and_msgspec(module: Path) -> None:
    nodes = list(ast.walk(ast.parse(module.read_text())))
    names = [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    roots = {name.partition(".")[0] for name in names}
    assert roots <= sys.stdlib_module_names | {"conductor", "msgspec"}
