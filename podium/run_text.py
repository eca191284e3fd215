"""Show runs on a terminal: events as lines, records as trees and tables.

The output of models is shown as plain text, so that neither markup nor control characters reach the terminal.
"""

from __future__ import annotations

import time
from typing import Any

from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from podium.command_line.terminal import cell, inert, table

Json = dict[str, Any]
CUT = {"length": "cut off", "content_filter": "cut off by a content filter"}
"""Note for each `finish_reason` of an incomplete answer. It is added to the status `finished` or `done`."""
STYLES = {"done": "green", "finished": "green", "failed": "red", "lost": "red", "running": "cyan"}
OUTCOMES = {
    "failed": ("failed attempt with", "red"),
    "cut": ("interrupted:", "red"),
    "lost_race": ("slower than another call:", "dim"),
    "left_alone": ("skipped", "dim"),
    "QuestionRejected": ("rejected by", "dim"),
}
"""Title and style of an attempt that gave no answer, by its error or its `outcome`."""


def brief(text: str, most: int = 90) -> str:
    """Return the start of `text` as one line of at most `most` characters."""
    line = " ".join(inert(text).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def dollars(amount: float | None) -> str:
    """Format an amount in US dollars. None means an unknown amount, not zero."""
    if amount is None:
        return "unknown"
    return "free" if amount == 0 else f"${amount:.6f}".rstrip("0") if amount < 1 else f"${amount:.2f}"


def seconds(s: float | None) -> str:
    if s is None:
        return ""
    return (
        f"{1000 * s:.0f} ms" if s < 1 else f"{s:.2f} s" if s < 100 else f"{int(s) // 60} min {int(s) % 60} s"
    )


def status_text(part: Json) -> Text:
    """Render the status of a run or a step, with a note if its answer is incomplete."""
    status, cut = inert(part["status"]).replace("_", " "), CUT.get(str(part.get("finish_reason")))
    if cut and part["status"] in ("finished", "done"):
        return Text(f"{status}, {cut}", "yellow")
    return Text(status, STYLES.get(part["status"], ""))


def cut_text(finish_reason: str | None) -> str | None:
    """Explain why an answer is incomplete, or return None if it is complete."""
    if finish_reason == "length":
        return "The answer was cut off at the token limit of the request (max_tokens) or of its worker (max_output_tokens). Raise the limit to get a longer answer."
    return "The answer was cut off by the provider's content filter." if finish_reason in CUT else None


def event_line(event: Json) -> Text | None:
    """Render an event as one line, or return None if it is not shown."""
    event_text = _event(event)
    if event_text is None:
        return None
    line = cell(f"{event.get('at_s') or 0:7.2f} s  ", style="dim")
    words, style = event_text
    return line.append(inert(words), style)


def _event(event: Json) -> tuple[str, str] | None:
    """Return the text for an event and its style, or None if the event is not shown."""
    match event.get("type"):
        case "plan_began" if event.get("worker"):
            return f"{event['worker']} writes a plan", "bold"
        case "plan_ended" if event.get("rejected"):
            return f"plan rejected: {brief(str(event.get('why')))}", "red"
        case "plan_ended" if event.get("accepted"):
            return "previous answer accepted", ""
        case "resumed":
            return "run resumed", "bold"
        case _:
            return _step_event(event)


def _step_event(event: Json) -> tuple[str, str] | None:
    step = f"step {(event.get('step') or 0) + 1}"
    match event.get("type"):
        case "step_planned":
            reads = ", ".join(str(read + 1) for read in event["access"])
            task = brief(event["subtask"]) or "answer the question"
            return f"{step}  {event['worker']}{f' (reads {reads})' if reads else ''}: {task}", ""
        case "waits":
            return f"{step} waits: {brief(str(event.get('why')))}", "dim"
        case "step_began":
            return f"{step} starts", "dim"
        case "step_ended":
            cut = CUT.get(str(event.get("finish_reason")))
            text = f"{step} done, {cut + ', ' if cut else ''}{dollars(event.get('cost_usd'))}"
            return text, "yellow" if cut else "green"
        case "step_reused":
            return f"{step} done, with the output of the previous plan", "green"
        case "step_restarted":
            return f"{step} restarts: {brief(str(event['error']['message']))}", "yellow"
        case "step_lost":
            error: Json = event.get("error") or {}
            why = str(event.get("why")).replace("_", " ")
            message = f": {brief(str(error['message']))}" if error.get("message") else ""
            return f"{step} {why}{message}", "red" if error else "dim"
        case _:
            return None


def run_tree(record: Json, *, words: bool, prompts: bool = False) -> Tree:
    """Build the tree of a workflow's record with plans, steps and, if wanted, outputs (`words`) and prompts."""
    head = cell(f"{record['model']}  ", style="bold").append_text(status_text(record))
    head.append(
        f"  {seconds(record['wall_s'])}  {dollars(record['cost_usd'])}{_caches(record)}  {inert(record['id'])}",
        "not bold",
    )
    tree = Tree(head, guide_style="dim")
    tree.add(_about(record))
    for plan in record["plans"]:
        writer = f"{plan['source']}" + (f" by {plan['worker']}" if plan["worker"] else "")
        took = _took(plan)
        line = cell(f"plan {plan['plan'] + 1}: {writer}  {took}  ")
        line.append(dollars(plan["cost_usd"]) if plan["worker"] else "")
        if plan["rejected"]:
            line.append(f"  rejected: {brief(plan['why'])}", "red")
        branch = tree.add(line)
        for attempt in plan.get("attempts", ()):
            _add_try(branch, attempt)
        _add_error(branch, plan.get("error"))
        for step in record["steps"]:
            if step["plan"] == plan["plan"]:
                _add_step(branch, step, words=words, prompts=prompts)
    return tree


def _about(record: Json) -> Text:
    """Render the start time, the team, the critical path and the question of a run."""
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record["created"]))
    account: Json = record.get("account") or {}
    team = f", team {account['team_id']}" if account.get("team_id") else ""
    path_s = record.get("critical_path_s")
    path = f", critical path {seconds(path_s)}" if path_s else ""
    messages: list[Json] = record.get("messages") or []
    content: object = next((each["content"] for each in reversed(messages) if each["role"] == "user"), None)
    question = f": {brief(content)}" if isinstance(content, str) else ""
    return cell(f"started {began}{team}{path}{question}", "dim")


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
    line.append(f"  {_took(step)}{at}  {cost}{_caches(step)}")
    leaf = branch.add(line)
    leaf.add(cell(brief(step["subtask"]) or "answer the question", "italic"))
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
    """Add an attempt that gave no answer, and its details, which only operators see."""
    title, style = OUTCOMES.get(attempt["error"]) or OUTCOMES[attempt["outcome"]]
    line = branch.add(cell(f"{title} {attempt['worker']}: {brief(attempt['message'], 300)}", style))
    _add_detail(line, attempt)


