"""What the settings say of how many replicas a deployment has, and on what machines: of an engine, and of the router."""

import re
from typing import Self

from pydantic import Field, field_validator, model_validator

from serving.settings.access import Frozen

SECRET = re.compile(r"(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS|HEADERS)$")
"""Names of environment variables that hold secrets; `OTEL_EXPORTER_OTLP_HEADERS` holds the collector's
key."""


class Scaling(Frozen):
    """How many replicas a deployment has, and when that changes; see `serving/deployments/autoscaling.py`."""

    min_replicas: int = Field(default=1, ge=0)
    """The fewest replicas; 0 scales to zero."""
    max_replicas: int = Field(default=1, ge=1)
    """The most replicas."""
    target_ongoing_requests: float = Field(default=16, gt=0)
    """Target concurrent requests per replica, queued ones included."""
    max_ongoing_requests: int = Field(default=256, ge=1)
    """The most concurrent requests that a replica is given; more wait for a place."""
    upscale_delay_s: float = Field(default=5, ge=0)
    """How long demand must exceed capacity before scaling up. The first replica starts immediately."""
    downscale_delay_s: float = Field(default=300, ge=0)
    """How long capacity must exceed demand before scaling down."""
    downscale_to_zero_delay_s: float = Field(default=900, ge=0)
    """The same for the last replica, where `min_replicas` is 0."""
    look_back_period_s: float = Field(default=15, gt=0)
    """The window over which load is averaged."""
    drain_s: float = Field(default=600, gt=0)
    """How long a replica that is removed may finish its requests. Should be as long as the longest stream. A router then has up to
    ten seconds more, to leave what it still has in an orderly way."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.max_replicas < self.min_replicas:
            raise ValueError("max_replicas is below min_replicas")
        return self


class Scale(Scaling):
    """How a vLLM deployment is sized. GPUs per replica follow from the engine's tensor parallelism."""

    num_cpus: float = Field(default=1.0, ge=0)
    """Logical CPUs of one replica, as Ray counts them."""
    gpus: int = Field(default=0, ge=0)
    """GPUs of one replica; at least the tensor parallelism. 0 runs on the CPU."""
    accelerator_type: str | None = None
    """Ray's name of the GPU, such as `H100`."""
    messages_per_s: float = Field(default=400, gt=0)
    """Pieces of answers that a replica sends, all answers together. Each costs CPU time on its way to the
    client, whatever its length: with more answers at once the pieces grow, never to more than a quarter of
    a second. First words do not wait."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment of the replica, beside what it inherits from its node. Ray writes it to its logs and its
    store: no secrets."""

    @field_validator("env")
    @classmethod
    def _no_secrets(cls, env: dict[str, str]) -> dict[str, str]:
        for name in env:
            if SECRET.search(name):
                raise ValueError(
                    f"{name} looks like a secret, and Ray writes what stands here into its logs; "
                    "set it in the environment that Ray is started in, which replicas inherit"
                )
        return env
