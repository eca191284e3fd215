"""`podium completion`: print a script with which a shell completes verbs, options and their values.

The script is static: it knows the options of the version that printed it. A verb whose packages are not
installed is completed by its name only.
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
    """Signal that carries a verb's parser out of `parse_args`."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="podium completion",
        description="Print a shell completion script for this command.",
        epilog=INSTALL,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=SHELLS)
    options = parser.parse_args(arguments)
    import shtab

    print(shtab.complete(build_parser(), options.shell))
    return 0


def build_parser() -> argparse.ArgumentParser:
    """Return one parser with every verb and its options. Loads the modules of all verbs."""
    root = argparse.ArgumentParser(prog="podium")
    verbs = root.add_subparsers(metavar="VERB")
    for name, verb in VERBS.items():
        verb_parser = parser_of(name)
        parents = [_without_help(verb_parser)] if verb_parser else []
        verbs.add_parser(name, help=verb.help, description=verb.help, parents=parents)
    return root


def parser_of(name: str) -> argparse.ArgumentParser | None:
    """Return the parser that a verb builds, or None if its packages are not installed.

    A verb's `main` builds its parser and calls `parse_args`. That call is intercepted here, so that verbs
    need no second way to expose their options.
    """
    usual = argparse.ArgumentParser.parse_args

    def stop(parser: argparse.ArgumentParser, *_: object, **__: object) -> NoReturn:
        raise _Parser(parser)

    argparse.ArgumentParser.parse_args = stop  # pyright: ignore[reportAttributeAccessIssue]
    try:
        load_verb(name)([])
    except _Parser as signal:
        return signal.parser
    except ModuleNotFoundError as error:
        print(f"podium {name} is completed by its name only: {error}", file=sys.stderr)
        return None
    finally:
        argparse.ArgumentParser.parse_args = usual
    raise AssertionError(f"podium {name} reads no arguments")


def _without_help(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Return `parser` as a parent without `--help` (the child has its own), with path arguments that complete
    files.
    """
    import shtab

    parents = argparse.ArgumentParser(add_help=False)
    for action in parser._actions:  # noqa: SLF001 (argparse has no other way to list them)
        if action.dest == "help":
            continue
        if action.type is Path:
            action.complete = shtab.FILE  # pyright: ignore[reportAttributeAccessIssue]
        parents._add_action(action)  # noqa: SLF001
    return parents
