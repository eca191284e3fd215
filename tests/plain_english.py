"""Count phrases that readers stumble over in docstrings, comments, messages and pages: `python -m tests.plain_english`.

`make check` fails if a package, the tests, their names, the messages of all packages, the settings, the console, `docs`,
the Makefile, a page at the top or the READMEs below it have more than `MOST` of them per 1,000 words. Rewrite the sentence: a reader who sees the code for the first time should understand it. `--worst N` lists
the places. The check also fails if a name of the code is a bare participle: use a noun of the field, such as `row`.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from podium.cli import OURS

ROOT = Path(__file__).parents[1]
MOST = 4.0
"""Phrases per 1,000 words. Libraries such as httpx and pydantic-ai have 1 to 4."""
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
FOLDERS = ("adapters", "examples")
"""Folders whose pages are checked too."""
PHRASES = re.compile(
    "|".join((
        r"\b(?:nobody|somebody|anybody|everybody|whoever|whomever|whom|strangers?)\b",  # name the client, the key, the router
        r"\b(?:un)?told\b|\b(?:is|are|was|were|be|been) asked\b",  # return, raise, notify, call, send
        r"\b(?:let in|left alone|left out|well again|under way|anew|by itself|of its own|at once|as it is|as they are)\b",
        r"\b(?:beside|besides|likewise|thereby|hence|thrice|seldom|mend(?:ed|s)?)\b",
        r"[;,] (?:None|empty|0|False|True|nothing)(?: where| if it)",  # "or None if ..."
        r"(?:^\s*|[.;,]\s+)(?:None|[Ee]mpty|null|0|[Ff]alse|[Tt]rue|nothing): ",  # the same
        r"\bwhere (?:it|there|that|this|they|one|no|none|nothing|nobody|some|his|its|the)\b",  # if
        r"\b[Ss]o (?:many|long|much|far)\b(?! as)|\b(?:is|are|was) none\b",
        r"(?:^|[.:;] )(?:What|Whether|Who|How|Of|That|Those|As|Until|Once|Where|When) (?!(?:is|are|does|do|to)\b.*\?)[a-z]+",  # no subject
    )),
    re.MULTILINE,
)  # fmt: skip
TYPESCRIPT = re.compile(
    "|".join((
        r"/\*.*?\*/|//[^\n]*",  # comment
        r'(?<!class=)"(?:\\.|[^"\\\n])*"|`(?:\\.|\$\{[^}\n]*\}|[^`\\\n])*`',  # string
        r"(?<=[^=]>)[^<>{}();=]+(?=[<{])",  # JSX text
    )),
    re.DOTALL,
)  # fmt: skip
KEYWORDS = {"description", "detail", "epilog", "help", "message", "remedy", "summary", "title"}
"""Arguments and variables with text for users: of Typer, of OpenAPI and `Field`, and of errors."""
FINDINGS = {"ok", "warning", "wrong"}
"""Functions of `podium doctor` whose arguments are texts."""
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
PARTICIPLES = {"asked", "found", "given", "held", "kept", "known", "left", "made", "said", "seen", "taken", "told", "wanted", "whose"}  # fmt: skip
FIXED_NAMES = {
    "conductor/errors.py": "held",  # in answers with an error
    "conductor/run/events.py": "given",  # in stored records, as the next two
    "conductor/run/turns.py": "given said",
    "conductor/run/lifecycle.py": "given",  # public: `podium.resume_run`
    "loadtest/prove/records.py": "kept",  # a command's option
    "loadtest/recording.py": "left",  # in reports, as the next one
    "loadtest/siege/attack.py": "made",
    "podium/doctor/finding.py": "said",  # in the JSON of `podium doctor`
    "serving/accounts/hold.py": "held",  # columns of the database
    "serving/store/rows.py": "kept",
    "training/config.py": "kept",  # in settings
}
"""Bare participles that are stored, sent, in settings or in output, by file."""
NAMES_UNCHECKED = "serving/database/migrations/"
"""Folder whose names are not checked, because migrations do not change."""


class Passage(NamedTuple):
    """A docstring, a comment, a message or a line of a page."""

    place: str
    text: str

    @property
    def n_phrases(self) -> int:
        return len(PHRASES.findall(self.text))


def lines(path: Path) -> Iterator[Passage]:
    """Yield the lines of a page, without blocks of code."""
    is_code = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            yield Passage(f"{path.name}:{number}", line.strip())


def typescript(path: Path) -> Iterator[Passage]:
    """Yield the comments, strings and JSX texts of a TypeScript file with two words or more. A value reads as `x`."""
    code = path.read_text()
    for part in TYPESCRIPT.finditer(code):
        text = re.sub(r"\$\{[^}]*\}", "x", part[0]).strip('/*`" \n').replace("\n * ", "\n")
        if " " in text:
            yield Passage(f"{path}:{code.count(chr(10), 0, part.start()) + 1}", text)


def line_comments(path: Path) -> Iterator[Passage]:
    """Yield the comments of a YAML file or a Makefile, and the help of its targets."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if comment := re.search(r"(?:^|\s)#+ (.*)", line):
            yield Passage(f"{path}:{number}", comment[1])


def texts(path: Path) -> Iterator[Passage]:
    """Yield the texts of a YAML file with five words or more, such as prompts and cards, but not queries of metrics."""
    for event in yaml.parse(path.read_text()):
        if (
            isinstance(event, yaml.ScalarEvent)
            and len(event.value.split()) >= 5
            and "ray_" not in event.value
        ):
            yield Passage(f"{path}:{event.start_mark.line + 1}", event.value)


