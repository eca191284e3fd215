"""Scenarios of `podium load`: the mix of users, the loop and the shape of the load.

- Closed loop: there is a fixed number of users. Each one waits for the answer and then 0.5 to 2 s before the
  next request, as people do. An overloaded server gets fewer requests.
- Open loop: requests arrive at a given rate, however the server performs, as from many people. Queueing
  becomes visible.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

MIXED = {"chat": 1, "stream": 3, "ultra": 2, "cancel": 1, "pass-through": 1}


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario. Command line options replace its numbers.

    Args:
        users: closed loop only: the number of users at the shape's maximum.
        rate: open loop only: the requests per second at the shape's maximum.
        at_most: open loop only: the maximum number of concurrent requests. A request that is due beyond it
            counts as not started.
        seed: open loop only: the seed of the arrivals and the mix.
    """

    about: str
    mix: Mapping[str, int]
    loop: Literal["closed", "open"] = "closed"
    shape: str = "steady"
    duration_s: float = 60.0
    users: int = 8
    rate: float = 4.0
    at_most: int = 512
    seed: int = 0


SCENARIOS: dict[str, Scenario] = {
    "chat": Scenario("users who wait for answers without streaming", {"chat": 1}),
    "stream": Scenario("users who read streams", {"stream": 1}),
    "ultra": Scenario("users who follow podium-ultra's plan and steps", {"ultra": 1}),
    "cancel": Scenario("users who disconnect mid-stream, and some who do not", {"cancel": 3, "stream": 1}),
    "pass-through": Scenario("users who call one worker by name", {"pass-through": 1}),
    "mixed": Scenario("users of all kinds", MIXED),
    "ramp": Scenario("users of all kinds, in growing numbers", MIXED, shape="ramp", users=24),
    "spike": Scenario("users of all kinds, five times as many for a while", MIXED, shape="spike", users=30),
    "soak": Scenario("users of all kinds, for an hour", MIXED, shape="soak", duration_s=3600),
    "open-chat": Scenario("requests without streaming, at a fixed rate", {"chat": 1}, "open"),
    "open-stream": Scenario("streaming requests, at a fixed rate", {"stream": 1}, "open"),
    "open-ultra": Scenario("requests to podium-ultra, at a fixed rate", {"ultra": 1}, "open"),
    "open-mixed": Scenario("requests of all kinds, at a fixed rate", MIXED, "open"),
    "open-ramp": Scenario("requests of all kinds, at a growing rate", MIXED, "open", "ramp", rate=16),
    "open-spike": Scenario(
        "requests of all kinds, at five times the rate for a while", MIXED, "open", "spike", rate=20
    ),
}
