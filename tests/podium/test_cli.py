"""The `podium` command: fast help and exact errors."""

import os
import re
import signal
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version

import pytest

from podium import cli
from podium.cli import VERBS, Verb, main
from podium.command_line.program import Program
from tests.conftest import PODIUM, ROOT


def podium(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PODIUM, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


def test_without_a_verb_the_command_prints_its_help() -> None:
    ended = podium()
    assert (ended.returncode, ended.stderr, ended.stdout) == (0, "", podium("--help").stdout)
    assert set(re.findall(r"^  ([a-z-]+)  +\S", ended.stdout, re.MULTILINE)) == VERBS.keys()


def test_version() -> None:
    assert podium("--version").stdout == f"podium {version('podium')}\n"


@pytest.mark.parametrize(
    ("word", "hint"), [("srve", "`podium serve`"), ("evaluate", "`podium eval`"), ("zzz", "")]
)
def test_an_unknown_verb_exits_2_with_a_suggestion(word: str, hint: str) -> None:
    ended = podium(word)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert hint in ended.stderr
    assert ("Did you mean" in ended.stderr) == bool(hint)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_a_program_with_its_own_name(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    module, _, function = VERBS[verb].target.partition(":")
    assert isinstance(getattr(import_module(module), function or "main"), Program), "else it is not completed"
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    assert f"Usage: podium {verb}" in capsys.readouterr().out


@pytest.mark.parametrize("target", sorted({verb.setup for verb in VERBS.values()}))
def test_the_make_targets_in_messages_exist(target: str) -> None:
    assert f"\n{target}:" in (ROOT / "Makefile").read_text()


def test_a_verb_with_missing_packages_names_the_install_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(VERBS, "load", Verb("tests.podium.missing_package", "", "setup-dev"))
    assert main(["load"]) == 2
    assert capsys.readouterr().err == (
        "podium load needs the package absent_package, which is not installed. In a checkout, install it with `make setup-dev`.\n"
    )


def test_a_missing_module_of_podium_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERBS, "load", Verb("serving.absent", ""))
    with pytest.raises(ModuleNotFoundError):
        main(["load"])


def test_ctrl_c_exits_130_without_a_traceback() -> None:
    code = f"import sys\nfrom podium.cli import VERBS, Verb, main\nVERBS['load'] = Verb('{__package__ or 'tests.podium'}.waits', '')\nsys.exit(main(['load']))"
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "\nStopped.\n")


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "--help"], ["completion", "bash"]])
def test_a_closed_output_pipe_prints_no_error(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    gone = subprocess.run(
        [PODIUM, *arguments],
        cwd=ROOT,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(writer)
    assert gone.stderr == ""
    assert gone.returncode in (0, 128 + signal.SIGPIPE), "Typer may ignore it"


def test_all_packages_of_this_repository_are_listed_as_ours() -> None:
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"} <= cli.OURS
