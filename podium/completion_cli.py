"""`podium completion`: print the script that lets a shell complete verbs, options and their values.

The script asks `podium` at each completion, which loads the module of the verb. A verb whose packages are not
installed is completed by its name only.
"""

from __future__ import annotations

from typing import Annotated, Literal

from typer import Argument
from typer.completion import get_completion_inspect_parameters, shell_complete

from podium.cli import COMPLETE, VERBS
from podium.command_line.program import Program, ProgramGroup

INSTALL = """\
To install the script:
  bash  podium completion bash > ~/.local/share/bash-completion/completions/podium
  zsh   podium completion zsh > ~/.zfunc/_podium    (in ~/.zshrc, before compinit: fpath+=~/.zfunc)
  fish  podium completion fish > ~/.config/fish/completions/podium.fish

Exit code: 0 on success, 2 for a usage error.

Example: podium completion bash > podium.bash"""
main = Program("podium completion")


@main.command(epilog=INSTALL)
def print_script(shell: Annotated[Literal["bash", "zsh", "fish"], Argument()]) -> int:
    """Print a shell completion script for this command."""
    return complete(f"source_{shell}")


def complete(instruction: str) -> int:
    """Carry out `source_SHELL` (print a script) or `complete_SHELL` (complete the shell's words)."""
    get_completion_inspect_parameters()  # registers the shells
    verbs = {name: (verb.target, verb.help) for name, verb in VERBS.items()}
    podium = ProgramGroup("podium", verbs, help="")
    try:
        return shell_complete(podium.build(), {}, "podium", COMPLETE, instruction)
    except ModuleNotFoundError:
        return 0
