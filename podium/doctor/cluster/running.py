"""Check for problems that appear only while a cluster runs.

They are missing API keys, workers without a price, runs that are cut off when a replica shuts down, and spot
nodes without a fallback.
"""

from podium.doctor.cluster.deployments import ROUTER, Deployment
from podium.doctor.cluster.files import ClusterFiles
from podium.doctor.cluster.placing import node_type_of
from podium.doctor.finding import Finding, warning, wrong
from serving.settings.fallbacks import fallbacks_of
from serving.settings.workers import API_SETTINGS, places_of

HARD_STOP = "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"
HARD_STOP_S = 120
"""Ray's default seconds until a reloaded HAProxy stops (ray/serve/_private/constants.py, 2.60)."""
SLOWEST_TOKENS_PER_S = 10
"""Minimum speed of a busy engine, for estimating the time of its longest answer."""


def keys(files: ClusterFiles) -> list[Finding]:
    """Check that the nodes get each environment variable with an API key that the settings name."""
    worker_of_key = {
        place.api_key_env: worker
        for worker in files.settings.workers
        for place in places_of(worker).values()
        if isinstance(place, API_SETTINGS) and place.api_key_env
    }
    findings = _webhook_secret(files)
    return findings + [
        wrong(
            f"has no {name}, which is the API key of worker {worker.name!r}.",
            (
                f"Add {name} to the variables that this file fetches or references. "
                + (
                    "Without it, the worker is skipped."
                    if worker.optional
                    else "Without it, the server does not start."
                )
            ),
            file=files.machines.file,
            field="the containers' environment",
        )
        for name, worker in worker_of_key.items()
        if name not in files.machines.environment
    ]


def store(files: ClusterFiles) -> list[Finding]:
    """Check that the nodes get the address of the database. Several nodes cannot share a SQLite file."""
    name = files.settings.store.url_env
    if name in files.machines.environment:
        return []
    return [
        wrong(
            f"has no {name}, which is the address of the store. Routers on several nodes cannot share a SQLite file.",
            f"Add {name} to the variables that this file fetches or references. Without it, no router starts.",
            file=files.machines.file,
            field="the containers' environment",
        )
    ]


def _webhook_secret(files: ClusterFiles) -> list[Finding]:
    """Check that the nodes get the secret for signing webhooks."""
    webhooks = files.settings.webhooks
    if webhooks.url is None or webhooks.secret_env in files.machines.environment:
        return []
    return [
        wrong(
            f"has no {webhooks.secret_env}, which is the secret that signs webhooks.",
            f"Add {webhooks.secret_env} to the variables that this file fetches or references. Without it, the server does not start.",
            file=files.machines.file,
            field="the containers' environment",
        )
    ]


def prices(files: ClusterFiles) -> list[Finding]:
    """Check that each worker of a paid provider has a price. Without one, budgets cannot be enforced."""
    return [
        wrong(
            "is not set and not in the price table, so the cost of its calls is unknown.",
            "Set price: {input_usd_per_mtok: ..., output_usd_per_mtok: ...}, with the values of the provider's price list.",
            file=files.settings_file,
            field=f"worker {worker.name!r}: price",
        )
        for worker in files.settings.workers
        if isinstance(worker, API_SETTINGS)
        and any(place.price is None for place in places_of(worker).values())
    ]


def drains(files: ClusterFiles) -> list[Finding]:
    """Check that replicas and proxies have enough time to finish their requests when they shut down."""
    longest_s = longest_run_s(files)
    findings = [
        wrong(
            f"is {d.drain_s:.0f} s, but a request in progress may take {needed_s:.0f} s.",
            f"Set it to at least {needed_s:.0f}. It can be changed at run time.",
            file=files.serve.file,
            field=f"{d.name}.graceful_shutdown_timeout_s",
        )
        for d in files.deployments
        if d.drain_s < (needed_s := _longest_s(d, longest_s))
    ]
    value = files.machines.environment.get(HARD_STOP)
    stop_s = float(value) if value else HARD_STOP_S
    if files.machines.environment.get("RAY_SERVE_ENABLE_HA_PROXY") == "1" and stop_s <= longest_s:
        findings.append(
            wrong(
                f"is {stop_s:.0f} s, but a run may take {longest_s:.0f} s. A reload of HAProxy would cut it off.",
                f"Set it above {longest_s:.0f} on all nodes.",
                file=files.machines.file,
                field=HARD_STOP,
            )
        )
    return findings


def longest_run_s(files: ClusterFiles) -> float:
    """Return the longest of the default deadlines of requests, in seconds."""
    own = [model.deadline_s for model in files.settings.models.values() if model.deadline_s]
    return max([files.settings.limits.default_deadline_s, *own])


def _longest_s(deployment: Deployment, longest_run: float) -> float:
    if deployment.name == ROUTER or deployment.worker is None:
        return longest_run
    return min(longest_run, deployment.worker.max_output_tokens / SLOWEST_TOKENS_PER_S)


def spot(files: ClusterFiles) -> list[Finding]:
    """Check that workers on spot nodes have fallbacks, and that router and conductor are not there."""
    findings: list[Finding] = []
    conductor = files.settings.conductor.worker if files.settings.conductor else None
    for deployment in files.deployments:
        node = node_type_of(deployment, files.machines.workers)
        if node is None or not node.spot:
            continue
        if deployment.worker is None or deployment.worker.name == conductor:
            findings.append(
                wrong(
                    f"is a spot node type, and {deployment.name} runs on it. If the node is preempted, all of Podium stops.",
                    f"Use an on-demand node type for {deployment.name}.",
                    file=files.machines.file,
                    field=f"{node.name}",
                )
            )
        elif not fallbacks_of(deployment.worker, files.settings):
            findings.append(
                warning(
                    f"are empty, and its node type {node.name} is spot. Steps fail if the node is preempted.",
                    "Add a worker that can answer instead.",
                    file=files.settings_file,
                    field=f"worker {deployment.worker.name!r}: fallbacks",
                )
            )
    return findings
