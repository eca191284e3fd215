"""`podium docs`: write the generated parts of the documentation, check them, or build the site."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="podium docs",
        description="Write the parts of docs/ that are generated from the code. Works in a checkout only.",
        epilog="exit code: 0, 1 if a page is out of date or the site has an error, 2 for a wrong command line. "
        "example: podium docs --check",
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--check", action="store_true", help="list the pages that are out of date; change nothing")  # fmt: skip
    action.add_argument("--site", type=Path, metavar="DIR", help="build the pages as a static site into DIR, which is replaced")  # fmt: skip
    options = parser.parse_args(arguments)
    if options.site:
        from podium.docs.site import build

        return build(options.site)
    from podium.docs.generated import check, write

    return check() if options.check else write()
