"""Number of replicas for a load."""

from typing import Any

from ray.serve.config import AutoscalingConfig, AutoscalingContext

from serving.deployments.autoscaling import LOAD, autoscaling, by_load
from serving.settings.scale import Scaling


def test_loads_are_reported_several_times_per_averaging_period() -> None:
    assert autoscaling(Scaling(look_back_period_s=2)).metrics_interval_s == 0.5
    assert autoscaling(Scaling(look_back_period_s=300)).metrics_interval_s == 10


def test_queued_streams_request_more_replicas_than_calls_alone() -> None:
    def replicas_for(calls: float, loads: list[float], replicas: int) -> float:
        metrics: Any = {LOAD: dict(enumerate(loads))} if loads else {}
        context = AutoscalingContext(
            deployment_id=None, deployment_name="d", app_name="a", current_num_replicas=replicas, target_num_replicas=replicas,
            running_replicas=[], total_num_requests=calls, total_queued_requests=0, aggregated_metrics=metrics, raw_metrics={},
            capacity_adjusted_min_replicas=0, capacity_adjusted_max_replicas=9, policy_state={}, last_scale_up_time=None,
            last_scale_down_time=None, current_time=0, config=AutoscalingConfig(target_ongoing_requests=10, max_replicas=9),
        )  # type: ignore[arg-type]  # fmt: skip
        return by_load(context)[0]

    assert replicas_for(20, [0.5, 0.5], 2) == 2, "calls alone"
    assert replicas_for(4, [1.5, 1.5], 2) == 3, (
        "few calls, and each replica's queue is half as long again as what it serves"
    )
    assert replicas_for(4, [3.0], 3) == 3, "what nobody reported asks for no more"
    assert replicas_for(4, [0.5], 2) == 2, "and takes nobody away"
    assert replicas_for(0, [0.0, 0.0], 2) == 0
    assert replicas_for(30, [], 0) == 0, "from none, Serve's own rule starts the first one"
