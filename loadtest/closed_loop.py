"""Closed loop with Locust's users. Import this module first, because it patches sockets and threads."""

from argparse import Namespace
from typing import Any, cast

from gevent.hub import Hub
from locust.env import Environment

from loadtest.locust_shapes import shape_class
from loadtest.recording import Recording
from loadtest.request_options import RequestOptions
from loadtest.scenarios import Scenario
from loadtest.users import USERS

Hub.NOT_ERROR = (*Hub.NOT_ERROR, KeyboardInterrupt)
"""Keep gevent from printing a traceback for Ctrl-C, which is raised here anyway."""


def run(scenario: Scenario, url: str, options: RequestOptions, recording: Recording) -> None:
    """Run `scenario`. At its end, users finish open requests; Ctrl-C drops them and is raised."""
    users = [
        type(USERS[kind].__name__, (USERS[kind],), {"weight": weight})
        for kind, weight in scenario.mix.items()
    ]
    environment = Environment(
        user_classes=cast(Any, users),
        host=url,
        shape_class=shape_class(scenario.shape)(),
        stop_timeout=options.deadline_s,
        parsed_options=Namespace(num_users=scenario.users, run_time=scenario.duration_s, headless=False),
    )
    vars(environment).update(recording=recording, request_options=options)
    runner: Any = environment.create_local_runner()
    runner.start_shape()
    try:
        runner.shape_greenlet.join()
    except KeyboardInterrupt:
        environment.stop_timeout = 0
        raise
    finally:
        runner.quit()
