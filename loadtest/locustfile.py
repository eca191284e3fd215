"""Load a running Podium with Locust's own command:

    locust -f loadtest/locustfile.py --headless --host http://127.0.0.1:8000

(`podium load` runs the same users by scenarios and writes a report.)

By default: 8 users, one more each second, for one minute, answers of 64 tokens, a deadline of 60 s per
request. `--users`, `--spawn-rate`, `--run-time` and the options below change that; `--shape ramp`, `spike` or
`soak` says how the users come and go. Without `--headless`, Locust's page on http://127.0.0.1:8089 starts and
stops the run. `--tags stream` runs one kind of user only (`chat`, `stream`, `ultra`, `cancel`,
`pass-through`). `--csv build/load` writes the tables; `--processes -1` uses every core.

`STREAM first token` and `STREAM whole answer` are what users notice; `STREAM between tokens` shows how evenly
the answer flows; `POST stream` is only the time to the response's headers. Exits 1 when a request failed.

Locust's users wait for their answer before the next request, so an overloaded server gets fewer requests, and
latencies under overload look better than they are. For capacity, use the open loop of `podium load`.
"""

from typing import Any

from locust import events as locust_events

from loadtest.arrivals import SHAPES
from loadtest.locust_shapes import shape_class
from loadtest.recording import Recording
from loadtest.request_options import RequestOptions
from loadtest.users import CancellingUser, ChatUser, PassThroughUser, StreamUser, UltraUser

events: Any = locust_events
__all__ = ["CancellingUser", "ChatUser", "PassThroughUser", "StreamUser", "UltraUser"]


@events.init_command_line_parser.add_listener
def add_options(parser: Any) -> None:
    """Add our options, and bounds instead of Locust's endless run."""
    add = parser.add_argument
    help_of_model = "Conductor of chat, stream and cancelling users."
    add("--podium-model", default="podium-mini", env_var="PODIUM_MODEL", help=help_of_model)
    add("--podium-ultra", default="podium-ultra", env_var="PODIUM_ULTRA", help="Conductor of ultra users.")
    help_of_worker = "Worker of pass-through users; empty: the first listed."
    add("--podium-worker", default="", env_var="PODIUM_WORKER", help=help_of_worker)
    add("--shape", choices=list(SHAPES), default="steady", help="How users come and go.")
    add("--answer-tokens", type=int, default=64, help="The longest answer.")
    add("--deadline-s", type=float, default=60.0, help="Sent as podium.deadline_s.")
    parser.set_defaults(num_users=8, spawn_rate=1.0, run_time=60)


@events.init.add_listener
def begin(environment: Any, **_: Any) -> None:
    """Give the users their options and a recording, and the run its shape."""
    read = environment.parsed_options
    environment.recording = Recording()
    environment.request_options = RequestOptions(
        read.podium_model, read.podium_ultra, read.podium_worker, read.answer_tokens, read.deadline_s
    )
    if read.shape != "steady":
        environment.shape_class = shape_class(read.shape)()
        environment.shape_class.runner = environment.runner
