"""The shapes of `arrivals.py` as Locust's classes, which end the run; `--users` is their height."""

from typing import Any, ClassVar

from locust import LoadTestShape

from loadtest.arrivals import SHAPES

SPAWN_PER_S = 100.0
"""A step of a shape is a step: users come as fast as Locust makes them."""


class RunShape(LoadTestShape):
    """Reads `--users` and `--run-time`."""

    abstract = True
    use_common_options = True
    name: ClassVar[str]

    def tick(self) -> tuple[int, float] | None:
        """Users now, and how fast they come; None once the run is over."""
        assert self.runner is not None
        options: Any = self.runner.environment.parsed_options
        part = self.get_run_time() / options.run_time
        if part >= 1:
            return None
        return max(1, round(options.num_users * SHAPES[self.name](part))), SPAWN_PER_S


def shape_class(name: str) -> type[RunShape]:
    """Locust's class for a name of `SHAPES`."""
    return type(name.capitalize(), (RunShape,), {"name": name})
