"""`podium prove NAME`: start routers over real databases, inject faults, and check answers and records.

Exit codes: 0 if every check passed, 1 if one failed, 2 for an unknown proof or a usage error.
"""

import sys

from podium.command_line.program import ProgramGroup

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
"""Each proof with its module and a one-line summary. Modules in `tests` need a checkout."""


main = ProgramGroup(
    "podium prove",
    PROOFS,
    help="Inject faults on purpose, and check that Podium keeps its promises. `podium prove NAME --help` lists the "
    "options of a proof.",
    epilog="Example: podium prove ledger --store sqlite --runs 1",
)


if __name__ == "__main__":
    sys.exit(main())
