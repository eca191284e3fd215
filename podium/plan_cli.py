"""`podium plan`: show the plan for a question and its maximum cost. Only the conductor is called."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from podium.ask_cli import add_question, body_of, first_model, question_of
from podium.client import Client, parser_of, run
from podium.command_line.terminal import inert_json

Json = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(
        "plan",
        "Show the plan for a question and the maximum cost of each step. Only the call of the conductor, which writes the plan, is "
        "paid; no step runs. `podium ask --plan FILE` runs a saved or edited plan.",
        "podium plan 'Compare Peru and Chile' --effort high",
    )
    add_question(parser)
    parser.add_argument("--json", action="store_true", help="print the plan with its costs as JSON")
    options = parser.parse_args(arguments)
    question = question_of(parser, options)
    return run(lambda: show_plan(Client.of(options), options, question))


def show_plan(client: Client, options: argparse.Namespace, question: str) -> int:
    """Request the plan and print it.

    Raises:
        ClientError: the server rejects the request or cannot be reached.
    """
    answer = client.post("/v1/plans", body_of(options, question, options.model or first_model(client)))
    if options.json:
        print(inert_json(answer, indent=2))
        return 0
    from rich.table import Table

    from podium.run_text import brief, cell, dollars, terminal

    table = Table("step", "worker", "reads", "task", box=None, pad_edge=False, header_style="bold")
    table.add_column("at most", justify="right")
    for number, step in enumerate(answer["steps"], start=1):
        reads = ", ".join(str(read + 1) for read in step["access"])
        task = brief(step["subtask"]) or "the question itself"
        style = "" if step["needed"] else "dim"
        table.add_row(
            str(number),
            cell(step["worker"]),
            reads,
            cell(task),
            dollars(step["worst_case_cost_usd"]),
            style=style,
        )
    out = terminal()
    out.print(table)
    if not all(step["needed"] for step in answer["steps"]):
        out.print("Dimmed steps are not needed for the answer and would not run.", style="dim")
    most = dollars(answer["worst_case_cost_usd"])
    out.print(
        f"\nAt most {most} and {answer['worst_case_tokens']} tokens. Writing the plan: {dollars(answer['podium']['cost_usd'])}."
    )
    return 0
