"""`make check` fails if the prose of one place has too many odd phrases, or if a name is a bare participle."""

import re
from pathlib import Path

import pytest
import yaml

from tests.plain_english import OURS, PAGES, ROOT, main

ODD = "Nobody is told where there is none"
PLAIN = "The router returns the id of the run"
BAD = {
    "README.md": ODD,
    "CONTRIBUTING.md": ODD,
    "CHANGELOG.md": ODD,
    "SECURITY.md": ODD,
    "docs/tutorials/first-team.md": ODD,
    "serving/docstring.py": f'class Run:\n    id = ""\n    """{ODD}."""\n',
    "conductor/none.py": 'limit = None\n"""Limit of the text, in tokens. None: no limit."""\n',
    "conductor/empty.py": 'keys = ()\n"""Empty: all."""\n',
    "conductor/wrapped.py": 'keys = ()\n"""Keys of the team.\n    Empty: all."""\n',
    "conductor/comment.py": f"# {ODD}\n",
    "serving/error.py": f'def check(n):\n    raise ValueError(f"{{n}} runs. {ODD}")\n',
    "podium/returned_error.py": f'fault = SettingsError("{ODD}")\n',
    "podium/finding.py": f'finding = warning("{ODD}", "Start the server")\n',
    "cluster/log.py": f'logger.warning("{ODD}: %s", 1)\n',
    "podium/option.py": f'quiet = Option("--quiet", help="{ODD}")\n',
    "serving/field.py": f'name = Field(default="", description="{ODD}")\n',
    "serving/message.py": f'fault = Fault(message="{ODD}")\n',
    "serving/variable.py": f'message = "{ODD}"\n',
    "tests/test_runs.py": f'def test_one():\n    """{ODD}."""\n',
    "tests/test_names.py": f"def test_{ODD.lower().replace(' ', '_')}():\n    pass\n",
    "cluster/comment.yaml": f"workers: []  # {ODD}\n",
    "cluster/prompt.yaml": f"workers:\n  - system_prompt: {ODD}\n",
    "Makefile": f"stop: ## {ODD}\n",
    "docs/batches.md": f"* Runs\n    * {ODD}\n",
    "examples/training/README.md": ODD,
    "adapters/conductor/README.md": ODD,
    "console/src/data/comment.ts": f"/** {ODD}. */\nexport const n = 1;\n",
    "console/src/data/line.ts": f"const n = 1; // {ODD}\n",
    "console/src/pages/string.tsx": f'const lead = "{ODD}";\n',
    "console/src/pages/template.tsx": f"const lead = `${{n}} runs. {ODD}`;\n",
    "console/src/pages/text.tsx": f'const page = () => (\n  <p class="lead">\n    {ODD}\n  </p>\n);\n',
    "serving/detail.py": f'fault = Fault(detail="{ODD}")\n',
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a repository with one plain sentence in each place."""
    for package in OURS:
        (tmp_path / package).mkdir()
        (tmp_path / package / "plain.py").write_text(f'"""{PLAIN}."""\n\nlogger.info("{PLAIN}")\n')
    for page in (*PAGES, "docs/budgets.md"):
        (tmp_path / page).parent.mkdir(exist_ok=True)
        (tmp_path / page).write_text(f"# Page\n\n{PLAIN}.\n")
    return tmp_path


def fails(root: Path) -> bool:
    return bool(main(["--root", str(root)]))


def test_plain_sentences_pass(root: Path) -> None:
    assert not fails(root)


@pytest.mark.parametrize("place", BAD)
def test_a_sentence_with_odd_phrases_fails_the_check(root: Path, place: str) -> None:
    (root / place).parent.mkdir(parents=True, exist_ok=True)
    (root / place).write_text(BAD[place])
    assert fails(root)


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("docs/clients.md", f"{PLAIN}\n\n```text\n{ODD}\n```\n"),
        ("console/src/class.tsx", f'const page = <p class="{ODD.lower()}" />;\n'),
    ],
)
def test_code_is_no_prose(root: Path, place: str, text: str) -> None:
    (root / place).parent.mkdir(parents=True, exist_ok=True)
    (root / place).write_text(text)
    assert not fails(root)


def test_the_hooks_of_git_run_what_make_check_runs() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    targets = re.findall(r"^(?:check|lint): .*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    commands = re.findall(r"@\$\(BIN\)/(.*)", "".join(targets))
    options = re.compile(r" (?:--check|--fix|--force-exclude|\.)(?= |$)")
    assert {options.sub("", each["entry"]).removeprefix(".venv/bin/") for each in hooks} == {
        options.sub("", each) for each in commands
    }


def test_a_value_in_a_message_does_not_start_a_new_sentence(root: Path) -> None:
    (root / "serving" / "error.py").write_text(
        'def check(n):\n    raise ValueError(f"Close {n}. {n} Of the runs are open")\n'
    )
    assert not fails(root)


def test_the_worst_places_are_listed_with_file_and_line(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "serving" / "log.py").write_text(f'\nlogger.error("{ODD}")\n')
    main(["--root", str(root), "--worst", "1"])
    assert f"log.py:2  {ODD}" in capsys.readouterr().out


@pytest.mark.parametrize("folder", ["serving", "tests"])
@pytest.mark.parametrize(
    "code",
    [
        "found = 1",
        "self._kept = 1",
        "class Given: ...",
        "def told(): ...",
        "def check(asked): ...",
        "for seen in (): ...",
        "match 1:\n    case int() as whose: ...",
    ],
)
def test_a_name_that_is_a_bare_participle_fails_the_check(root: Path, folder: str, code: str) -> None:
    (root / folder).mkdir(exist_ok=True)
    (root / folder / "names.py").write_text(f"{code}\n")
    assert fails(root)


def test_names_that_are_stored_may_be_participles(root: Path) -> None:
    (root / "conductor" / "errors.py").write_text('class Error:\n    held = ""\n')
    assert not fails(root)
