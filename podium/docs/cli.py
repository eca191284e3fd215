"""`podium docs`: write the generated parts of the documentation, check them, or build the site."""

from pathlib import Path
from typing import Annotated

from typer import Option

from podium.command_line.program import Program, UsageError

main = Program("podium docs")


@main.command(
    epilog="Exit code: 0 on success, 1 if a page is out of date or the site has an error, 2 for a usage error.\n\n"
    "Example: podium docs --check"
)
def run(
    check: Annotated[
        bool, Option("--check", help="list the pages that are out of date; change nothing")
    ] = False,
    site: Annotated[
        Path | None,
        Option(metavar="DIR", help="build the pages as a static site into DIR, which is replaced"),
    ] = None,
) -> int:
    """Write the parts of docs/ that are generated from the code. Works in a checkout only."""
    if check and site:
        raise UsageError("--check and --site cannot be used together. Use one of them.")
    if site:
        from podium.docs.site import build

        return build(site)
    from podium.docs import generated

    return generated.check() if check else generated.write()
