"""Runs on a terminal: events as lines, records as trees and tables. A model's words are text: no markup, no
control character of them reaches the terminal.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from program.inert import inert

Json = dict[str, Any]
WIDE = 400
"""Columns of what is no terminal."""
CUT = {"length": "cut off", "content_filter": "cut off by a content filter"}
"""What a `finish_reason` adds to `finished` and `done`: the answer is not whole."""
STYLES = {"done": "green", "finished": "green", "failed": "red", "lost": "red", "running": "cyan"}


def cell(value: object, style: str = "") -> Text:
    """What a server said, as text and nothing else: None is empty."""
    return Text("" if value is None else inert(str(value)), style)


def brief(text: str, most: int = 90) -> str:
    """The beginning of `text`, as one line."""
    line = " ".join(inert(text).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def dollars(amount: float | None) -> str:
    """Money; unknown is not nothing."""
    if amount is None:
        return "unknown"
    return "free" if amount == 0 else f"${amount:.6f}".rstrip("0") if amount < 1 else f"${amount:.2f}"


def seconds(s: float | None) -> str:
    """A time; empty where it is not known."""
    if s is None:
        return ""
    return (
        f"{1000 * s:.0f} ms" if s < 1 else f"{s:.2f} s" if s < 100 else f"{int(s) // 60} min {int(s) % 60} s"
    )


def status_text(part: Json) -> Text:
    """The status of a run or a step, and whether its answer is not whole."""
    status, cut = inert(part["status"]).replace("_", " "), CUT.get(str(part.get("finish_reason")))
    if cut and part["status"] in ("finished", "done"):
        return Text(f"{status}, {cut}", "yellow")
    return Text(status, STYLES.get(part["status"], ""))


def cut_text(finish_reason: str | None) -> str | None:
    """A sentence on an answer that is not whole; None for one that is."""
    if finish_reason == "length":
        return "The answer is cut off: it reached the token limit of the request or of its worker (max_output_tokens)."
    return "The answer is cut off by its provider's content filter." if finish_reason in CUT else None


def event_line(event: Json) -> Text | None:
    """What happened, as one line; None for what has none."""
    said = _event(event)
    if said is None:
        return None
    line = cell(f"{event.get('at_s') or 0:7.2f} s  ", style="dim")
    words, style = said
    return line.append(inert(words), style)


def _event(event: Json) -> tuple[str, str] | None:
    """The words and their style."""
    match event.get("type"):
        case "plan_began" if event.get("worker"):
            return f"{event['worker']} writes a plan", "bold"
        case "plan_ended" if event.get("rejected"):
            return f"the plan is refused: {brief(str(event.get('why')))}", "red"
        case "plan_ended" if event.get("accepted"):
            return "the answer before is kept", ""
        case "resumed":
            return "another server goes on with it", "bold"
        case _:
            return _step_event(event)


def _step_event(event: Json) -> tuple[str, str] | None:
    step = f"step {(event.get('step') or 0) + 1}"
    match event.get("type"):
        case "step_planned":
            reads = ", ".join(str(read + 1) for read in event["access"])
            task = brief(event["subtask"]) or "the question itself"
            return f"{step}  {event['worker']}{f' (reads {reads})' if reads else ''}: {task}", ""
        case "waits":
            return f"{step} waits: {brief(str(event.get('why')))}", "dim"
        case "step_began":
            return f"{step} starts", "dim"
        case "step_ended":
            cut = CUT.get(str(event.get("finish_reason")))
            said = f"{step} done, {cut + ', ' if cut else ''}{dollars(event.get('cost_usd'))}"
            return said, "yellow" if cut else "green"
        case "step_reused":
            return f"{step} has the output of the plan before", "green"
        case "step_restarted":
            return f"{step} begins again: {brief(str(event['error']['message']))}", "yellow"
        case "step_lost":
            error: Json = event.get("error") or {}
            why = str(event.get("why")).replace("_", " ")
            return f"{step} {why} {brief(str(error.get('message', '')))}".rstrip(), "red" if error else "dim"
        case _:
            return None


def run_tree(record: Json, *, words: bool, prompts: bool = False) -> Tree:
    """A run with its plans and their steps.

    Args:
        record: as `GET /v1/workflows/{id}` gives it.
        words: with what each step said.
        prompts: with what each step was shown.
    """
    head = cell(f"{record['model']}  ", style="bold").append_text(status_text(record))
    head.append(
        f"  {seconds(record['wall_s'])}  {dollars(record['cost_usd'])}  {inert(record['id'])}", "not bold"
    )
    tree = Tree(head, guide_style="dim")
    tree.add(_about(record))
    for plan in record["plans"]:
        writer = f"{plan['source']}" + (f" by {plan['worker']}" if plan["worker"] else "")
        took = _took(plan)
        line = cell(f"plan {plan['plan'] + 1}: {writer}  {took}  ")
        line.append(dollars(plan["cost_usd"]) if plan["worker"] else "")
        if plan["rejected"]:
            line.append(f"  refused: {brief(plan['why'])}", "red")
        branch = tree.add(line)
        for attempt in plan.get("attempts", ()):
            _add_try(branch, attempt)
        _add_error(branch, plan.get("error"))
        for step in record["steps"]:
            if step["plan"] == plan["plan"]:
                _add_step(branch, step, words=words, prompts=prompts)
    return tree


def _about(record: Json) -> Text:
    """When it began, for whom, along which path its time went, and what it was asked."""
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record["created"]))
    account: Json = record.get("account") or {}
    team = f", for the team {account['team_id']}" if account.get("team_id") else ""
    path_s = record.get("critical_path_s")
    path = f", critical path {seconds(path_s)}" if path_s else ""
    messages: list[Json] = record.get("messages") or []
    content: object = next((each["content"] for each in reversed(messages) if each["role"] == "user"), None)
    question = f": {brief(content)}" if isinstance(content, str) else ""
    return cell(f"began {began}{team}{path}{question}", "dim")


def _add_step(branch: Tree, step: Json, *, words: bool, prompts: bool) -> None:
    reads = ", ".join(str(read + 1) for read in step["access"])
    name = (
        step["worker"]
        if step["served_by"] in (None, step["worker"])
        else f"{step['worker']} → {step['served_by']}"
    )
    line = cell(f"{step['step'] + 1} ").append(inert(name), "cyan")
    line.append(f"{f' reads {reads}' if reads else ''}  ").append_text(status_text(step))
    cost = dollars(step["cost_usd"]) if step["ended_s"] is not None and step["started_s"] is not None else ""
    at = f" from {seconds(step['started_s']) or '0 s'}" if step["started_s"] is not None else ""
    line.append(f"  {_took(step)}{at}  {cost}")
    leaf = branch.add(line)
    leaf.add(cell(brief(step["subtask"]) or "the question itself", "italic"))
    for attempt in step["attempts"]:
        _add_try(leaf, attempt)
    _add_error(leaf, step["error"], has_tries=True)
    for message in step["prompt"] if prompts else ():
        leaf.add(cell(f"{message['role']}: {message['content']}".rstrip(), "dim"))
    if words and step["output"]:
        leaf.add(cell(step["output"].rstrip()))
    if step["inner"]:
        leaf.add(run_tree(step["inner"], words=words, prompts=prompts))


def _add_try(branch: Tree, attempt: Json) -> None:
    """A call that failed and was followed by another, with what operators are told of it."""
    line = branch.add(cell(f"tried {attempt['worker']}: {brief(attempt['message'], 300)}", "red"))
    _add_detail(line, attempt)


def _add_error(branch: Tree, error: Json | None, *, has_tries: bool = False) -> None:
    """The error that ended a plan or a step, after what came before it."""
    if not error:
        return
    for attempt in () if has_tries else _with_attempts(error)[:-1]:
        _add_try(branch, attempt)
    _add_detail(branch.add(cell(brief(error["message"], 300), "red")), error)


def _add_detail(branch: Tree, error: Json) -> None:
    if error.get("detail"):
        branch.add(cell(brief(error["detail"], 600), "dim"))


def failure_text(record: Json) -> str:
    """What a run failed of: the first cause, then what followed, each once; and what operators are told of it."""
    faults: list[Json] = []
    for plan in record["plans"]:
        steps = [step for step in record["steps"] if step["plan"] == plan["plan"]]
        for part in (plan, *steps):
            faults += part["attempts"]
            faults += _with_attempts(part["error"])
    faults += _with_attempts(record["error"])
    told = dict.fromkeys(each["message"] for each in faults if each.get("outcome") != "lost_race")
    details = dict.fromkeys(each["detail"] for each in faults if each.get("detail"))
    return " ".join([" Then: ".join(told), *details])


def _with_attempts(error: Json | None) -> list[Json]:
    if not error:
        return []
    podium: Json = error.get("podium") or {}
    return [*podium.get("attempts", ()), error]


def _took(part: Json) -> str:
    if part["started_s"] is None or part["ended_s"] is None:
        return ""
    return seconds(part["ended_s"] - part["started_s"])


def runs_table(runs: list[Json]) -> Table:
    """Runs, one a line."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("began", "run", "model", "status", "workers"):
        table.add_column(title, overflow="fold")
    for title in ("took", "tokens", "cost"):
        table.add_column(title, justify="right")
    for run in runs:
        workers = dict.fromkeys(step["served_by"] or step["worker"] for step in run["steps"])
        table.add_row(
            time.strftime("%m-%d %H:%M:%S", time.localtime(run["created"])),
            cell(run["id"]),
            cell(run["model"]),
            cell("plan only") if run.get("plan_only") else status_text(run),
            cell(", ".join(workers)),
            seconds(run["wall_s"]),
            str(run["usage"]["total_tokens"]),
            dollars(run["cost_usd"]),
        )
    return table


def terminal(*, errors: bool = False) -> Console:
    """Where to print: colours on a terminal only, and nothing read as markup. What goes into a file or a pipe is
    not made to fit a width.
    """
    is_terminal = (sys.stderr if errors else sys.stdout).isatty()
    width = None if is_terminal else WIDE
    return Console(stderr=errors, highlight=False, markup=False, emoji=False, soft_wrap=True, width=width)
