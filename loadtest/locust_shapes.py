"""The shapes of `arrivals.py` as Locust shape classes. They also end the run. `--users` is the maximum of a
shape.
"""

from typing import Any, ClassVar

from locust import LoadTestShape

from loadtest.arrivals import SHAPES

SPAWN_PER_S = 100.0
"""Users spawned per second. Steps of a shape are immediate, so Locust spawns as fast as it can."""


class RunShape(LoadTestShape):
    """Base of the shapes. It reads `--users` and `--run-time`."""

    abstract = True
    use_common_options = True
    name: ClassVar[str]

    def tick(self) -> tuple[int, float] | None:
        """Return the current number of users and their spawn rate, or None once the run is over."""
        assert self.runner is not None
        options: Any = self.runner.environment.parsed_options
        part = self.get_run_time() / options.run_time
        if part >= 1:
            return None
        return max(1, round(options.num_users * SHAPES[self.name](part))), SPAWN_PER_S


def shape_class(name: str) -> type[RunShape]:
    return type(name.capitalize(), (RunShape,), {"name": name})
