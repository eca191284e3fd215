"""Check replica counts and autoscaling.

The `autoscaling_config` of the Serve config replaces that of the settings as a whole. Fields that it omits,
including the policy, get Ray's defaults and not the values of the settings. Fields in both files must agree,
because the docs, the simulator and deployments without this Serve config use the settings.
"""

from podium.doctor.cluster.code import cannot_be_imported
from podium.doctor.cluster.deployments import RAYS_SCALING, ROUTER, Deployment
from podium.doctor.cluster.files import ClusterFiles
from podium.doctor.cluster.reading import section
from podium.doctor.finding import Finding, warning, wrong
from serving.deployments.autoscaling import POLICY, autoscaling

IN_SETTINGS = {"metrics_interval_s": "look_back_period_s"}
"""Setting from which another field is derived. Loads are reported four times per look-back period."""


def policies(files: ClusterFiles) -> list[Finding]:
    """Check that each autoscaled deployment uses Podium's policy, and that the policy can be imported."""
    return [finding for each in files.deployments if (finding := _policy(files, each))]


def _policy(files: ClusterFiles, deployment: Deployment) -> Finding | None:
    if deployment.scaling is None:
        return None
    name = section(deployment.scaling, "policy").get("policy_function")
    field, remedy = (
        f"{deployment.name}.autoscaling_config.policy",
        f'Set policy: {{policy_function: "{POLICY}"}}',
    )
    if not name:
        message = "is missing. Ray's own policy applies, which ignores the queue and the cache of an engine."
        return wrong(message, f"{remedy}.", file=files.serve.file, field=field)
    if reason := cannot_be_imported(str(name)):
        return wrong(f"is {name}, but {reason}.", f"{remedy}.", file=files.serve.file, field=field)
    if str(name).replace(":", ".") != POLICY.replace(":", "."):
        message = f"is {name} and not Podium's policy, so its scaling cannot be checked."
        return warning(
            message, f"{remedy}, unless your own policy is intended.", file=files.serve.file, field=field
        )
    return None


def counts(files: ClusterFiles) -> list[Finding]:
    """Check that a deployment may have a replica, which accepts at least its target number of requests."""
    findings: list[Finding] = []
    for each in files.deployments:
        least = 1 if each.name == ROUTER else 0  # only a running router can trigger the start of an engine
        if each.max_replicas < 1 or each.min_replicas < least:
            findings.append(
                wrong(
                    f"is {min(each.min_replicas, each.max_replicas)}, so no replica can answer.",
                    "Set it to at least 1. For a rarely used engine, set min_replicas: 0 and max_replicas: 1.",
                    file=files.serve.file,
                    field=f"{each.name}.num_replicas",
                )
            )
        elif each.min_replicas > each.max_replicas:
            findings.append(
                wrong(
                    f"is {each.min_replicas}, which is above max_replicas ({each.max_replicas}).",
                    "Lower min_replicas, or raise max_replicas.",
                    file=files.serve.file,
                    field=f"{each.name}.autoscaling_config.min_replicas",
                )
            )
        if (
            each.min_replicas != each.max_replicas
            and each.target_ongoing_requests > each.max_ongoing_requests
        ):
            findings.append(
                wrong(
                    (
                        f"is {each.target_ongoing_requests:g}, which is above max_ongoing_requests ({each.max_ongoing_requests}). "
                        "A replica would be full before it triggers a scale-up."
                    ),
                    "Lower target_ongoing_requests, or raise max_ongoing_requests.",
                    file=files.serve.file,
                    field=f"{each.name}.autoscaling_config.target_ongoing_requests",
                )
            )
    return findings


def both(files: ClusterFiles) -> list[Finding]:
    """Check that the settings and the Serve config agree on autoscaling."""
    return [finding for each in files.deployments for finding in _differences(files, each)]


def _differences(files: ClusterFiles, deployment: Deployment) -> list[Finding]:
    if deployment.scaling is None:
        return []
    expected_scaling = autoscaling(deployment.worker.scale if deployment.worker else files.settings.router)
    place = f"worker {deployment.worker.name!r}: scale" if deployment.worker else "router"
    findings: list[Finding] = []
    for name, rays in RAYS_SCALING.items():
        expected, actual = getattr(expected_scaling, name), deployment.scaling.get(name, rays)
        if float(actual) == float(expected):
            continue
        state = (
            f"is {actual:g}"
            if name in deployment.scaling
            else f"is missing, so Ray's default of {actual:g} applies"
        )
        setting = IN_SETTINGS.get(name, name)
        source = "" if setting == name else f" (from {setting})"
        findings.append(
            wrong(
                f"{state}, but the settings have {expected:g}{source} in {files.settings_file}, {place}.",
                f"Set {name}: {expected:g} here, or change `{setting}` in the settings. The Serve config takes precedence.",
                file=files.serve.file,
                field=f"{deployment.name}.autoscaling_config.{name}",
            )
        )
    return findings
