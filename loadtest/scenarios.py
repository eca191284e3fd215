"""The scenarios of `podium load`: who asks, in which loop, in which shape.

Closed loop: a number of users, each of whom waits for its answer (and then 0.5 to 2 s) before it asks again, as people do; an
overloaded server is asked less. Open loop: requests come at a rate, whatever the server does, as from many people; queueing shows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

MIXED = {"chat": 1, "stream": 3, "ultra": 2, "cancel": 1, "pass-through": 1}


@dataclass(frozen=True, slots=True)
class Scenario:
    """One of them; the figures are what it does unless told otherwise.

    Args:
        about: a short line.
        mix: kinds of users, by weight.
        loop: whether users wait for answers.
        shape: how the load changes over the run.
        users: closed loop only, at the shape's height.
        rate: open loop only, requests a second at the shape's height.
        at_most: open loop only, requests open at once; more that are due are counted as not started.
        seed: open loop only, of the arrivals and the mix.
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
    "chat": Scenario("users who wait for whole answers", {"chat": 1}),
    "stream": Scenario("users who read along", {"stream": 1}),
    "ultra": Scenario("users who follow podium-ultra's plan and steps", {"ultra": 1}),
    "cancel": Scenario("users who leave in mid-stream, among some who stay", {"cancel": 3, "stream": 1}),
    "pass-through": Scenario("users of one worker by its own name", {"pass-through": 1}),
    "mixed": Scenario("all kinds of users", MIXED),
    "ramp": Scenario("all kinds, more and more of them", MIXED, shape="ramp", users=24),
    "spike": Scenario("all kinds, five times as many for a while", MIXED, shape="spike", users=30),
    "soak": Scenario("all kinds, for long", MIXED, shape="soak", duration_s=3600),
    "open-chat": Scenario("whole answers, at a rate", {"chat": 1}, "open"),
    "open-stream": Scenario("streams, at a rate", {"stream": 1}, "open"),
    "open-ultra": Scenario("podium-ultra, at a rate", {"ultra": 1}, "open"),
    "open-mixed": Scenario("all kinds, at a rate", MIXED, "open"),
    "open-ramp": Scenario("all kinds, at a growing rate", MIXED, "open", "ramp", rate=16),
    "open-spike": Scenario("all kinds, at five times the rate for a while", MIXED, "open", "spike", rate=20),
}  # fmt: skip
