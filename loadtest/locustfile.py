"""Load a running Podium with users: `make load`, or

    locust -f loadtest/locustfile.py --headless --host http://127.0.0.1:8000

Bounded unless told otherwise: 8 users, one more each second, for one minute, answers of 64 tokens, a deadline of 60 s a
request. `--users`, `--spawn-rate`, `--run-time` and the options below change that; without `--headless` Locust's page on
http://127.0.0.1:8089 starts and stops it. `--tags stream` runs one kind of users only (`chat`, `stream`, `pass-through`).
`--csv build/load` writes the tables; `--processes -1` uses every core.

Read: `STREAM first token` and `STREAM whole answer` are what users feel; `STREAM between tokens` is how evenly the answer
flows; `POST stream` is only the time to the response's head. Exits 1 when a request failed.

Locust's users wait for their answer before they ask again, so an overloaded server is asked less: latencies under overload
look better than they are. For capacity, look at failures and at the rate, not at percentiles.
"""

from typing import Any

from locust import events

from loadtest.users import ChatUser, PassThroughUser, StreamUser

__all__ = ["ChatUser", "PassThroughUser", "StreamUser"]


@events.init_command_line_parser.add_listener
def options(parser: Any) -> None:
    """Our options, and bounds in place of Locust's endless run."""
    parser.add_argument(
        "--podium-model",
        default="podium-mini",
        env_var="PODIUM_MODEL",
        help="Conductor that chat and stream ask.",
    )
    parser.add_argument(
        "--podium-worker",
        default="",
        env_var="PODIUM_WORKER",
        help="Worker of pass-through; empty: the first listed.",
    )
    parser.add_argument("--answer-tokens", type=int, default=64, help="The longest answer.")
    parser.add_argument("--deadline-s", type=float, default=60.0, help="Sent as podium.deadline_s.")
    parser.set_defaults(num_users=8, spawn_rate=1.0, run_time=60)
