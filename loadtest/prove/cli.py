"""`podium prove NAME`: start routers over real databases, inject faults, and check answers and records.

Exit codes: 0 if every check passed, 1 if one failed, 2 for an unknown proof or a usage error.
"""

import difflib
import sys
from collections.abc import Sequence
from importlib import import_module

PROOFS = {
    "ledger": (
        "loadtest.prove.ledger",
        "no budget is overspent: 1,000 concurrent requests, 4 routers, one killed",
    ),
    "records": ("loadtest.prove.records", "runs outlive their router: 500 runs, one of two routers killed"),
    "tools": (
        "loadtest.prove.tools",
        "runs that wait for tools resume correctly and once: late, duplicate and forged results",
    ),
    "outages": (
        "loadtest.prove.outages",
        "nothing acknowledged is lost: database stopped, disk full, clock moved (needs root)",
    ),
    "chaos": (
        "loadtest.prove.chaos",
        "a three-node Ray cluster under 200 workflows, its processes killed one by one",
    ),
    "overload": (
        "loadtest.prove.overload",
        "ten times more requests than workers can serve: goodput, p99, memory, 429",
    ),
    "hedging": (
        "loadtest.prove.hedging",
        "a slow tail with and without hedges, and no hedges under overload",
    ),
    "first-token": (
        "loadtest.prove.first_token",
        "time to the first token, compared with calling the worker's server directly",
    ),
    "lists": (
        "loadtest.prove.run_lists",
        "pages of the list of runs among 1,000,000 stored ones, by each filter",
    ),
    "soak": ("loadtest.prove.soak", "half an hour of mixed load, faults and disconnects without a leak"),
    "fuzz-api": (
        "loadtest.prove.fuzz_api",
        "requests generated from the OpenAPI description; no server errors",
    ),
    "fuzz-streams": (
        "tests.serving.workers.fuzz_streams",
        "damaged answers of providers; each ends soon with a clear error",
    ),
    "fuzz-policy": ("tests.serving.fuzz_policy", "random pools, policies and plans; no policy is evaded"),
    "schemas": (
        "tests.serving.fuzz_schemas",
        "random schemas on every kind of worker; no invalid answer passes",
    ),
    "seams": (
        "tests.serving.play_seams",
        "answers cut off in every provider's protocol continue with nothing duplicated or missing",
    ),
}
"""Proof to its module and a one-line summary. Modules in `tests` need a checkout."""
HELP = """usage: podium prove NAME [OPTIONS]

Inject faults on purpose, and check that Podium keeps its promises.

{proofs}

`podium prove NAME --help` lists the options of a proof.

example: podium prove ledger --store sqlite --runs 1"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one proof and return its exit code."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help", "help"):
        print(HELP.format(proofs="\n".join(f"  {each:14} {about}" for each, (_, about) in PROOFS.items())))
        return 0
    if name not in PROOFS:
        nearest = difflib.get_close_matches(name, PROOFS, n=1, cutoff=0.5)
        hint = f" Did you mean `{nearest[0]}`?" if nearest else ""
        print(
            f"podium prove: unknown proof {name!r}.{hint} `podium prove --help` lists all proofs.",
            file=sys.stderr,
        )
        return 2
    return import_module(PROOFS[name][0]).main(rest)
