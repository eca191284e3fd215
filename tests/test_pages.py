"""Each relative link in the repository's pages leads to a file, and each anchor to a title. Each page of docs/ says
at its top what its reader will know.
"""

import re
import subprocess
from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path

from anthropic.resources.messages.messages import DEPRECATED_MODELS
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.conftest import ROOT

PARSER = MarkdownIt("commonmark").enable("table")
MENTION = re.compile(r"(?<![\w/.])docs/[\w/-]+\.md(?:#[\w-]+)?")


def git(*arguments: str) -> list[str]:
    return subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()


@cache
def tokens(path: Path) -> list[Token]:
    return PARSER.parse(path.read_text("utf-8"))


@cache
def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub and Zensical make of a page's titles."""
    counts = Counter[str]()
    slugs = set[str]()
    for before, title in pairwise(tokens(path)):
        if before.type == "heading_open":
            text = "".join(each.content for each in title.children or ())
            slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
            slugs.add(f"{slug}-{counts[slug]}" if counts[slug] else slug)
            counts[slug] += 1
    return slugs


def links(path: Path) -> list[str]:
    inner = [each for token in tokens(path) for each in token.children or ()]
    return [str(each.attrs["href" if each.type == "link_open" else "src"]) for each in inner if each.type in ("link_open", "image")]  # fmt: skip


def is_broken(folder: Path, link: str, page: Path) -> bool:
    name, _, anchor = link.partition("#")
    target = (folder / name).resolve() if name else page
    return not target.exists() or bool(anchor and target.suffix == ".md" and anchor not in anchors(target))


def test_every_link_of_a_page_points_to_an_existing_file_and_title() -> None:
    pages = [ROOT / name for name in git("ls-files", "-co", "--exclude-standard", "*.md") if (ROOT / name).exists()]  # fmt: skip
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in pages
        for link in links(page)
        if not re.match(r"[a-z]+:", link) and is_broken(page.parent, link, page)
    ]
    assert not broken


def test_every_docs_page_named_in_code_exists() -> None:
    lines = git("grep", "-hIE", r"docs/.*\.md", "--", ":!*.md", ":!tests/test_pages.py")
    mentions = {each[0] for line in lines for each in MENTION.finditer(line)}
    assert mentions
    assert not [each for each in sorted(mentions) if is_broken(ROOT, each, ROOT / "README.md")]


def test_every_docs_page_starts_with_what_its_reader_will_know() -> None:
    pages = [each for each in (ROOT / "docs").rglob("*.md") if not each.match("decisions/0*.md")]
    firsts = {str(page.relative_to(ROOT)): page.read_text("utf-8").split("\n", 2)[2] for page in pages}
    assert [page for page, text in firsts.items() if not text.startswith("This page ")] == []


def test_no_page_or_settings_file_names_a_model_that_anthropic_will_retire() -> None:
    lines = git("grep", "-hoE", r"\bmodel: *\"?claude-[a-z0-9.-]+", "--", "*.md", "*.yaml")
    names = {line.split("claude-")[1] for line in lines}
    assert names
    assert names.isdisjoint(name.removeprefix("claude-") for name in DEPRECATED_MODELS)


def test_every_decision_has_context_decision_and_consequences() -> None:
    decisions = (ROOT / "docs" / "decisions").glob("0*.md")
    parts = {
        page.name: re.findall(r"^## (\w+)$", page.read_text("utf-8"), re.MULTILINE) for page in decisions
    }
    assert parts
    assert [
        name for name, titles in parts.items() if not {"Context", "Decision", "Consequences"} <= {*titles}
    ] == []
