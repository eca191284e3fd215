"""`podium prove NAME`: start routers over real databases, make things go wrong, and check what clients and records say.

Exit codes: 0 everything held; 1 something did not; 2 there is no such proof, or an option is wrong.
"""

import difflib
import sys
from collections.abc import Sequence
from importlib import import_module

PROOFS = {
    "ledger": (
        "loadtest.prove.ledger",
        "no budget is overspent: 1,000 requests at once, 4 routers, one killed",
    ),
    "records": ("loadtest.prove.records", "runs outlive their router: 500 runs, one of two routers killed"),
    "tools": (
        "loadtest.prove.tools",
        "runs that wait for tools continue right and once: results late, twice, forged",
    ),
    "outages": (
        "loadtest.prove.outages",
        "nothing acknowledged is lost: database stopped, disk full, clock moved (root)",
    ),
    "chaos": (
        "loadtest.prove.chaos",
        "a Ray cluster of three nodes, killed part by part among 200 workflows",
    ),
    "overload": (
        "loadtest.prove.overload",
        "ten times more requests than workers can serve: goodput, p99, memory, 429",
    ),
    "hedging": ("loadtest.prove.hedging", "a slow tail with and without hedges, and none under overload"),
    "first-token": (
        "loadtest.prove.first_token",
        "time to the first token over asking the worker's own server",
    ),
    "lists": (
        "loadtest.prove.run_lists",
        "a page of the list of runs among 1,000,000 stored ones, by each filter",
    ),
    "soak": ("loadtest.prove.soak", "half an hour of mixed load, faults and hang-ups; nothing grows"),
    "fuzz-api": (
        "loadtest.prove.fuzz_api",
        "requests made up from the OpenAPI description; no server errors",
    ),
    "fuzz-streams": (
        "tests.serving.workers.fuzz_streams",
        "damaged answers of providers; each ends soon and clearly",
    ),
    "fuzz-policy": ("tests.serving.fuzz_policy", "random pools, policies and plans; no policy is evaded"),
    "schemas": (
        "tests.serving.fuzz_schemas",
        "random schemas on every kind of worker; no invalid answer passes",
    ),
    "seams": (
        "tests.serving.play_seams",
        "answers cut on every wire continue with nothing doubled or missing",
    ),
}
"""The module and one line about each. Those in `tests` need a checkout."""
HELP = """usage: podium prove NAME [OPTIONS]

Make things go wrong on purpose, and check that what Podium promises holds.

{proofs}

`podium prove NAME --help` lists the options of one.

example: podium prove ledger --store sqlite --runs 1"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one proof, and return its exit code."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help", "help"):
        print(HELP.format(proofs="\n".join(f"  {each:14} {about}" for each, (_, about) in PROOFS.items())))
        return 0
    if name not in PROOFS:
        nearest = difflib.get_close_matches(name, PROOFS, n=1, cutoff=0.5)
        hint = f" Did you mean `{nearest[0]}`?" if nearest else ""
        print(
            f"podium prove: there is no proof {name!r}.{hint} `podium prove --help` lists them.",
            file=sys.stderr,
        )
        return 2
    return import_module(PROOFS[name][0]).main(rest)
