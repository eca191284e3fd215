"""How many replicas there are and why: the Serve config's `autoscaling_config` takes the place of the
settings' whole one.

What it leaves out is Ray's default and not the settings' value; its policy too. Where both speak, both must
say the same: the settings are what the docs, the simulator and a Podium without this Serve config go by.
"""

from cluster.check.case import Case
from cluster.check.code import cannot_be_imported
from cluster.check.deployments import RAYS_SCALING, ROUTER, Deployment
from cluster.check.findings import Finding, section
from serving.deployments.autoscaling import POLICY, autoscaling

IN_SETTINGS = {"metrics_interval_s": "look_back_period_s"}
"""What follows from a setting of another name: a load is reported four times in a look-back period."""


def policies(case: Case) -> list[Finding]:
    """Every deployment that scales uses Podium's policy, which can be imported."""
    return [finding for each in case.deployments if (finding := _policy(case, each))]


def _policy(case: Case, deployment: Deployment) -> Finding | None:
    if deployment.scaling is None:
        return None
    name = section(deployment.scaling, "policy").get("policy_function")
    field, remedy = f"{deployment.name}.autoscaling_config.policy", f'policy: {{policy_function: "{POLICY}"}}'
    if not name:
        says = "is not in it: Ray's own policy holds, by open requests alone; an engine's queue and cache count for nothing"
        return Finding(case.serve.file, field, says, remedy)
    if reason := cannot_be_imported(str(name)):
        return Finding(case.serve.file, field, f"is {name}: {reason}", remedy)
    if str(name).replace(":", ".") != POLICY.replace(":", "."):
        says = f"is {name}, another policy than Podium's: nothing here knows what it scales by"
        return Finding(case.serve.file, field, says, f"{remedy}, unless it is meant", fault=False)
    return None


def counts(case: Case) -> list[Finding]:
    """At least one replica may run, and each admits as many requests as it is meant to carry."""
    found: list[Finding] = []
    for each in case.deployments:
        least = (
            1 if each.name == ROUTER else 0
        )  # nobody but a router could tell that the first one is to be started
        if each.max_replicas < 1 or each.min_replicas < least:
            found.append(
                Finding(
                    case.serve.file,
                    f"{each.name}.num_replicas",
                    f"is {min(each.min_replicas, each.max_replicas)}: nothing answers",
                    "at least 1 (of an engine that is rarely used, min_replicas: 0 with max_replicas: 1)",
                )
            )
        elif each.min_replicas > each.max_replicas:
            found.append(
                Finding(
                    case.serve.file,
                    f"{each.name}.autoscaling_config.min_replicas",
                    f"is {each.min_replicas}, above max_replicas, {each.max_replicas}",
                    "raise max_replicas, or lower it",
                )
            )
        if (
            each.min_replicas != each.max_replicas
            and each.target_ongoing_requests > each.max_ongoing_requests
        ):
            found.append(
                Finding(
                    case.serve.file,
                    f"{each.name}.autoscaling_config.target_ongoing_requests",
                    f"is {each.target_ongoing_requests:g}; no replica is given more than max_ongoing_requests, {each.max_ongoing_requests}: "
                    "it is full before it is meant to have company",
                    "lower it, or raise max_ongoing_requests",
                )
            )
    return found


def both(case: Case) -> list[Finding]:
    """Settings and Serve config agree on how replicas scale."""
    return [finding for each in case.deployments for finding in _differences(case, each)]


def _differences(case: Case, deployment: Deployment) -> list[Finding]:
    if deployment.scaling is None:
        return []
    written = autoscaling(deployment.worker.scale if deployment.worker else case.settings.router)
    place = f"worker {deployment.worker.name!r}: scale" if deployment.worker else "router"
    found: list[Finding] = []
    for name, rays in RAYS_SCALING.items():
        wanted, holds = getattr(written, name), deployment.scaling.get(name, rays)
        if float(holds) == float(wanted):
            continue
        given = (
            f"is {holds:g}" if name in deployment.scaling else f"is not in it, so that Ray's {holds:g} holds"
        )
        setting = IN_SETTINGS.get(name, name)
        follows = "" if setting == name else f", from {setting}"
        found.append(
            Finding(
                case.serve.file,
                f"{deployment.name}.autoscaling_config.{name}",
                f"{given}; {case.settings_file}, {place}, has {wanted:g}{follows}",
                f"{name}: {wanted:g} here, or `{setting}` there: what the Serve config says is what happens",
            )
        )
    return found
