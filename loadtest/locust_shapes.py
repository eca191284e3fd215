"""The shapes of `shapes.py` as Locust's classes: a run that ends by itself, with all users of `--users` at its height."""

from typing import Any, ClassVar

from locust import LoadTestShape

from loadtest.shapes import SHAPES

SPAWN_PER_S = 100.0
"""A step of a shape is a step: users come as fast as Locust makes them."""


class _Shape(LoadTestShape):
    """Reads `--users` and `--run-time`."""

    abstract = True
    use_common_options = True
    name: ClassVar[str]

    def tick(self) -> tuple[int, float] | None:
        """Users now, how fast they come; None once the run is over."""
        assert self.runner is not None
        options: Any = self.runner.environment.parsed_options
        part = self.get_run_time() / options.run_time
        if part >= 1:
            return None
        return max(1, round(options.num_users * SHAPES[self.name](part))), SPAWN_PER_S


class Steady(_Shape):
    """All users at once."""

    name = "steady"


class Ramp(_Shape):
    """From one user to all."""

    name = "ramp"


class Spike(_Shape):
    """A fifth of the users, all of them for a while, a fifth."""

    name = "spike"


class Soak(_Shape):
    """All users, for long."""

    name = "soak"


CLASSES: dict[str, type[_Shape]] = {each.name: each for each in (Steady, Ramp, Spike, Soak)}