def _add_error(branch: Tree, error: Json | None, *, has_tries: bool = False) -> None:
    """Add the error that ended a plan or a step, below the failed attempts before it."""
    if not error:
        return
    for attempt in () if has_tries else _with_attempts(error)[:-1]:
        _add_try(branch, attempt)
    _add_detail(branch.add(cell(brief(error["message"], 300), "red")), error)


def _add_detail(branch: Tree, error: Json) -> None:
    if error.get("detail"):
        branch.add(cell(brief(error["detail"], 600), "dim"))


def failure_text(record: Json) -> str:
    """Explain why a run failed: its first cause, the errors that followed, and the details for operators."""
    faults: list[Json] = []
    for plan in record["plans"]:
        steps = [step for step in record["steps"] if step["plan"] == plan["plan"]]
        for part in (plan, *steps):
            faults += part["attempts"]
            faults += _with_attempts(part["error"])
    faults += _with_attempts(record["error"])
    messages = dict.fromkeys(each["message"] for each in faults if each.get("outcome") != "lost_race")
    details = dict.fromkeys(each["detail"] for each in faults if each.get("detail"))
    return " ".join([" Then: ".join(messages), *details])


def _with_attempts(error: Json | None) -> list[Json]:
    if not error:
        return []
    podium: Json = error.get("podium") or {}
    return [*podium.get("attempts", ()), error]


def _caches(part: Json) -> str:
    """Describe what the providers' caches saved in a step or a run, or return "" if they were not used."""
    share, saved = part.get("cached_share"), part.get("saved_usd")
    if not share and not saved:
        return ""
    words = f"{share or 0:.0%} cached"
    if saved:
        words += f", {'saved' if saved > 0 else 'cost'} {dollars(abs(saved))}"
    return f"  ({words})"


def _took(part: Json) -> str:
    if part["started_s"] is None or part["ended_s"] is None:
        return ""
    return seconds(part["ended_s"] - part["started_s"])


def runs_table(runs: list[Json], *, shows_caches: bool = False) -> Table:
    """Build a table of runs, with the cached share of the input and what it saved if `shows_caches`."""
    more = ("cached", "saved") if shows_caches else ()
    rows = table("started", "run", "model", "status", "workers", right=("duration", "tokens", "cost", *more))
    for run in runs:
        workers = dict.fromkeys(step["served_by"] or step["worker"] for step in run["steps"])
        rows.add_row(
            time.strftime("%m-%d %H:%M:%S", time.localtime(run["created"])),
            cell(run["id"]),
            cell(run["model"]),
            cell("plan only") if run.get("plan_only") else status_text(run),
            cell(", ".join(workers)),
            seconds(run["wall_s"]),
            str(run["usage"]["total_tokens"]),
            dollars(run["cost_usd"]),
            *(_savings(run) if shows_caches else ()),
        )
    return rows


def _savings(run: Json) -> tuple[str, str]:
    share, saved = run.get("cached_share"), run.get("saved_usd")
    amount = (
        "" if saved is None else f"-{dollars(-saved)}" if saved < 0 else dollars(saved) if saved else "$0"
    )
    return "" if share is None else f"{share:.0%}", amount
