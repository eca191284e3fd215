"""`podium demo`: the command line of the demo. The OpenAI SDK is imported after the options are parsed."""

from __future__ import annotations

import os
from typing import Annotated

from typer import Argument, Option

from cluster.local.environment import serve_environment
from cluster.local.serve import ServerOptions, stop_on_signals
from podium.command_line.program import Program

QUESTION = "First: what is the capital of Kenya? Second: convert 100 km to miles. Then list both answers."
main = Program("podium demo")


@main.command(epilog="Example: podium demo 'How many days has a leap year?' --ask-model podium-ultra")
def demo(
    options: ServerOptions,
    question: Annotated[str, Argument(help="question to ask")] = QUESTION,
    ask_model: Annotated[str, Option(help="model that answers the question")] = "podium-mini",
) -> int:
    """Start Podium, ask it one question, show its plan, answer and cost, and stop it."""
    os.environ.update(
        {name: value for name, value in serve_environment().items() if name.lower() == "no_proxy"}
    )
    stop_on_signals()
    from cluster.local.demo_run import run

    try:
        return run(options, question, ask_model)
    except KeyboardInterrupt:
        print("\nStopped.")
        return 130
