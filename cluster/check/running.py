"""What fails only later: keys that no node has, workers without a price, runs that draining cuts off, spot
nodes without a replacement.
"""

from cluster.check.case import Case
from cluster.check.deployments import ROUTER, Deployment
from cluster.check.findings import Finding
from cluster.check.placing import home
from serving.settings.fallbacks import fallbacks_of
from serving.settings.workers import API_SETTINGS, places_of

HARD_STOP = "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"
HARD_STOP_S = 120
"""Ray's default (ray/serve/_private/constants.py, 2.60)."""
SLOWEST_TOKENS_PER_S = 10
"""A busy engine writes no slower: how long its longest answer may take."""


def keys(case: Case) -> list[Finding]:
    """Every key that the settings name reaches the nodes."""
    wanted = {
        place.api_key_env: worker
        for worker in case.settings.workers
        for place in places_of(worker).values()
        if isinstance(place, API_SETTINGS) and place.api_key_env
    }
    found = _webhook_secret(case)
    return found + [
        Finding(
            case.machines.file,
            "the containers' environment",
            f"has no {name}, the key of worker {worker.name!r}",
            f"add {name} to the variables that are fetched or referred to there"
            + ("; the worker is left out without it" if worker.optional else "; nothing starts without it"),
        )
        for name, worker in wanted.items()
        if name not in case.machines.environment
    ]


def store(case: Case) -> list[Finding]:
    """The address of the database reaches the nodes: routers may run on several, which a SQLite file does not serve."""
    name = case.settings.store.url_env
    if name in case.machines.environment:
        return []
    return [
        Finding(
            case.machines.file,
            "the containers' environment",
            f"has no {name}, the address of the store; routers of several nodes cannot share a SQLite file",
            f"add {name} to the variables that are fetched or referred to there; no router starts without it",
        )
    ]


def _webhook_secret(case: Case) -> list[Finding]:
    """What signs webhooks reaches the nodes."""
    webhooks = case.settings.webhooks
    if webhooks.url is None or webhooks.secret_env in case.machines.environment:
        return []
    return [
        Finding(
            case.machines.file,
            "the containers' environment",
            f"has no {webhooks.secret_env}, which signs webhooks",
            f"add {webhooks.secret_env} to the variables that are fetched or referred to there; nothing starts without it",
        )
    ]


def prices(case: Case) -> list[Finding]:
    """Every worker of the pool that is billed has a price, its own or the price table's: with an unknown one, no
    budget can be kept.
    """
    return [
        Finding(
            case.settings_file,
            f"worker {worker.name!r}: price",
            "is not set, and the price table has none; what its calls cost is unknown",
            "price: {input_usd_per_mtok: ..., output_usd_per_mtok: ...}, from the provider's list",
        )
        for worker in case.settings.workers
        if isinstance(worker, API_SETTINGS)
        and any(place.price is None for place in places_of(worker).values())
    ]


def drains(case: Case) -> list[Finding]:
    """A replica or proxy that shuts down lets its requests finish."""
    longest_s = longest_run_s(case)
    found = [
        Finding(
            case.serve.file,
            f"{d.name}.graceful_shutdown_timeout_s",
            f"is {d.drain_s:.0f} s; what it has begun may take {needed_s:.0f} s",
            f"at least {needed_s:.0f}: changes while it runs",
        )
        for d in case.deployments
        if d.drain_s < (needed_s := _longest_s(d, longest_s))
    ]
    value = case.machines.environment.get(HARD_STOP)
    stop_s = float(value) if value else HARD_STOP_S
    if case.machines.environment.get("RAY_SERVE_ENABLE_HA_PROXY") == "1" and stop_s <= longest_s:
        found.append(
            Finding(
                case.machines.file,
                HARD_STOP,
                f"is {stop_s:.0f} s; a run may take {longest_s:.0f} s and is cut by a reload",
                f"set it on all nodes, above {longest_s:.0f}",
            )
        )
    return found


def longest_run_s(case: Case) -> float:
    """The longest default deadline of a request."""
    own = [model.deadline_s for model in case.settings.models.values() if model.deadline_s]
    return max([case.settings.limits.default_deadline_s, *own])


def _longest_s(deployment: Deployment, longest_run: float) -> float:
    if deployment.name == ROUTER or deployment.worker is None:
        return longest_run
    return min(longest_run, deployment.worker.max_output_tokens / SLOWEST_TOKENS_PER_S)


def spot(case: Case) -> list[Finding]:
    """What runs on spot nodes can run elsewhere too; router and conductor do not run on them."""
    found: list[Finding] = []
    conductor = case.settings.conductor.worker if case.settings.conductor else None
    for deployment in case.deployments:
        node = home(deployment, case.machines.workers)
        if node is None or not node.spot:
            continue
        if deployment.worker is None or deployment.worker.name == conductor:
            found.append(
                Finding(
                    case.machines.file,
                    f"{node.name}",
                    f"is spot, and {deployment.name} runs on it: everything goes with it",
                    "a node type on demand for it",
                )
            )
        elif not fallbacks_of(deployment.worker, case.settings):
            found.append(
                Finding(
                    case.settings_file,
                    f"worker {deployment.worker.name!r}: fallbacks",
                    f"are none, and {node.name} is spot: its steps fail when the node is taken back",
                    "name a worker that may answer instead",
                    fault=False,
                )
            )
    return found
