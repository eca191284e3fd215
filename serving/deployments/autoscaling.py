"""How many replicas a deployment wants: by what its replicas say they carry, not by open requests alone.

A stream is one open request from its first token to its last, so a policy that counts requests stays at few
replicas while their queues grow. Here each replica reports its own `load`, where 1.0 is as much as one
replica is meant to carry: see `Engine.record_autoscaling_stats` (vLLM's queue and KV cache) and
`Router.record_autoscaling_stats` (steps in flight and waiting). Ray Serve lays delays, factors and bounds
of the `autoscaling_config` over what is returned here.
"""

from typing import Any

from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from serving.settings.scale import Scaling

LOAD = "load"
"""The one figure that a replica reports."""
REPORTS = 4
"""How often a load is reported within the time over which it is averaged."""
SELDOM_S = 10.0
"""Ray Serve's own interval, with which a first call to a deployment of no replica may wait as long before
one is started. The environment variables that are meant to take this field's place are read by nothing in
Ray 2.60."""
POLICY = "serving.deployments.autoscaling:by_load"


def by_load(context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
    """As many replicas as the greater of two measures asks for: calls under way and waiting for a replica,
    and reported loads.

    While some replica has not reported yet, none is taken away for want of load, and none added for load
    that nobody reported.
    """
    running = context.current_num_replicas
    if running == 0 or context.config is None:
        return context.target_num_replicas, {}  # a first call starts one at once: Serve's own rule
    by_calls = context.total_num_requests / context.config.get_target_ongoing_requests()
    loads = (context.aggregated_metrics or {}).get(LOAD, {})
    unheard = running - len(loads)  # just started: what they carry is in nobody's report yet
    by_reports = max(sum(loads.values()), running if unheard else 0)
    return max(by_calls, by_reports), {}


def autoscaling(scale: Scaling) -> AutoscalingConfig:
    """What `scale` says, as Ray Serve takes it."""
    return AutoscalingConfig(
        min_replicas=scale.min_replicas,
        max_replicas=scale.max_replicas,
        initial_replicas=scale.min_replicas,
        target_ongoing_requests=scale.target_ongoing_requests,
        upscale_delay_s=scale.upscale_delay_s,
        downscale_delay_s=scale.downscale_delay_s,
        downscale_to_zero_delay_s=scale.downscale_to_zero_delay_s,
        look_back_period_s=scale.look_back_period_s,
        metrics_interval_s=min(scale.look_back_period_s / REPORTS, SELDOM_S),
        policy=AutoscalingPolicy(policy_function=POLICY),
    )
