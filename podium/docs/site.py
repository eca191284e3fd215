"""Build a static site from docs/ and everything it links to.

Zensical renders the pages, and mkdocstrings adds the Python API. The navigation comes from docs/README.md.
All links are checked. Pages must not load anything from another host.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from podium import EXPORTS
from podium.docs.openapi_page import write_page
from podium.docs.site_pages import Pages
from serving import ROOT

REFERENCE = "* Reference\n"
GENERATED = f"{REFERENCE}    * [HTTP API](api.md)\n    * [Python API](python.md)\n"
"""Navigation entries of pages that exist only on the site."""
LOADED = re.compile(r"""<(?:script|link|img|iframe)[^>]*(?:src|href)=["']?(https?://[^"'\s>]+)""")
"""Resource that a browser fetches from another host when it shows a page. Ordinary links do not match."""


def build(site: Path) -> int:
    """Build the site. Return exit code 0 if all links resolve and no page loads from another host."""
    with TemporaryDirectory(prefix="podium-site-") as folder:
        return _build(site, Path(folder))


def _build(site: Path, work: Path) -> int:
    write_sources(work)
    program = Path(sys.executable).with_name("zensical")
    sources = os.environ | {"PYTHONPATH": str(ROOT)}  # mkdocstrings reads docstrings of the checkout
    ended = subprocess.run([str(program), "build", "--strict", "--clean"], cwd=work, env=sources, check=False)
    if ended.returncode:
        return ended.returncode
    if foreign := sorted(foreign_addresses(work / "site")):
        print(
            f"Pages load resources from other hosts: {', '.join(foreign)}. Remove these URLs.",
            file=sys.stderr,
        )
        return 1
    shutil.rmtree(site, ignore_errors=True)
    shutil.move(work / "site", site)
    print(f"The site is in {site}. Open its index.html, or serve the folder.")
    return 0


def write_sources(work: Path) -> None:
    """Write the pages, pictures and configuration from which Zensical builds the site."""
    folder = work / "pages"
    pages = Pages(ROOT, folder)
    for path in sorted((ROOT / "docs").rglob("*.md")):
        pages.add(str(path.relative_to(ROOT)))
    index = folder / "index.md"
    index.write_text(index.read_text().replace(REFERENCE, GENERATED))
    (folder / "api.md").write_text(write_page(api_document()))
    (folder / "python.md").write_text(python_page())
    shutil.copy(Path(__file__).with_name("zensical.toml"), work)
    shutil.copy(Path(__file__).with_name("site.css"), folder)


def python_page() -> str:
    """Return the source of the Python API page: a list of public names, which mkdocstrings expands."""
    places = {name: place.partition(":") for name, place in sorted(EXPORTS.items())}
    names = [f"::: {module}.{own or name}" for name, (module, _, own) in places.items()]
    return "\n\n".join(["# Python API", "Names that `import podium` provides.", *names, ""])


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
    """Return the URLs on other hosts that the pages of the site load."""
    return {address for page in site.rglob("*.html") for address in LOADED.findall(page.read_text())}
