"""Load a running Podium with Locust's own command:

    locust -f loadtest/locustfile.py --headless --host http://127.0.0.1:8000

(`podium load` runs the same users in scenarios and writes a report.)

Defaults: 8 users, spawned one per second, for one minute, with answers of 64 tokens and a deadline of 60 s
per request. `--users`, `--spawn-rate`, `--run-time` and the options below change them. `--shape ramp`,
`spike` or `soak` varies the number of users. Without `--headless`, start and stop the run on Locust's page at
http://127.0.0.1:8089. `--tags stream` runs one kind of user only (`chat`, `stream`, `ultra`, `cancel`,
`pass-through`). `--csv build/load` writes the tables; `--processes -1` uses every core.

`STREAM first token` and `STREAM whole answer` are what users notice. `STREAM between tokens` shows how evenly
the answer flows. `POST stream` is only the time to the response's headers. Exits with 1 if a request failed.

Locust's users wait for their answer before the next request. An overloaded server therefore gets fewer
requests, and latencies under overload look better than they are. To measure capacity, use the open loop of
`podium load`.
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
    """Add Podium's options, and replace Locust's endless run with default limits."""
    add = parser.add_argument
    help_of_model = "Model of chat, stream and cancelling users."
    add("--podium-model", default="podium-mini", env_var="PODIUM_MODEL", help=help_of_model)
    add("--podium-ultra", default="podium-ultra", env_var="PODIUM_ULTRA", help="Model of ultra users.")
    help_of_worker = "Worker of pass-through users (default: the first worker that the server lists)."
    add("--podium-worker", default="", env_var="PODIUM_WORKER", help=help_of_worker)
    add(
        "--shape",
        choices=list(SHAPES),
        default="steady",
        help="Shape of the load: how the number of users changes over time.",
    )
    add("--answer-tokens", type=int, default=64, help="Maximum number of tokens in an answer.")
    add(
        "--deadline-s",
        type=float,
        default=60.0,
        help="Deadline of each request in seconds (podium.deadline_s).",
    )
    parser.set_defaults(num_users=8, spawn_rate=1.0, run_time=60)


@events.init.add_listener
def begin(environment: Any, **_: Any) -> None:
    """Set the users' options, the recording and the run's shape."""
    options = environment.parsed_options
    environment.recording = Recording()
    environment.request_options = RequestOptions(
        options.podium_model,
        options.podium_ultra,
        options.podium_worker,
        options.answer_tokens,
        options.deadline_s,
    )
    if options.shape != "steady":
        environment.shape_class = shape_class(options.shape)()
        environment.shape_class.runner = environment.runner
