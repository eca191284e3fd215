"""Autoscaling policy, which computes the number of replicas from their reported load and from open requests.

A stream counts as a single open request, however long it lasts. A policy that only counts requests would
therefore keep few replicas while their queues grow.

Each replica reports its own `load`. 1.0 is the load that one replica should carry. See
`Engine.record_autoscaling_stats` (vLLM's queue and KV cache) and `Router.record_autoscaling_stats` (calls
that run and wait). Ray Serve applies the delays, factors and
bounds of `autoscaling_config` to the result.
"""

from typing import Any

from ray.serve.config import AutoscalingConfig, AutoscalingContext, AutoscalingPolicy

from serving.settings.scale import Scaling

LOAD = "load"
"""Name of the metric that a replica reports."""
REPORTS = 4
"""Number of reports in each look-back period. The load is averaged over such a period."""
MAX_INTERVAL_S = 10.0
"""Longest time between two reports, Ray Serve's default. The first call to a deployment scaled to zero may
wait this long before a replica starts. Ray 2.60 ignores the environment variables that should replace this
field.
"""
POLICY = "serving.deployments.autoscaling:by_load"


def by_load(context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
    """Return the needed replicas by the calls that run or wait, or by reported loads, whichever is larger. As
    long as a replica has not reported, loads remove none.
    """
    running = context.current_num_replicas
    if running == 0 or context.config is None:
        return context.target_num_replicas, {}  # Serve itself starts a replica on the first call
    by_calls = context.total_num_requests / context.config.get_target_ongoing_requests()
    loads = (context.aggregated_metrics or {}).get(LOAD, {})
    unreported = running - len(loads)  # new replicas
    by_reports = max(sum(loads.values()), running if unreported else 0)
    return max(by_calls, by_reports), {}


def autoscaling(scale: Scaling) -> AutoscalingConfig:
    """Return `scale` as Ray Serve's configuration."""
    return AutoscalingConfig(
        min_replicas=scale.min_replicas,
        max_replicas=scale.max_replicas,
        initial_replicas=scale.min_replicas,
        target_ongoing_requests=scale.target_ongoing_requests,
        upscale_delay_s=scale.upscale_delay_s,
        downscale_delay_s=scale.downscale_delay_s,
        downscale_to_zero_delay_s=scale.downscale_to_zero_delay_s,
        look_back_period_s=scale.look_back_period_s,
        metrics_interval_s=min(scale.look_back_period_s / REPORTS, MAX_INTERVAL_S),
        policy=AutoscalingPolicy(policy_function=POLICY),
    )
