"""The `podium` command: a table of verbs, each in its own module that is imported when the verb is called.

`podium VERB ARGS...` calls the program `main` of the verb's module and exits with the result. This module does not
know the options of any verb.
"""

from __future__ import annotations

import difflib
import os
import select
import signal
import sys
from collections.abc import Sequence
from typing import NamedTuple


class Verb(NamedTuple):
    """One word after `podium`.

    Args:
        target: location of the verb's `Program`, as `module:name`, or as `module` if its name is `main`.
        setup: make target that installs the packages that the verb needs.
    """

    target: str
    help: str
    setup: str = "setup"


VERBS = {
    "serve": Verb("cluster.local.serve", "run a server on this machine until Ctrl-C"),
    "stop": Verb("cluster.local.serve:stop", "stop what a crashed or forgotten `podium serve` left running"),
    "doctor": Verb(
        "podium.doctor.cli",
        "find problems with this machine, settings, a cluster or a server, and suggest fixes",
    ),
    "exposure": Verb("cluster.local.ports", "list listening ports, their addresses and their authentication"),
    "demo": Verb(
        "cluster.local.demo", "start a server, ask one question, and show the plan, the answer and the cost"
    ),
    "ask": Verb("podium.ask_cli", "ask a running server one question and watch the plan run"),
    "plan": Verb("podium.plan_cli", "show the plan for a question and its maximum cost, without running it"),
    "runs": Verb("podium.runs_cli:runs", "list the newest runs of a server"),
    "show": Verb("podium.runs_cli:show", "show one run as a tree of plans and steps, with times and costs"),
    "costs": Verb("podium.costs_cli", "show spending per day and worker, and what caches saved"),
    "feedback": Verb("podium.feedback_cli", "rate a run's answer, or export rated questions for training"),
    "models": Verb("podium.runs_cli:models", "list every model name that a server accepts"),
    "keys": Verb("podium.accounts_cli:keys", "create, list, revoke and rotate API keys"),
    "teams": Verb("podium.accounts_cli:teams", "manage teams, whose keys see each other's runs"),
    "budgets": Verb("podium.budgets_cli", "list budgets and spending of teams and keys"),
    "check": Verb(
        "podium.doctor.cli:check",
        "same as podium doctor --cluster: compare settings, Serve config and machines, and estimate the cost",
    ),
    "store": Verb("podium.store_cli", "create, migrate or check the store of keys, budgets and the ledger"),
    "ledger": Verb("podium.ledger_cli", "show, check, reconcile and correct the ledger"),
    "load": Verb("loadtest.cli", "load-test a running server and write a report", "setup-dev"),
    "siege": Verb("loadtest.siege.cli", "attack a server while ordinary clients use it", "setup-dev"),
    "capacity": Verb(
        "loadtest.capacity.cli",
        "simulate the replicas, GPUs and dollars that a request rate needs",
        "setup-dev",
    ),
    "bench": Verb("loadtest.bench.cli", "measure the figures of the README", "setup-learning"),
    "prove": Verb("loadtest.prove.cli", "inject faults and check that no run or dollar is lost", "setup-dev"),
    "eval": Verb("evaluation.cli", "compare strategies on questions with known answers", "setup-learning"),
    "cards": Verb("evaluation.cards.cli", "write each worker's card from measurements"),
    "recorded-pool": Verb(
        "evaluation.replay_settings", "write settings that replay recorded answers", "setup-learning"
    ),
    "train": Verb("training.cli", "train a conductor with reinforcement learning", "setup-learning"),
    "curriculum": Verb(
        "training.curriculum.cli",
        "inspect a conductor's training tasks and how it plans for new teams",
        "setup-learning",
    ),
    "adapters": Verb("podium.adapters_cli", "list the LoRA adapters in use, or in a folder"),
    "adapter": Verb("cluster.local.adapter", "publish a LoRA adapter under the name by which it is served"),
    "docs": Verb(
        "podium.docs.cli",
        "write the generated parts of docs/, or build the documentation as a site",
        "setup-dev",
    ),
    "completion": Verb("podium.completion_cli", "print a completion script for bash, zsh or fish"),
}
PRIVATE = 0o077
"""Umask of most verbs, because exports, reports and records contain users' texts."""
INSTALL = {"serve", "demo", "bench", "docs"}
"""Verbs that keep the caller's umask: they install for all accounts. Users' texts go to a private folder."""
OURS = {"podium", "conductor", "serving", "cluster", "loadtest", "evaluation", "training"}
COMPLETE = "_PODIUM_COMPLETE"
"""Environment variable that is set when a shell requests completions."""
HELP = """Usage: podium COMMAND [OPTIONS]

Many language models answer as one, behind one OpenAI-compatible API.

{verbs}

`podium COMMAND --help` lists the options of a command and their defaults. `podium --version` shows the version.

Example: podium serve --settings cluster/api.yaml --port 8000"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the `podium` command and return its exit code, that of SIGPIPE if the reader has ended."""
    try:
        try:
            return _call(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        stdout = select.poll()
        stdout.register(sys.stdout.fileno(), 0)
        if not stdout.poll(0):
            raise  # another pipe broke, not stdout
        # Python flushes stdout again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _call(arguments: Sequence[str] | None) -> int:
    if instruction := os.environ.get(COMPLETE):
        from podium.completion_cli import complete

        return complete(instruction)
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
        print(f"podium: unknown command {name!r}.{hint} `podium --help` lists all commands.", file=sys.stderr)
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
    """Run the verb `name`. If a package is missing, print the command that installs it and return 2."""
    verb = VERBS[name]
    try:
        from podium.command_line.program import load

        return load(verb.target)(arguments)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in OURS:
            raise
        print(
            f"podium {name} needs the package {error.name}, which is not installed. "
            f"In a checkout, install it with `make {verb.setup}`.",
            file=sys.stderr,
        )
        return 2


if __name__ == "__main__":
    sys.exit(main())
