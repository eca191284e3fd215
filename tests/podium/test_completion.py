"""Completion in real shells: verbs, options and their values. If a shell is not installed, only its script is
checked.
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from podium.cli import VERBS, main
from tests.conftest import PODIUM, ROOT

COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_podium_completion podium; printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("completion")
    paths = {shell: folder / shell for shell in ("bash", "zsh", "fish")}
    for shell, path in paths.items():
        ended = subprocess.run(
            [PODIUM, "completion", shell], cwd=ROOT, capture_output=True, text=True, check=True
        )
        path.write_text(ended.stdout)
    return paths


def complete(script: Path, *words: str) -> set[str]:
    path = f"{Path(PODIUM).parent}{os.pathsep}{os.environ['PATH']}"
    ended = subprocess.run(
        ["bash", "-c", COMPLETE, "bash", str(script), *words],
        cwd=ROOT, capture_output=True, text=True, check=True, env=os.environ | {"PATH": path},
    )  # fmt: skip
    return set(ended.stdout.split())


def test_bash_completes_verbs_options_and_values(scripts: dict[str, Path]) -> None:
    assert complete(scripts["bash"], "podium", "") == VERBS.keys()
    assert complete(scripts["bash"], "podium", "ru") == {"runs"}
    assert complete(scripts["bash"], "podium", "runs", "--st") == {"--status"}
    assert complete(scripts["bash"], "podium", "runs", "--status", "fa") == {"failed"}
    assert complete(scripts["bash"], "podium", "keys", "ro") == {"rotate"}
    assert complete(scripts["bash"], "podium", "keys", "budget", "--per-") == {"--per-day", "--per-month"}
    assert complete(scripts["bash"], "podium", "ask", "--effort", "m") == {"minimal", "medium", "max"}
    assert complete(scripts["bash"], "podium", "doctor", "--skip", "gp") == {"gpu", "gpus"}
    assert complete(scripts["bash"], "podium", "serve", "--settings", "cluster/lo") == set(), (
        "bash completes files"
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_accepts_its_completion_script(shell: str, scripts: dict[str, Path]) -> None:
    if (program := shutil.which(shell)) is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([program, "-n", str(scripts[shell])], check=True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_its_completions(shell: str, scripts: dict[str, Path]) -> None:
    assert "_PODIUM_COMPLETE" in scripts[shell].read_text()
    words = {"COMP_WORDS": "podium runs --st", "COMP_CWORD": "2", "_TYPER_COMPLETE_ARGS": "podium runs --st"}
    asks = {"_PODIUM_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    ended = subprocess.run(
        [PODIUM], cwd=ROOT, capture_output=True, text=True, check=True, env=os.environ | words | asks
    )
    assert "--status" in ended.stdout


@pytest.mark.parametrize("verb", VERBS)
def test_every_verbs_help_has_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    _, _, example = capsys.readouterr().out.lower().partition("example")
    assert f"podium {verb}" in example
