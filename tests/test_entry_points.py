"""Modules that each entry point loads in a fresh interpreter. Each heavy import has one place."""

import json
import subprocess
import sys
from typing import NamedTuple

import pytest

from podium.cli import VERBS
from tests.base_only import MODELS
from tests.conftest import ROOT

SDKS = {"openai", "anthropic", "google.genai"}
WEB = {"fastapi", "starlette", "uvicorn"}
LEARNING = {"trl", "peft", "datasets", "matplotlib"}
PROGRAMS = MODELS | LEARNING | {"ray", "locust", "openai", "fastapi"}
FIRST_COMMANDS = PROGRAMS | {"pydantic", "rich", "yaml", "numpy", "aiohttp", "starlette"}
HELP_OF_ALL = FIRST_COMMANDS | {"httpx2", "asyncio", "typer"} | {v.target.partition(":")[0] for v in VERBS.values()}  # fmt: skip
ALL_OTHERS = "every package but its own, and msgspec with what it loads"


class EntryPoint(NamedTuple):
    """A program, the top-level packages and modules that it must not load, and what it prints first."""

    code: str
    absent: frozenset[str]
    prints: str = ""


def imports(module: str, absent: set[str]) -> EntryPoint:
    return EntryPoint(f"import {module}", frozenset(absent))


def helps(module: str, usage: str, absent: set[str], arguments: str = '["--help"]') -> EntryPoint:
    return EntryPoint(f"from {module} import main; main({arguments})", frozenset(absent), usage)


ENTRY_POINTS = [
    imports("podium", {ALL_OTHERS}),
    imports("conductor.run.team", {ALL_OTHERS}),
    helps("podium.cli", "Usage: podium COMMAND ", HELP_OF_ALL),
    helps("podium.cli", "Usage: podium COMMAND ", HELP_OF_ALL, "[]"),
    helps("podium.cli", "", HELP_OF_ALL, '["srve"]'),
    helps("podium.doctor.cli", "Usage: podium doctor ", FIRST_COMMANDS),
    helps("cluster.local.demo", "Usage: podium demo ", FIRST_COMMANDS),
    helps("cluster.local.serve", "Usage: podium serve ", FIRST_COMMANDS),
    imports("serving.workers.scripted", SDKS | MODELS | {"google", "httpx2", "pydantic", "ray"}),
    helps("loadtest.capacity.cli", "Usage: podium capacity ", PROGRAMS),
    helps("loadtest.cli", "Usage: podium load ", PROGRAMS),
    helps("loadtest.siege.cli", "Usage: podium siege ", PROGRAMS),
    helps("loadtest.bench.cli", "Usage: podium bench ", PROGRAMS),
    imports("serving.settings.settings", SDKS | MODELS | WEB | {"ray", "opentelemetry", "httpx2"}),
    EntryPoint(
        "from serving.settings.settings import load; load('cluster/scripted.yaml')",
        frozenset(SDKS | MODELS | WEB | {"google", "ray", "opentelemetry"}),
    ),
    imports("serving.accounts.account_ledger", SDKS | MODELS | WEB | {"ray", "opentelemetry", "httpx2", "alembic"}),
    imports("serving.telemetry.spans", SDKS | MODELS | WEB | {"ray", "grpc"}),
    imports("serving.pool", SDKS | MODELS | WEB | {"ray"}),
    EntryPoint(
        "from serving.pool import build_pool; from serving.settings.settings import parse;"
        "build_pool(parse({'workers': [{'name': 'a', 'kind': 'scripted'}]}), {}, {})",
        frozenset(SDKS),
    ),
    helps("evaluation.cli", "Usage: podium eval ", PROGRAMS),
    helps("evaluation.replay_settings", "Usage: podium recorded-pool ", PROGRAMS),
    helps("evaluation.cards.cli", "Usage: podium cards ", PROGRAMS),
    imports("training.config", MODELS | LEARNING),
    helps("training.cli", "Usage: podium train ", PROGRAMS),
    helps("training.adapters", "Usage: python -m training.adapters ", PROGRAMS),
    imports("serving.api.app", SDKS | MODELS | {"ray"}),
    imports("serving.workers.openai", MODELS | WEB | {"ray", "anthropic", "google.genai"}),
    imports("serving.workers.anthropic", MODELS | WEB | {"ray", "openai", "google.genai"}),
    imports("serving.workers.gemini", MODELS | WEB | {"ray", "openai", "anthropic"}),
    EntryPoint(
        "from serving.deployments.build import by_prefix_and_load; from serving.settings.scale import Scale;"
        "by_prefix_and_load(Scale())",
        frozenset(MODELS),
    ),
    EntryPoint(
        "from serving.app import build_app; build_app({'settings': 'cluster/local.yaml'})", frozenset(MODELS)
    ),
]  # fmt: skip

RUNNER = """
import contextlib, io, json, sys
started_with = {*sys.modules}
outcomes = {}
def find_modules(absent, own):
    names = {*sys.modules} - started_with
    if ALL_OTHERS in absent:
        names = {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {own, "msgspec", "typing_extensions"}
        return sorted(names)
    return sorted(names & {*absent})
for number, code, absent in json.load(sys.stdin):
    own = code.partition("import ")[2].partition(".")[0]
    if find_modules(absent, own):
        continue  # an earlier one may load this: the next interpreter
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        exec(code, {})
    outcomes[number] = find_modules(absent, own), printed.getvalue()
print(json.dumps(outcomes))
"""
"""Run programs one after the other, except those of which an absent module is already loaded.

A module loads its imports when it is first imported. So a later program loads an absent module if it would do so
alone, provided that none of its absent modules was loaded before it.
"""


def outcomes() -> dict[int, tuple[list[str], str]]:
    """Run all entry points in as few interpreters as possible. Return the absent modules that each loads, and its
    output.
    """
    results: dict[int, tuple[list[str], str]] = {}
    while waiting := [n for n in range(len(ENTRY_POINTS)) if n not in results]:
        rows = [(n, ENTRY_POINTS[n].code, sorted(ENTRY_POINTS[n].absent)) for n in waiting]
        ended = subprocess.run(
            [sys.executable, "-c", f"ALL_OTHERS = {ALL_OTHERS!r}\n{RUNNER}"],
            input=json.dumps(rows), cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stderr
        results |= {int(number): outcome for number, outcome in json.loads(ended.stdout).items()}
    return results


def test_entry_points_load_only_what_they_need(subtests: pytest.Subtests) -> None:
    ends = outcomes()
    for number, entry in enumerate(ENTRY_POINTS):
        offending, printed = ends[number]
        with subtests.test(entry.code):
            assert not offending, f"`{entry.code}` loads {', '.join(offending)}"
            assert printed.startswith(entry.prints)
