"""`make check` fails if the prose of one place has too many odd phrases, or if a name is a bare participle."""

from pathlib import Path

import pytest

from tests.plain_english import OURS, PAGES, main

ODD = "Nobody is told where there is none"
PLAIN = "The router returns the id of the run"
BAD = {
    "README.md": ODD,
    "CONTRIBUTING.md": ODD,
    "CHANGELOG.md": ODD,
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
    (root / place).parent.mkdir(exist_ok=True)
    (root / place).write_text(BAD[place])
    assert fails(root)


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
def test_a_name_that_is_a_bare_participle_fails_the_check(root: Path, code: str) -> None:
    (root / "serving" / "names.py").write_text(f"{code}\n")
    assert fails(root)


def test_names_that_are_stored_may_be_participles(root: Path) -> None:
    (root / "conductor" / "errors.py").write_text('class Error:\n    held = ""\n')
    assert not fails(root)
