"""Pages of the site: each link leads to a page, each page is in the navigation, and each route is in the reference.
`make site` runs Zensical itself.
"""

import posixpath
import re
from pathlib import Path

import pytest

from podium.docs import site
from podium.docs.site_pages import LINK, rewrite
from tests.conftest import ROOT

CODE = re.compile(r"^(`{3,}).*?^\1$|`[^`\n]+`", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("site")
    site.write_sources(work)
    return work / "pages"


def test_every_link_leads_to_a_page(pages: Path) -> None:
    dead: list[str] = []
    for page in pages.rglob("*.md"):
        for link in LINK.finditer(CODE.sub("", page.read_text())):
            target = link["target"]
            if not re.match(r"[a-z]+:", target) and not (page.parent / target).exists():
                dead.append(f"{page.relative_to(pages)}: {target}")
    assert not dead


def test_every_page_of_the_docs_is_in_the_navigation(pages: Path) -> None:
    listed = {link["target"] for link in LINK.finditer((pages / "index.md").read_text())}
    for page in (ROOT / "docs").rglob("*.md"):
        place = posixpath.relpath(page, ROOT / "docs").replace("README.md", "index.md")
        assert (pages / place).exists(), place
        assert place == "index.md" or listed & {place, f"{posixpath.dirname(place)}/index.md"}, place
    assert {"api.md", "python.md"} <= listed
    for example in (ROOT / "examples").glob("*.py"):
        assert (pages / "source" / "examples" / f"{example.name}.md").exists(), example.name


def test_every_route_is_in_the_reference_and_its_links_lead_to_objects(pages: Path) -> None:
    reference = (pages / "api.md").read_text()
    for path, operations in site.api_document()["paths"].items():
        for method in operations:
            assert f"## `{method.upper()} {path}`\n" in reference
    objects = {name.lower() for name in re.findall(r"^### (\S+)$", reference, re.MULTILINE)}
    assert set(re.findall(r"\]\(#([^)]+)\)", reference)) <= objects
    assert "max_cost_usd" in reference


def test_links_in_code_blocks_are_not_rewritten() -> None:
    text = "[a](b.md#c) `[a](b.md)`\n```\n[a](b.md)\n```\n"
    assert rewrite(text, lambda target: f"x/{target}") == "[a](x/b.md#c) `[a](b.md)`\n```\n[a](b.md)\n```\n"


def test_addresses_that_a_page_would_load_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="https://a.example">a</a><script src="https://cdn.example/x.js"></script><link rel=x href=https://fonts.example>'
    )
    assert site.foreign_addresses(tmp_path) == {"https://cdn.example/x.js", "https://fonts.example"}
