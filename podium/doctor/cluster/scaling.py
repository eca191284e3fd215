"""How many replicas there are and why: the Serve config's `autoscaling_config` takes the place of the
settings' whole one.

What it leaves out is Ray's default and not the settings' value; its policy too. Where both speak, both must
say the same: the settings are what the docs, the simulator and a Podium without this Serve config go by.
"""

from podium.doctor.cluster.code import cannot_be_imported
from podium.doctor.cluster.deployments import RAYS_SCALING, ROUTER, Deployment
from podium.doctor.cluster.files import ClusterFiles
from podium.doctor.cluster.reading import section
from podium.doctor.finding import Finding, warning, wrong
from serving.deployments.autoscaling import POLICY, autoscaling

IN_SETTINGS = {"metrics_interval_s": "look_back_period_s"}
"""What follows from a setting of another name: a load is reported four times in a look-back period."""


def policies(files: ClusterFiles) -> list[Finding]:
    """Every deployment that scales uses Podium's policy, which can be imported."""
    return [finding for each in files.deployments if (finding := _policy(files, each))]


def _policy(files: ClusterFiles, deployment: Deployment) -> Finding | None:
    if deployment.scaling is None:
        return None
    name = section(deployment.scaling, "policy").get("policy_function")
    field, remedy = f"{deployment.name}.autoscaling_config.policy", f'policy: {{policy_function: "{POLICY}"}}'
    if not name:
        says = "is not in it: Ray's own policy holds, by open requests alone; an engine's queue and cache count for nothing"
        return wrong(says, remedy, file=files.serve.file, field=field)
    if reason := cannot_be_imported(str(name)):
        return wrong(f"is {name}: {reason}", remedy, file=files.serve.file, field=field)
    if str(name).replace(":", ".") != POLICY.replace(":", "."):
        says = f"is {name}, another policy than Podium's: nothing here knows what it scales by"
        return warning(says, f"{remedy}, unless it is meant", file=files.serve.file, field=field)
    return None


def counts(files: ClusterFiles) -> list[Finding]:
    """At least one replica may run, and each admits as many requests as it is meant to carry."""
    found: list[Finding] = []
    for each in files.deployments:
        least = (
            1 if each.name == ROUTER else 0
        )  # nobody but a router could tell that the first one is to be started
        if each.max_replicas < 1 or each.min_replicas < least:
            found.append(
                wrong(
                    f"is {min(each.min_replicas, each.max_replicas)}: nothing answers",
                    "at least 1 (of an engine that is rarely used, min_replicas: 0 with max_replicas: 1)",
                    file=files.serve.file,
                    field=f"{each.name}.num_replicas",
                )
            )
        elif each.min_replicas > each.max_replicas:
            found.append(
                wrong(
                    f"is {each.min_replicas}, above max_replicas, {each.max_replicas}",
                    "raise max_replicas, or lower it",
                    file=files.serve.file,
                    field=f"{each.name}.autoscaling_config.min_replicas",
                )
            )
        if (
            each.min_replicas != each.max_replicas
            and each.target_ongoing_requests > each.max_ongoing_requests
        ):
            found.append(
                wrong(
                    (
                        f"is {each.target_ongoing_requests:g}; no replica is given more than max_ongoing_requests, {each.max_ongoing_requests}: "
                        "it is full before it is meant to have company"
                    ),
                    "lower it, or raise max_ongoing_requests",
                    file=files.serve.file,
                    field=f"{each.name}.autoscaling_config.target_ongoing_requests",
                )
            )
    return found


def both(files: ClusterFiles) -> list[Finding]:
    """Settings and Serve config agree on how replicas scale."""
    return [finding for each in files.deployments for finding in _differences(files, each)]


def _differences(files: ClusterFiles, deployment: Deployment) -> list[Finding]:
    if deployment.scaling is None:
        return []
    written = autoscaling(deployment.worker.scale if deployment.worker else files.settings.router)
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
            wrong(
                f"{given}; {files.settings_file}, {place}, has {wanted:g}{follows}",
                f"{name}: {wanted:g} here, or `{setting}` there: what the Serve config says is what happens",
                file=files.serve.file,
                field=f"{deployment.name}.autoscaling_config.{name}",
            )
        )
    return found
