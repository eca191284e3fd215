"""Write the pages of the site from files of the checkout: docs/ and everything it links to.

A link to a source file becomes a link to a page that shows the file.
"""

from __future__ import annotations

import posixpath
import re
import shutil
from collections.abc import Callable
from pathlib import Path

LINK = re.compile(r"(?P<before>\]\()(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?P<after>\))")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".mjs": "js", ".sh": "sh", ".toml": "toml"}
PICTURES = {".png", ".svg"}
INDEX = "README.md"


class Pages:
    """Writer of the pages of a checkout into an empty folder, each only once."""

    def __init__(self, root: Path, to: Path) -> None:
        self._root, self._to = root, to
        self._pages: dict[str, str] = {}

    def add(self, place: str) -> str:
        """Write the page of a file or folder and of everything it links to, and return its path in the site."""
        if place in self._pages:
            return self._pages[place]
        page = page_of(place, is_folder=(self._root / place).is_dir())
        # Register the page before its links are followed, because pages link to each other.
        self._pages[place] = page
        path = self._to / page
        path.parent.mkdir(parents=True, exist_ok=True)
        source = self._root / place
        if source.suffix in PICTURES:
            shutil.copyfile(source, path)
        elif source.suffix == ".md":
            path.write_text(rewrite(source.read_text(), self._relinker(place, page)))
        elif source.is_dir():
            path.write_text(self._folder(place, page))
        else:
            fence = LANGUAGES.get(source.suffix, "")
            path.write_text(f"# {place}\n\n````{fence}\n{source.read_text().rstrip()}\n````\n")
        return page

    def _relinker(self, place: str, page: str) -> Callable[[str], str]:
        """Return a function that converts a file's links to those between pages, except external ones."""

        def relink(target: str) -> str:
            if re.match(r"[a-z]+:", target):
                return target
            there = posixpath.normpath(posixpath.join(posixpath.dirname(place), target))
            if not (self._root / there).exists():
                return target  # Zensical reports the broken link
            return posixpath.relpath(self.add(there), posixpath.dirname(page) or ".")

        return relink

    def _folder(self, place: str, page: str) -> str:
        """Render a list of links to the files in a folder."""
        relink = self._relinker(f"{place}/x", page)
        names = sorted(
            each.name
            for each in (self._root / place).iterdir()
            if each.is_file() and not each.name.startswith(".")
        )
        return "\n".join([f"# {place}/", "", *(f"* [{name}]({relink(name)})" for name in names), ""])


def page_of(place: str, *, is_folder: bool = False) -> str:
    """Return the page of a file: for docs/ at the top, with its README as index, else under `source/`."""
    if place == INDEX:
        return "overview.md"
    if place.startswith("docs/"):
        return place.removeprefix("docs/").replace(INDEX, "index.md")
    if is_folder:
        return f"source/{place}/index.md"
    return f"source/{place}" if place.endswith((".md", *PICTURES)) else f"source/{place}.md"


def rewrite(text: str, relink: Callable[[str], str]) -> str:
    """Replace the target of each link in `text` by `relink(target)`, except in code."""

    def change(match: re.Match[str]) -> str:
        return f"{match['before']}{relink(match['target'])}{match['anchor'] or ''}{match['after']}"

    parts = re.split(r"(^```.*?^```$|`[^`\n]+`)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if number % 2 else LINK.sub(change, part) for number, part in enumerate(parts))