def docstrings_and_comments(path: Path) -> Iterator[Passage]:
    """Yield the docstrings of a Python file, those of attributes included, and its comments."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)):
        for each in getattr(node, "body", ()) if not isinstance(node, ast.Lambda | ast.IfExp) else ():
            if (
                isinstance(each, ast.Expr)
                and isinstance(each.value, ast.Constant)
                and isinstance(each.value.value, str)
            ):
                yield Passage(f"{path}:{each.lineno}", each.value.value)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield Passage(f"{path}:{token.start[0]}", token.string.lstrip("# "))


def names_of_tests(path: Path) -> Iterator[Passage]:
    """Yield the names of the tests in a Python file as sentences."""
    for line, name in names(ast.parse(path.read_text())):
        if name.startswith("test_"):
            yield Passage(f"{path}:{line}", name.removeprefix("test_").replace("_", " ").capitalize())


def strings(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each string below a node. A value in an f-string reads as `x`."""
    match node:
        case ast.Constant(value=str(text)):
            yield node.lineno, text
        case ast.JoinedStr(values=values):
            yield (
                node.lineno,
                "".join(str(each.value) if isinstance(each, ast.Constant) else "x" for each in values),
            )
        case _:
            for each in ast.iter_child_nodes(node):
                yield from strings(each)


def messages(path: Path) -> Iterator[Passage]:
    """Yield the texts for users in a Python file: those of errors, log lines, help and OpenAPI."""
    places = set[tuple[int, str]]()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Raise(exc=ast.Call() as error):
                places |= set(strings(error))
            case ast.Call(func=ast.Attribute(ast.Name("logger" | "logging" | "log"), name)) if name in LEVELS:
                places |= set(strings(node))
            case ast.Call(func=ast.Name(name)) if name in FINDINGS or name.endswith(("Error", "Fault")):
                places |= set(strings(node))
            case ast.keyword(arg=str(name), value=value) | ast.Assign([ast.Name(name)], value) if (
                name in KEYWORDS
            ):
                places |= set(strings(value))
            case _:
                pass
    yield from (Passage(f"{path}:{line}", text) for line, text in sorted(places) if " " in text)


def read(root: Path) -> dict[str, list[Passage]]:
    """Return the prose of each place that the check counts, by the place's name."""
    code = {name: sorted((root / name).rglob("*.py")) for name in sorted(OURS)}
    tests = sorted((root / "tests").rglob("*.py"))
    settings = sorted((root / "cluster").glob("*.yaml"))
    return {
        **{
            name: [each for path in paths for each in docstrings_and_comments(path)]
            for name, paths in (*code.items(), ("tests", tests))
        },
        "test names": [each for path in tests for each in names_of_tests(path)],
        "cluster/*.yaml": [each for path in settings for each in (*line_comments(path), *texts(path))],
        "Makefile": [each for path in root.glob("Makefile") for each in line_comments(path)],
        "messages": [each for paths in code.values() for path in paths for each in messages(path)],
        "console": [
            each for path in sorted((root / "console/src").rglob("*.ts*")) for each in typescript(path)
        ],
        "docs": [each for path in sorted((root / "docs").rglob("*.md")) for each in lines(path)],
        **{name: list(lines(root / name)) for name in PAGES},
        "READMEs": [
            each for name in FOLDERS for path in sorted((root / name).rglob("*.md")) for each in lines(path)
        ],
    }


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each name that the code introduces."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case (
                ast.Name(id=name, ctx=ast.Store())
                | ast.Attribute(attr=name, ctx=ast.Store())
                | ast.arg(arg=name)
            ):
                yield node.lineno, name
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name
            case _:
                pass


def bare_participles(root: Path) -> list[str]:
    """Return a line for each name of the packages and the tests that is a bare participle."""
    paths = {
        str(path.relative_to(root)): path
        for name in (*sorted(OURS), "tests")
        for path in sorted((root / name).rglob("*.py"))
    }
    return [
        f"{place}:{line}: the name {name!r} is a participle. Use a noun or a verb of the field."
        for place, path in paths.items()
        if not place.startswith(NAMES_UNCHECKED)
        for line, name in names(ast.parse(path.read_text()))
        if (bare := name.strip("_").lower()) in PARTICIPLES and bare not in FIXED_NAMES.get(place, "").split()
    ]


def rate(prose: Sequence[Passage]) -> float:
    """Return the phrases per 1,000 words."""
    return (
        1000 * sum(each.n_phrases for each in prose) / max(1, sum(len(each.text.split()) for each in prose))
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.plain_english", description=__doc__)
    parser.add_argument("--worst", type=int, default=0, help="list so many places with phrases")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder of the packages and pages")
    options = parser.parse_args(arguments)
    prose = read(options.root)
    rates = {name: rate(each) for name, each in prose.items()}
    worst = sorted(
        (each for passages in prose.values() for each in passages), key=lambda each: -each.n_phrases
    )
    for each in worst[: options.worst]:
        print(f"{each.n_phrases}  {each.place}  {' '.join(each.text.split())[:120]}")
    for name, each in rates.items():
        print(
            f"plain English: {each:4.1f} odd phrases per 1,000 words in {name}{'' if each <= MOST else f': at most {MOST:g}'}"
        )
    faults = bare_participles(options.root)
    print(
        "\n".join(f"plain English: {fault}" for fault in faults)
        or "plain English: no name is a bare participle"
    )
    return int(bool(faults) or max(rates.values()) > MOST)


if __name__ == "__main__":
    sys.exit(main())
