"""Number and size of the replicas of a deployment: an engine, or the router."""

import re
from typing import Self

from pydantic import Field, field_validator, model_validator

from serving.settings.model_access import Frozen

SECRET = re.compile(r"(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS|HEADERS)$")
"""Names of environment variables that hold secrets. `OTEL_EXPORTER_OTLP_HEADERS` holds the collector's key."""


class Scaling(Frozen):
    """Number of replicas of a deployment, and when it changes; see `serving/deployments/autoscaling.py`."""

    min_replicas: int = Field(default=1, ge=0)
    """Minimum number of replicas. At 0, the deployment can stop all its replicas."""
    max_replicas: int = Field(default=1, ge=1)
    """Maximum number of replicas."""
    target_ongoing_requests: float = Field(default=16, gt=0)
    """Target number of concurrent requests per replica, including queued requests."""
    max_ongoing_requests: int = Field(default=256, ge=1)
    """Maximum number of concurrent requests that are sent to one replica. Further requests wait for a slot.
    """
    upscale_delay_s: float = Field(default=5, ge=0)
    """Time, in seconds, for which demand must exceed capacity before replicas are added. The first replica
    starts immediately."""
    downscale_delay_s: float = Field(default=300, ge=0)
    """Time, in seconds, for which capacity must exceed demand before replicas are removed."""
    downscale_to_zero_delay_s: float = Field(default=900, ge=0)
    """Time, in seconds, without demand after which the last replica stops, if `min_replicas` is 0."""
    look_back_period_s: float = Field(default=15, gt=0)
    """Period, in seconds, over which the load is averaged."""
    drain_s: float = Field(default=600, gt=0)
    """Maximum time, in seconds, that a removed replica has to finish its requests. Set it to the duration of
    your longest stream. After this time, a router replica has up to ten more seconds to end the remaining
    requests cleanly."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.max_replicas < self.min_replicas:
            raise ValueError("`max_replicas` must be at least `min_replicas`")
        return self


class Scale(Scaling):
    """Number and size of the replicas of an engine. The number of GPUs per replica follows from the engine's
    tensor parallelism.
    """

    num_cpus: float = Field(default=1.0, ge=0)
    """Logical CPUs per replica, as Ray counts them."""
    gpus: int = Field(default=0, ge=0)
    """GPUs per replica. The number must be at least the tensor parallelism. At 0, the engine runs on the CPU.
    """
    accelerator_type: str | None = None
    """Ray's name for the GPU type, such as `H100`."""
    messages_per_s: float = Field(default=400, gt=0)
    """Maximum number of pieces that a replica sends per second, over all its answers. Each piece costs CPU
    time on its way to the client, whatever its length. A replica that writes many answers at the same time
    sends longer pieces, each with up to a quarter of a second of text. The first token of an answer is never
    delayed."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables of the replica, in addition to those of its node. Do not write secrets here,
    because Ray writes these values to its logs and its store."""

    @field_validator("env")
    @classmethod
    def _no_secrets(cls, env: dict[str, str]) -> dict[str, str]:
        for name in env:
            if SECRET.search(name):
                raise ValueError(
                    f"{name} must not be set here, because it looks like a secret and Ray writes these values to its logs. "
                    "Set it in the environment that Ray is started in, which replicas inherit"
                )
        return env
