"""The closed loop: Locust's users, run from here. Importing this patches sockets and threads for gevent, so it comes first."""

from argparse import Namespace
from typing import Any, cast

from gevent.hub import Hub
from locust.env import Environment

from loadtest.asking import Asking
from loadtest.locust_shapes import CLASSES
from loadtest.recording import Recording
from loadtest.scenarios import Scenario
from loadtest.users import USERS

Hub.NOT_ERROR = (*Hub.NOT_ERROR, KeyboardInterrupt)
"""Ctrl-C is raised here as well; without this gevent also prints it, between the run's own lines."""


def run(scenario: Scenario, url: str, asking: Asking, recording: Recording) -> None:
    """Run `scenario` against `url`, to its end or to Ctrl-C.

    At its end users finish what they have asked; at Ctrl-C they leave it.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    kinds = [
        type(USERS[kind].__name__, (USERS[kind],), {"weight": weight})
        for kind, weight in scenario.mix.items()
    ]
    environment = Environment(
        user_classes=cast(Any, kinds),
        host=url,
        shape_class=CLASSES[scenario.shape](),
        stop_timeout=asking.deadline_s,
        parsed_options=Namespace(num_users=scenario.users, run_time=scenario.duration_s, headless=False),
    )
    vars(environment).update(recording=recording, asking=asking)
    runner = environment.create_local_runner()
    runner.start_shape()
    shaping = runner.shape_greenlet
    assert shaping is not None
    try:
        shaping.join()
    except KeyboardInterrupt:
        environment.stop_timeout = 0
        raise
    finally:
        runner.quit()
