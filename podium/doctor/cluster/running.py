"""What fails only later: keys that no node has, workers without a price, runs that draining cuts off, spot
nodes without a replacement.
"""

from podium.doctor.cluster.deployments import ROUTER, Deployment
from podium.doctor.cluster.files import ClusterFiles
from podium.doctor.cluster.placing import home
from podium.doctor.finding import Finding, warning, wrong
from serving.settings.fallbacks import fallbacks_of
from serving.settings.workers import API_SETTINGS, places_of

HARD_STOP = "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"
HARD_STOP_S = 120
"""Ray's default (ray/serve/_private/constants.py, 2.60)."""
SLOWEST_TOKENS_PER_S = 10
"""A busy engine writes no slower: how long its longest answer may take."""


def keys(files: ClusterFiles) -> list[Finding]:
    """Every key that the settings name reaches the nodes."""
    wanted = {
        place.api_key_env: worker
        for worker in files.settings.workers
        for place in places_of(worker).values()
        if isinstance(place, API_SETTINGS) and place.api_key_env
    }
    found = _webhook_secret(files)
    return found + [
        wrong(
            f"has no {name}, the key of worker {worker.name!r}",
            (
                f"add {name} to the variables that are fetched or referred to there"
                + (
                    "; the worker is left out without it"
                    if worker.optional
                    else "; nothing starts without it"
                )
            ),
            file=files.machines.file,
            field="the containers' environment",
        )
        for name, worker in wanted.items()
        if name not in files.machines.environment
    ]


def store(files: ClusterFiles) -> list[Finding]:
    """The address of the database reaches the nodes: routers may run on several, which a SQLite file does not serve."""
    name = files.settings.store.url_env
    if name in files.machines.environment:
        return []
    return [
        wrong(
            f"has no {name}, the address of the store; routers of several nodes cannot share a SQLite file",
            f"add {name} to the variables that are fetched or referred to there; no router starts without it",
            file=files.machines.file,
            field="the containers' environment",
        )
    ]


def _webhook_secret(files: ClusterFiles) -> list[Finding]:
    """What signs webhooks reaches the nodes."""
    webhooks = files.settings.webhooks
    if webhooks.url is None or webhooks.secret_env in files.machines.environment:
        return []
    return [
        wrong(
            f"has no {webhooks.secret_env}, which signs webhooks",
            f"add {webhooks.secret_env} to the variables that are fetched or referred to there; nothing starts without it",
            file=files.machines.file,
            field="the containers' environment",
        )
    ]


def prices(files: ClusterFiles) -> list[Finding]:
    """Every worker of the pool that is billed has a price, its own or the price table's: with an unknown one, no
    budget can be kept.
    """
    return [
        wrong(
            "is not set, and the price table has none; what its calls cost is unknown",
            "price: {input_usd_per_mtok: ..., output_usd_per_mtok: ...}, from the provider's list",
            file=files.settings_file,
            field=f"worker {worker.name!r}: price",
        )
        for worker in files.settings.workers
        if isinstance(worker, API_SETTINGS)
        and any(place.price is None for place in places_of(worker).values())
    ]


def drains(files: ClusterFiles) -> list[Finding]:
    """A replica or proxy that shuts down lets its requests finish."""
    longest_s = longest_run_s(files)
    found = [
        wrong(
            f"is {d.drain_s:.0f} s; what it has begun may take {needed_s:.0f} s",
            f"at least {needed_s:.0f}: changes while it runs",
            file=files.serve.file,
            field=f"{d.name}.graceful_shutdown_timeout_s",
        )
        for d in files.deployments
        if d.drain_s < (needed_s := _longest_s(d, longest_s))
    ]
    value = files.machines.environment.get(HARD_STOP)
    stop_s = float(value) if value else HARD_STOP_S
    if files.machines.environment.get("RAY_SERVE_ENABLE_HA_PROXY") == "1" and stop_s <= longest_s:
        found.append(
            wrong(
                f"is {stop_s:.0f} s; a run may take {longest_s:.0f} s and is cut by a reload",
                f"set it on all nodes, above {longest_s:.0f}",
                file=files.machines.file,
                field=HARD_STOP,
            )
        )
    return found


def longest_run_s(files: ClusterFiles) -> float:
    """The longest default deadline of a request."""
    own = [model.deadline_s for model in files.settings.models.values() if model.deadline_s]
    return max([files.settings.limits.default_deadline_s, *own])


def _longest_s(deployment: Deployment, longest_run: float) -> float:
    if deployment.name == ROUTER or deployment.worker is None:
        return longest_run
    return min(longest_run, deployment.worker.max_output_tokens / SLOWEST_TOKENS_PER_S)


def spot(files: ClusterFiles) -> list[Finding]:
    """What runs on spot nodes can run elsewhere too; router and conductor do not run on them."""
    found: list[Finding] = []
    conductor = files.settings.conductor.worker if files.settings.conductor else None
    for deployment in files.deployments:
        node = home(deployment, files.machines.workers)
        if node is None or not node.spot:
            continue
        if deployment.worker is None or deployment.worker.name == conductor:
            found.append(
                wrong(
                    f"is spot, and {deployment.name} runs on it: everything goes with it",
                    "a node type on demand for it",
                    file=files.machines.file,
                    field=f"{node.name}",
                )
            )
        elif not fallbacks_of(deployment.worker, files.settings):
            found.append(
                warning(
                    f"are none, and {node.name} is spot: its steps fail when the node is taken back",
                    "name a worker that may answer instead",
                    file=files.settings_file,
                    field=f"worker {deployment.worker.name!r}: fallbacks",
                )
            )
    return found
