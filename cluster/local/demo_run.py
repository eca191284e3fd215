"""The demo: start Podium, ask it one question over HTTP, show how it was answered, and stop it.

The demo is an ordinary client: it sends one streamed request with the official `openai` SDK. The exit code is
0 only if the run had a plan, an answer, a cost, both times and a trace id, and no process was left running.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from openai import APIError, OpenAI, omit
from rich.markup import escape

from cluster.local.processes import ServeError
from cluster.local.serve import ServerOptions, make_models
from cluster.local.server import Server
from podium.command_line.terminal import console as open_console
from podium.command_line.terminal import table

SMALL_ANSWER_TOKENS = 160
"""Maximum tokens in an answer of the small local models. A provider's has no limit, because of its reasoning."""
WORKFLOW_HEADER = "x-podium-workflow-id"
Json = dict[str, Any]

console = open_console(markup=True)


@dataclass(slots=True)
class DemoAnswer:
    """Answer that the server has streamed so far."""

    workflow_id: str
    text: str = ""
    planned: list[Json] = field(default_factory=list[Json])
    summary: Json = field(default_factory=dict[str, Any])


class DemoError(Exception):
    """The answer or the record lacks something that the demo is meant to show."""


# -------------------------------------------------------------------------------- asking


def ask(client: OpenAI, model: str, question: str, max_tokens: int | None) -> DemoAnswer:
    """Send one streamed request, and print the plan and the answer as they arrive."""
    raw = client.chat.completions.with_raw_response.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        max_tokens=max_tokens or omit,
        stream=True,
        extra_body={"podium": {"trace": True, "progress": "events"}},
    )
    answer = DemoAnswer(workflow_id=raw.headers.get(WORKFLOW_HEADER, ""))
    for chunk in raw.parse():
        podium: Json = (chunk.model_extra or {}).get("podium") or {}
        if not chunk.choices:
            show_progress(answer, podium)
            continue
        if piece := chunk.choices[0].delta.content:
            if not answer.text:
                console.print("\n[bold]Answer[/]")
            answer.text += piece
            console.print(piece, end="", markup=False, soft_wrap=True)
        answer.summary = podium or answer.summary
    console.print("\n")
    return answer


def show_progress(answer: DemoAnswer, event: Json) -> None:
    """Print one event as a line, or nothing after the answer has begun."""
    if answer.text:
        return
    at = f"[dim]{event.get('at_s') or 0:6.2f} s[/]"
    step = f"step {event.get('step', 0) + 1}"
    match event.get("type"):
        case "plan_began":
            console.print(f"{at}  [bold]{event.get('worker') or event.get('source')}[/] writes a plan")
        case "step_planned":
            answer.planned.append(event)
            reads = ", ".join(f"step {read + 1}" for read in event["access"])
            needs = f" [dim]({escape(event['needs'])})[/]" if event.get("needs") else ""
            console.print(
                f"{at}  {step} [cyan]{event['worker']}[/]{f' reads {reads}' if reads else ''}: "
                f"{escape(event['subtask'] or 'answer the question')}{needs}"
            )
        case "plan_ended":
            console.print(
                f"{at}  plan complete"
                if not event.get("rejected")
                else f"{at}  plan rejected: {event.get('why')}"
            )
        case "step_began":
            console.print(f"{at}  {step} [dim]starts[/]")
        case "step_ended":
            console.print(f"{at}  {step} [green]done[/]")
        case "step_lost":
            console.print(f"{at}  {step} [dim]{escape(str(event.get('why'))).replace('_', ' ')}[/]")
        case _:
            pass


# -------------------------------------------------------------------------------- showing


def show_steps(steps: list[Json]) -> None:
    """Print a table of the steps with their workers, tokens, costs and times."""
    rows = table(
        "step", "worker", "reads", "status", right=("tokens in", "tokens out", "cost", "ms"), title="Steps"
    )
    for step in steps:
        usage: Json = step.get("usage") or {}
        started_s, ended_s = step.get("started_s"), step.get("ended_s")
        ms = "" if started_s is None or ended_s is None else f"{(ended_s - started_s) * 1000:.0f}"
        cost = dollars(step["cost_usd"]) if step["status"] == "done" or step["cost_usd"] else ""
        reads = ", ".join(str(read + 1) for read in step["access"])
        tokens = (str(usage.get("input_tokens", "")), str(usage.get("output_tokens", "")))
        rows.add_row(str(step["step"] + 1), step["worker"], reads, step["status"], *tokens, cost, ms)
    console.print(rows)


def dollars(amount: float | None) -> str:
    """Format an amount in US dollars. None means an unknown amount, not zero."""
    return "unknown" if amount is None else f"${amount:.6f}".rstrip("0").rstrip(".")


def check(answer: DemoAnswer, record: Json) -> None:
    """Check that answer and record have all that the demo shows. The DemoError says what is missing."""
    parts = {
        "an answer": answer.text.strip(),
        "a workflow id": answer.workflow_id,
        "a plan": record.get("plan"),
        "a finished step": any(step["status"] == "done" for step in answer.summary.get("steps", [])),
        "a cost": record.get("cost_usd") is not None,
        "a duration": answer.summary.get("wall_s"),
        "a critical path": answer.summary.get("critical_path_s"),
        "a trace id": record.get("trace_id"),
        "the same answer in the record": record.get("answer") == answer.text,
    }
    if missing := [name for name, value in parts.items() if not value]:
        raise DemoError(f"The run of the demo is incomplete. Missing: {', '.join(missing)}.")


def show(server: Server, model: str, question: str, max_tokens: int | None) -> None:
    """Ask the question, and print the plan, the answer, the cost and the times as they become known."""
    console.print(f"\n[bold]Question[/] for [cyan]{model}[/]\n{escape(question)}\n\n[bold]Plan[/]")
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    answer = ask(client, model, question, max_tokens)
    record: Json = json.loads(server.read(f"/v1/workflows/{answer.workflow_id}") or "{}")
    show_steps(answer.summary.get("steps", []))
    check(answer, record)
    console.print(f"cost           {dollars(record['cost_usd'])}")
    console.print(f"duration       {answer.summary['wall_s']:.2f} s")
    console.print(f"critical path  {answer.summary['critical_path_s']:.2f} s")
    if fallback := record.get("fallback"):
        console.print(f"fallback       {escape(str(fallback))}")
    console.print(f"workflow       {answer.workflow_id}\ntrace          {record['trace_id']}\n")


# -------------------------------------------------------------------------------- the command


def run(options: ServerOptions, question: str, ask_model: str) -> int:
    """Start Podium, ask the question, and stop Podium. Return exit code 0 only if all worked."""
    make_models(options)
    server = Server(
        settings=options.settings,
        port=options.port,
        model=options.model,
        conductor=options.conductor,
        env=options.environment(),
        progress=True,
    )
    try:
        with server:
            max_tokens = None if options.conductor else SMALL_ANSWER_TOKENS
            show(server, ask_model, question, max_tokens)
            console.print("Stopping ...")
    except (ServeError, DemoError, APIError, OSError) as error:
        console.print(f"\nThe demo failed: {error}", markup=False)
        if isinstance(error, APIError | OSError | DemoError):
            console.print(server.log_tail(), markup=False)
        return 1
    if server.killed:
        console.print(
            f"Stopped, but these processes had to be killed: {', '.join(map(str, server.killed))}. See {server.log}."
        )
        return 1
    console.print(f"Stopped. No process is left running. Log: {server.log}", soft_wrap=True)
    return 0
