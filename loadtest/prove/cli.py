"""`podium prove NAME`: start routers over real databases, inject faults, and check answers and records.

Exit codes: 0 if every check passed, 1 if one failed, 2 for an unknown proof or a usage error.
"""

from podium.command_line.program import ProgramGroup

PROOFS = {
    "ledger": (
        "loadtest.prove.ledger",
        "no budget is overspent by 1,000 concurrent requests on 4 routers, one of them killed",
    ),
    "records": ("loadtest.prove.records", "500 runs survive when one of two routers is killed"),
    "tools": (
        "loadtest.prove.tools",
        "runs that wait for tools resume correctly and only once, despite late, duplicate and forged results",
    ),
    "outages": (
        "loadtest.prove.outages",
        "nothing acknowledged is lost if the database stops, the disk is full or the clock is moved (needs root)",
    ),
    "chaos": (
        "loadtest.prove.chaos",
        "a three-node Ray cluster with 200 workflows survives while its processes are killed one by one",
    ),
    "overload": (
        "loadtest.prove.overload",
        "ten times more requests than the workers can serve do not reduce goodput",
    ),
    "hedging": ("loadtest.prove.hedging", "hedges shorten a slow tail, and stop under overload"),
    "first-token": (
        "loadtest.prove.first_token",
        "time to first token, compared with calling the worker's server directly",
    ),
    "conversations": (
        "loadtest.prove.conversations",
        "long conversations cost hardly more than at the provider, because they keep its prompt cache",
    ),
    "affinity": (
        "loadtest.prove.affinity",
        "conversations stay at their deployment on every router, and return after it has failed",
    ),
    "lists": (
        "loadtest.prove.run_lists",
        "lists of runs are fast with 1,000,000 stored runs, with every filter",
    ),
    "soak": ("loadtest.prove.soak", "half an hour of mixed load, faults and disconnects leaks no resources"),
    "fuzz-api": (
        "loadtest.prove.fuzz_api",
        "requests generated from the OpenAPI description cause no server errors",
    ),
    "fuzz-streams": (
        "tests.serving.workers.fuzz_streams",
        "damaged answers of providers end quickly with a clear error",
    ),
    "fuzz-policy": ("tests.serving.fuzz_policy", "random pools, policies and plans never evade a policy"),
    "schemas": (
        "tests.serving.fuzz_schemas",
        "no invalid answer passes a random schema, on every kind of worker",
    ),
    "seams": (
        "tests.serving.play_seams",
        "answers that are cut off continue without duplicate or missing text, in every provider's protocol",
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
