"""Completion in real shells: verbs, options and their values. Where a shell is not installed its script is read."""

import shutil
import subprocess
from pathlib import Path

import pytest

from podium.cli import VERBS, main
from podium.completion_cli import parser_of

COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
_shtab_podium; printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("completion")
    paths = {shell: folder / shell for shell in ("bash", "zsh", "fish")}
    for shell, path in paths.items():
        with pytest.MonkeyPatch.context() as patch, path.open("w") as file:
            patch.setattr("sys.stdout", file)
            assert main(["completion", shell]) == 0
    return paths


def complete(script: Path, *words: str) -> set[str]:
    ended = subprocess.run(
        ["bash", "-c", COMPLETE, "bash", str(script), *words], capture_output=True, text=True, check=True
    )
    return set(ended.stdout.split())


def test_bash_completes_verbs_options_and_values(scripts: dict[str, Path], tmp_path: Path) -> None:
    assert VERBS.keys() <= complete(scripts["bash"], "podium", "")
    assert complete(scripts["bash"], "podium", "ru") == {"runs"}
    assert complete(scripts["bash"], "podium", "runs", "--st") == {"--status"}
    assert complete(scripts["bash"], "podium", "runs", "--status", "fa") == {"failed"}
    assert "rotate" in complete(scripts["bash"], "podium", "keys", "ro")
    assert complete(scripts["bash"], "podium", "ask", "--effort", "m") == {"minimal", "medium", "max"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_verb_and_its_options_are_in_the_script_which_the_shell_can_read(
    shell: str, scripts: dict[str, Path]
) -> None:
    words = scripts[shell].read_text()
    assert all(verb in words for verb in VERBS)
    assert "per-month" in words
    if program := shutil.which(shell):
        subprocess.run([program, "-n", str(scripts[shell])], check=True)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verbs_help_has_an_example(verb: str) -> None:
    parser = parser_of(verb)
    assert parser is not None
    assert f"podium {verb}" in (parser.epilog or "") or f"podium {verb} " in (parser.description or ""), verb
