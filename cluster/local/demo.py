"""`podium demo`: the command line of the demo. The OpenAI SDK is imported after the options are parsed."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from cluster.local.environment import serve_environment
from cluster.local.serve import add_overrides, stop_on_signals
from cluster.local.server import SETTINGS
from podium.command_line.options import port

QUESTION = "What is the capital of France, and what is it known for?"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `podium demo` and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="podium demo",
        description="Start Podium, ask it one question, show how it was answered, and stop it.",
        epilog="example: podium demo 'Why is the sky blue?' --ask-model podium-ultra",
    )
    parser.add_argument("question", nargs="?", default=QUESTION, help="question to ask (%(default)s)")
    parser.add_argument(
        "--settings", default=SETTINGS, metavar="FILE", help="settings file to serve (%(default)s)"
    )
    parser.add_argument(
        "--port", type=port, default=8000, help="HTTP port; 0 chooses a free one (%(default)s)"
    )
    add_overrides(parser)
    parser.add_argument("--ask-model", default="podium-mini", help="the `model` of the request (%(default)s)")
    options = parser.parse_args(arguments)
    os.environ.update(
        {name: value for name, value in serve_environment().items() if name.lower() == "no_proxy"}
    )
    stop_on_signals()
    from cluster.local.demo_run import run

    try:
        return run(options)
    except KeyboardInterrupt:
        print("\nStopped.")
        return 130
