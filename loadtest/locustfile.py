"""Load a running Podium with users, in Locust's own way:

    locust -f loadtest/locustfile.py --headless --host http://127.0.0.1:8000

(`podium load` runs the same users by scenarios and writes a report.)

Bounded unless told otherwise: 8 users, one more each second, for one minute, answers of 64 tokens, a deadline of 60 s a
request. `--users`, `--spawn-rate`, `--run-time` and the options below change that; `--shape ramp`, `spike` or `soak` says how the
users come and go. Without `--headless` Locust's page on http://127.0.0.1:8089 starts and stops it. `--tags stream` runs one kind
of users only (`chat`, `stream`, `ultra`, `cancel`, `pass-through`). `--csv build/load` writes the tables; `--processes -1` uses
every core.

Read: `STREAM first token` and `STREAM whole answer` are what users feel; `STREAM between tokens` is how evenly the answer
flows; `POST stream` is only the time to the response's head. Exits 1 when a request failed.

Locust's users wait for their answer before they ask again, so an overloaded server is asked less: latencies under overload
look better than they are. For capacity, use the open loop of `podium load`.
"""

from typing import Any

from locust import events

from loadtest import locust_shapes
from loadtest.asking import Asking
from loadtest.recording import Recording
from loadtest.shapes import SHAPES
from loadtest.users import CancellingUser, ChatUser, PassThroughUser, StreamUser, UltraUser

__all__ = ["CancellingUser", "ChatUser", "PassThroughUser", "StreamUser", "UltraUser"]


@events.init_command_line_parser.add_listener
def options(parser: Any) -> None:
    """Our options, and bounds in place of Locust's endless run."""
    parser.add_argument(
        "--podium-model",
        default="podium-mini",
        env_var="PODIUM_MODEL",
        help="Conductor that chat, stream and cancelling users ask.",
    )
    parser.add_argument(
        "--podium-ultra", default="podium-ultra", env_var="PODIUM_ULTRA", help="The one of ultra users."
    )
    parser.add_argument(
        "--podium-worker",
        default="",
        env_var="PODIUM_WORKER",
        help="Worker of pass-through; empty: the first listed.",
    )
    parser.add_argument("--shape", choices=list(SHAPES), default="steady", help="How users come and go.")
    parser.add_argument("--answer-tokens", type=int, default=64, help="The longest answer.")
    parser.add_argument("--deadline-s", type=float, default=60.0, help="Sent as podium.deadline_s.")
    parser.set_defaults(num_users=8, spawn_rate=1.0, run_time=60)


@events.init.add_listener
def begin(environment: Any, **_: Any) -> None:
    """Tell the users whom they ask, and take the shape that was chosen."""
    chosen = environment.parsed_options
    environment.recording = Recording()
    environment.asking = Asking(
        chosen.podium_model,
        chosen.podium_ultra,
        chosen.podium_worker,
        chosen.answer_tokens,
        chosen.deadline_s,
    )
    if chosen.shape != "steady":
        environment.shape_class = locust_shapes.CLASSES[chosen.shape]()
        environment.shape_class.runner = environment.runner
