"""`podium completion`: a script by which a shell completes verbs, options and their values.

It is written once and knows what the options were then; a verb whose packages are not installed is completed
by its name alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from podium.cli import VERBS, load_verb

SHELLS = ("bash", "zsh", "fish")
INSTALL = """\
to install it:
  bash  podium completion bash > ~/.local/share/bash-completion/completions/podium
  zsh   podium completion zsh > ~/.zfunc/_podium    (in ~/.zshrc, before compinit: fpath+=~/.zfunc)
  fish  podium completion fish > ~/.config/fish/completions/podium.fish

exit code: 0, 2 for a wrong command line. example: podium completion bash > podium.bash"""


class _Parser(Exception):
    """The parser of a verb, at the moment when it would read its arguments."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="podium completion",
        description="Write a script by which a shell completes this command.",
        epilog=INSTALL,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS)
    options = parser.parse_args(arguments)
    import shtab

    print(shtab.complete(build_parser(), options.shell))
    return 0


def build_parser() -> argparse.ArgumentParser:
    """Every verb with its options, as one parser. Loads the modules of all verbs."""
    root = argparse.ArgumentParser(prog="podium")
    verbs = root.add_subparsers(metavar="VERB")
    for name, verb in VERBS.items():
        found = parser_of(name)
        parents = [_without_help(found)] if found else []
        verbs.add_parser(name, help=verb.help, description=verb.help, parents=parents)
    return root


def parser_of(name: str) -> argparse.ArgumentParser | None:
    """The parser that a verb builds; None where its packages are not installed.

    A verb's `main` makes its parser and calls it. The call is cut short here, so that no verb needs a second way
    to be asked for its options.
    """
    usual = argparse.ArgumentParser.parse_args

    def stop(parser: argparse.ArgumentParser, *_: object, **__: object) -> NoReturn:
        raise _Parser(parser)

    argparse.ArgumentParser.parse_args = stop  # pyright: ignore[reportAttributeAccessIssue]
    try:
        load_verb(name)([])
    except _Parser as found:
        return found.parser
    except ModuleNotFoundError as error:
        print(f"podium {name} is completed by its name alone: {error}", file=sys.stderr)
        return None
    finally:
        argparse.ArgumentParser.parse_args = usual
    raise AssertionError(f"podium {name} reads no arguments")


def _without_help(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """`parser` as a parent: the child has its own help; paths are completed."""
    import shtab

    parents = argparse.ArgumentParser(add_help=False)
    for action in parser._actions:  # noqa: SLF001 (argparse has no other way to list them)
        if action.dest == "help":
            continue
        if action.type is Path:
            action.complete = shtab.FILE  # pyright: ignore[reportAttributeAccessIssue]
        parents._add_action(action)  # noqa: SLF001
    return parents
