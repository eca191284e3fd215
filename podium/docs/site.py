"""Static site of docs/ and everything it links to.

Zensical renders the pages. Every link is checked, and no page loads anything from another host.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from podium.docs.import_picture import draw_architecture
from podium.docs.openapi_page import write_page
from podium.docs.site_pages import Pages
from serving.paths import ROOT

FIRST = ("README.md", "docs/console.md", "docs/command-line.md", "docs/openai-api.md", "docs/settings.md", "docs/operations.md", "docs/architecture.md")  # fmt: skip
CONFIG = """\
[project]
site_name = "Podium"
site_description = "Many language models answer as one"
docs_dir = "pages"
site_dir = "site"
use_directory_urls = false
extra_css = ["site.css"]
nav = {nav}

[project.theme]
font = false
features = ["navigation.top", "content.code.copy", "search.highlight"]

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"

[project.markdown_extensions.toc]
permalink = true
[project.markdown_extensions.tables]
[project.markdown_extensions.pymdownx.superfences]
[project.markdown_extensions.pymdownx.highlight]
"""
LOADED = re.compile(r"""<(?:script|link|img|iframe)[^>]*(?:src|href)=["']?(https?://[^"'\s>]+)""")
"""Resource that a browser fetches from another host when it shows a page. Ordinary links do not match."""


def build(site: Path) -> int:
    """Build the site into the folder `site`. Return 0 if every link resolves and no page loads from another
    host.
    """
    with TemporaryDirectory(prefix="podium-site-") as folder:
        return _build(site, Path(folder))


def _build(site: Path, work: Path) -> int:
    write_sources(work)
    program = Path(sys.executable).with_name("zensical")
    ended = subprocess.run([str(program), "build", "--strict", "--clean"], cwd=work, check=False)
    if ended.returncode:
        return ended.returncode
    if foreign := sorted(foreign_addresses(work / "site")):
        print(f"Pages load from other hosts: {', '.join(foreign)}. Remove these addresses.", file=sys.stderr)
        return 1
    shutil.rmtree(site, ignore_errors=True)
    shutil.move(work / "site", site)
    print(f"The site is in {site}: open index.html, or serve the folder.")
    return 0


def write_sources(work: Path) -> None:
    """Write the pages, pictures and configuration from which Zensical builds the site."""
    folder = work / "pages"
    pages = Pages(ROOT, folder)
    for place in (
        *FIRST,
        *sorted(f"docs/{path.relative_to(ROOT / 'docs')}" for path in (ROOT / "docs").rglob("*.md")),
    ):
        if (ROOT / place).exists():
            pages.add(place)
    pages.add("examples")
    (folder / "architecture-imports.svg").write_text(draw_architecture(ROOT))
    architecture = folder / "architecture.md"
    head, _, rest = architecture.read_text().partition("\n\n")
    picture = "![Podium's packages, by their imports](architecture-imports.svg)\n\nDrawn from the code. An arrow is an import; imports that follow from others are not drawn."
    architecture.write_text(f"{head}\n\n{picture}\n\n{rest}")
    (folder / "api.md").write_text(write_page(api_document()))
    (folder / "site.css").write_text(
        ".md-typeset table:not([class]){font-size:.65rem}\n.md-grid{max-width:76rem}\n"
    )
    (work / "zensical.toml").write_text(CONFIG.format(nav=nav(folder)))


def nav(folder: Path) -> str:
    """Return the navigation as TOML: the main pages first, then the other pages by name."""
    firsts = [
        page
        for page in (
            "index.md",
            "console.md",
            "command-line.md",
            "openai-api.md",
            "settings.md",
            "operations.md",
            "architecture.md",
            "api.md",
        )
        if (folder / page).exists()
    ]
    others = sorted(path.name for path in folder.glob("*.md") if path.name not in firsts)
    groups = {
        "Operations": _in(folder, "operations"),
        "Guides": others,
        "Clients": _in(folder, "clients"),
        "Decisions": _in(folder, "decisions"),
    }
    items = [f'"{page}"' for page in firsts]
    items += [f"{{{name} = {list(pages)}}}".replace("'", '"') for name, pages in groups.items() if pages]
    items.append('{Examples = "source/examples/index.md"}')
    return f"[{', '.join(items)}]"


def _in(folder: Path, name: str) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in (folder / name).glob("*.md"))


def api_document() -> dict[str, Any]:
    """Build the OpenAPI document of the server's routes without starting a server."""
    from serving.api.app import build_api
    from serving.api.openapi import document
    from serving.pool import build_pool
    from serving.sessions.service import Service
    from serving.settings.settings import load

    service = Service(build_pool(load(ROOT / "cluster" / "scripted.yaml"), {}, {}))
    return document(build_api(service).routes)


def foreign_addresses(site: Path) -> set[str]:
    """Return the addresses that pages load from other hosts."""
    return {address for page in site.rglob("*.html") for address in LOADED.findall(page.read_text())}
