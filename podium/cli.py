"""The `podium` command: a table of verbs, each with a module of its own, imported when it is called.

`podium VERB ARGS...` calls `main(ARGS)` of the verb's module and exits with what it returns. Knows names;
knows no verb's options.
"""

from __future__ import annotations

import difflib
import os
import select
import signal
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NamedTuple


class Verb(NamedTuple):
    """One word after `podium`.

    Args:
        target: `module`, whose `main(arguments)` returns the exit code, or `module:function`.
        help: one line.
        setup: the make target that installs its packages.
    """

    target: str
    help: str
    setup: str = "setup"


VERBS = {
    "serve": Verb("cluster.local.serve", "serve on this machine until Ctrl-C"),
    "stop": Verb("cluster.local.serve:stop", "end what a crashed or forgotten `podium serve` left running"),
    "doctor": Verb(
        "podium.doctor.cli",
        "what is wrong with this machine, settings, a cluster or a server, and what to do",
    ),
    "exposure": Verb("cluster.local.ports", "what listens here, at which address, and what it asks for"),
    "demo": Verb("cluster.local.demo", "start a server, ask it one question, show plan, answer and cost"),
    "ask": Verb("podium.ask_cli", "ask a running server one question, and see the plan as it happens"),
    "plan": Verb(
        "podium.plan_cli", "the plan that a question would get, and what it may cost; no step is run"
    ),
    "runs": Verb("podium.runs_cli:runs", "the newest runs of a server"),
    "show": Verb("podium.runs_cli:show", "one run as a tree of plans and steps, with times and costs"),
    "feedback": Verb("podium.feedback_cli", "say how good a run's answer is; export questions to train on"),
    "models": Verb("podium.runs_cli:models", "every name that a server may be asked by"),
    "keys": Verb("podium.accounts_cli:keys", "API keys: create, list, revoke, rotate"),
    "teams": Verb("podium.accounts_cli:teams", "teams of people, whose keys see each other's runs"),
    "budgets": Verb("podium.budgets_cli", "what teams and keys may spend, and have spent"),
    "check": Verb(
        "podium.doctor.cli:check",
        "podium doctor --cluster: do settings, Serve config and machines agree, and what do they cost",
    ),
    "store": Verb("podium.store_cli", "make, migrate or check the store of keys, budgets and the ledger"),
    "ledger": Verb("podium.ledger_cli", "prove that the ledger adds up"),
    "load": Verb("loadtest.cli", "load a running server and write a report", "setup-dev"),
    "siege": Verb("loadtest.siege.cli", "attack a server and watch its ordinary clients", "setup-dev"),
    "capacity": Verb(
        "loadtest.capacity.cli", "replicas, GPUs and dollars for a rate, simulated", "setup-dev"
    ),
    "bench": Verb("loadtest.bench.cli", "measure the figures of the README", "setup-learning"),
    "prove": Verb(
        "loadtest.prove.cli", "make things go wrong on purpose, and check that nothing is lost", "setup-dev"
    ),
    "eval": Verb("evaluation.cli", "compare strategies on questions with known answers", "setup-learning"),
    "cards": Verb("evaluation.cards.cli", "write each worker's card from what was measured"),
    "recorded-pool": Verb(
        "evaluation.replay_settings", "settings that replay recorded answers", "setup-learning"
    ),
    "train": Verb("training.cli", "teach a conductor by reward", "setup-learning"),
    "curriculum": Verb(
        "training.curriculum.cli",
        "what a conductor learns from, and how it leads new teams",
        "setup-learning",
    ),
    "adapters": Verb("podium.adapters_cli", "the LoRA adapters in use, or in a folder"),
    "adapter": Verb("cluster.local.adapter", "give a LoRA adapter the name under which it is served"),
    "completion": Verb("podium.completion_cli", "a script by which bash, zsh or fish completes this command"),
}
PRIVATE = 0o077
"""The umask of a verb: exports, reports and records hold users' texts, so files get mode 600 and folders 700."""
INSTALL = {"serve", "demo", "bench"}
"""Verbs that install packages, which other accounts may use; what they write of users is in a private folder."""
OURS = {
    "podium",
    "conductor",
    "serving",
    "cluster",
    "loadtest",
    "evaluation",
    "training",
    "program",
}
HELP = """usage: podium VERB [OPTIONS]

Many language models answer as one, behind one OpenAI-compatible API.

{verbs}

`podium VERB --help` lists a verb's options and their defaults. `podium --version` shows the version.

example: podium serve --settings cluster/api.yaml --port 8000"""


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script; returns the exit code: of a process that SIGPIPE ends, where the reader of what it prints has
    gone, as `head` does.
    """
    try:
        try:
            return _call(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        said = select.poll()
        said.register(sys.stdout.fileno(), 0)
        if not said.poll(0):
            raise  # it is another pipe
        # It is flushed once more at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _call(arguments: Sequence[str] | None) -> int:
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help", "help"):
        print(HELP.format(verbs="\n".join(f"  {name:14} {verb.help}" for name, verb in VERBS.items())))
        return 0
    if name in ("-V", "--version"):
        from importlib.metadata import version

        print(f"podium {version('podium')}")
        return 0
    if name not in VERBS:
        nearest = difflib.get_close_matches(name, VERBS, n=1, cutoff=0.5)
        hint = f" Did you mean `podium {nearest[0]}`?" if nearest else ""
        print(f"podium: there is no verb {name!r}.{hint} `podium --help` lists them.", file=sys.stderr)
        return 2
    before = os.umask(PRIVATE)
    if name in INSTALL:
        os.umask(before)
    try:
        return run(name, rest)
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        return 130
    finally:
        os.umask(before)


def run(name: str, arguments: Sequence[str]) -> int:
    """Call the verb `name`; 2 where its packages are not installed, with the command that installs them."""
    verb = VERBS[name]
    try:
        return load_verb(name)(arguments)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in OURS:
            raise
        print(
            f"podium {name} needs the package {error.name}, which is not installed. "
            f"In a checkout, `make {verb.setup}` installs it.",
            file=sys.stderr,
        )
        return 2


def load_verb(name: str) -> Callable[[Sequence[str]], int]:
    """What a verb calls, its module imported.

    Raises:
        ModuleNotFoundError: a package of it is not installed.
    """
    module, _, function = VERBS[name].target.partition(":")
    return getattr(import_module(module), function or "main")


if __name__ == "__main__":
    sys.exit(main())
