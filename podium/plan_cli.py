"""`podium plan`: show the plan for a question and its maximum cost. Only the conductor is called."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Option

from podium.ask_cli import QuestionOptions
from podium.client import DEFAULT_URL, Client, Url, epilog
from podium.command_line.program import Program
from podium.command_line.terminal import cell, console, inert_json, table

Json = dict[str, Any]
main = Program("podium plan")


@main.command(epilog=epilog("podium plan 'Compare Peru and Chile' --effort high"))
def show_plan(
    options: QuestionOptions,
    url: Url = DEFAULT_URL,
    as_json: Annotated[bool, Option("--json", help="print the plan with its costs as JSON")] = False,
) -> int:
    """Show the plan for a question and the maximum cost of each step. You pay only for the call of the
    conductor, which writes the plan. No step runs. `podium ask --plan FILE` runs a saved or edited plan.
    """
    question = options.text()
    with Client.open(url) as client:
        answer = client.post("/v1/plans", options.body(question, client))
        if as_json:
            print(inert_json(answer, indent=2))
        else:
            _print(answer)
    return 0


def _print(answer: Json) -> None:
    from podium.run_text import brief, dollars

    steps = table("step", "worker", "reads", "task", right=("max. cost",))
    for number, step in enumerate(answer["steps"], start=1):
        reads = ", ".join(str(read + 1) for read in step["access"])
        task = brief(step["subtask"]) or "answer the question"
        style = "" if step["needed"] else "dim"
        most = dollars(step["worst_case_cost_usd"])
        steps.add_row(str(number), cell(step["worker"]), reads, cell(task), most, style=style)
    out = console()
    out.print(steps)
    if not all(step["needed"] for step in answer["steps"]):
        out.print("Dimmed steps are not needed for the answer and would not run.", style="dim")
    most = dollars(answer["worst_case_cost_usd"])
    out.print(
        f"\nMaximum for the run: {most} and {answer['worst_case_tokens']} tokens. Cost of this plan: {dollars(answer['podium']['cost_usd'])}."
    )
