"""Count phrases that readers stumble over, in docstrings, comments and docs: `python -m tests.plain_english`.

`make check` fails if a package has more than `MOST` of them per 1,000 words. Rewrite the sentence: a reader who sees the
code for the first time should understand it. `--worst N` lists the places.
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

from podium.cli import OURS

ROOT = Path(__file__).parents[1]
MOST = 4.0
"""Phrases per 1,000 words. Libraries such as httpx and pydantic-ai have 1 to 4."""
PHRASES = re.compile(
    "|".join((
        r"\b(?:nobody|somebody|anybody|everybody|whoever|whomever|whom|strangers?)\b",  # name the client, the key, the router
        r"\b(?:un)?told\b|\b(?:is|are|was|were|be|been) asked\b",  # return, raise, notify, call, send
        r"\b(?:let in|left alone|left out|well again|under way|anew|of its own|beside|likewise|thereby|hence)\b",
        r"[;,] (?:None|empty|nothing): ",  # "or None if ..."
        r"\bwhere (?:it|there|that|they|one|no|none|nothing|its)\b",  # if
        r"\b[Ss]o (?:many|long|much)\b(?! as)|\b(?:is|are|was) none\b",
        r"(?:^|[.:;] )(?:What|Whether|Who|How|That|Those|Until|Once|Where) (?!(?:is|are|does|do|to)\b.*\?)[a-z]+",  # no subject
    )),
    re.MULTILINE,
)  # fmt: skip


class Passage(NamedTuple):
    """A docstring, a comment or a line of a page."""

    place: str
    text: str

    @property
    def n_phrases(self) -> int:
        return len(PHRASES.findall(self.text))


def passages(path: Path) -> Iterator[Passage]:
    """Yield the prose of a Python file or of a page."""
    place, text = str(path.relative_to(ROOT)), path.read_text()
    if path.suffix == ".md":
        for number, line in enumerate(text.splitlines(), 1):
            if not line.startswith(("```", "    ")):
                yield Passage(f"{place}:{number}", line)
        return
    for node in ast.walk(ast.parse(text)):
        for each in getattr(node, "body", ()) if not isinstance(node, ast.Lambda | ast.IfExp) else ():
            if (
                isinstance(each, ast.Expr)
                and isinstance(each.value, ast.Constant)
                and isinstance(each.value.value, str)
            ):
                yield Passage(f"{place}:{each.lineno}", each.value.value)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield Passage(f"{place}:{token.start[0]}", token.string.lstrip("# "))


def read(folder: str) -> list[Passage]:
    """Return the prose of a package or of `docs`."""
    files = (ROOT / folder).rglob("*.md" if folder == "docs" else "*.py")
    return [each for path in sorted(files) for each in passages(path)]


def rate(prose: Sequence[Passage]) -> float:
    """Return the phrases per 1,000 words."""
    return (
        1000 * sum(each.n_phrases for each in prose) / max(1, sum(len(each.text.split()) for each in prose))
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.plain_english", description=__doc__)
    parser.add_argument("--worst", type=int, default=0, help="list so many places with phrases")
    options = parser.parse_args()
    prose = {folder: read(folder) for folder in (*sorted(OURS), "docs")}
    rates = {folder: rate(each) for folder, each in prose.items()}
    worst = sorted((each for found in prose.values() for each in found), key=lambda each: -each.n_phrases)
    for each in worst[: options.worst]:
        print(f"{each.n_phrases}  {each.place}  {' '.join(each.text.split())[:120]}")
    for folder, each in rates.items():
        print(
            f"plain English: {each:4.1f} odd phrases per 1,000 words in {folder}{'' if each <= MOST else f': at most {MOST:g}'}"
        )
    return int(max(rates.values()) > MOST)


if __name__ == "__main__":
    sys.exit(main())
