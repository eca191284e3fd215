"""`podium runs`, `podium show` and `podium models`: list runs, show one run, list models."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from podium.client import FAILED, Client, ClientError, parser_of, path_part, run
from podium.command_line.options import count, usd
from podium.command_line.terminal import inert, inert_json

Json = dict[str, Any]
NEWEST = 20
"""Number of newest runs to search for one that is not only a plan."""
OVER = {"finished", "failed", "cancelled", "lost", "expired"}
STATUSES = ("running", "waiting", "detached", *sorted(OVER))


def runs(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of("runs", "List the newest runs that your key may see, including running ones.", "podium runs --status failed --limit 5")  # fmt: skip
    parser.add_argument(
        "--limit", type=count, default=20, metavar="N", help="number of runs, at most 1000 (%(default)s)"
    )
    parser.add_argument("--status", choices=STATUSES, help="only runs with this status")
    parser.add_argument("--model", help="only runs that requested this model")
    parser.add_argument("--worker", help="only runs that called this worker")
    parser.add_argument("--team", help="only runs of this team, by id; needs an administrator's key")
    parser.add_argument(
        "--words", help="only runs with this text in question or answer, at least 3 characters"
    )
    parser.add_argument("--min-cost", type=usd, metavar="DOLLARS", help="only runs that cost at least this")
    parser.add_argument("--max-cost", type=usd, metavar="DOLLARS", help="only runs that cost at most this")
    parser.add_argument("--after", metavar="ID", help="only runs older than this one")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    options = parser.parse_args(arguments)
    return run(lambda: list_runs(Client.of(options), options))


def list_runs(client: Client, options: argparse.Namespace) -> int:
    """Print the runs.

    Raises:
        ClientError: the server rejects the request or cannot be reached.
    """
    filters = {
        name: getattr(options, name)
        for name in ("limit", "status", "model", "worker", "team", "words", "after")
    }
    costs = {"min_cost_usd": options.min_cost, "max_cost_usd": options.max_cost}
    amounts = {name: None if value is None else str(value) for name, value in costs.items()}
    page = client.get("/v1/workflows", filters | amounts)
    while page["has_more"] and not page["data"]:  # the server searches a limited number of runs per request
        page = client.get("/v1/workflows", filters | amounts | {"after": page["next_after"]})
    if options.json:
        for each in page["data"]:
            print(inert_json(each))
        return 0
    if not page["data"]:
        print("No run matches.", file=sys.stderr)
        return 0
    from podium.run_text import runs_table, terminal

    terminal().print(runs_table(page["data"]))
    if page["has_more"]:
        print(
            f"There may be more. Continue with `podium runs --after {inert(str(page['next_after']))}`.",
            file=sys.stderr,
        )
    return 0


def show(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(
        "show", "Show one run: its plans and steps with times and costs.", "podium show wf_… --words"
    )
    parser.add_argument("id", nargs="?", help="id of the run (default: the newest)")
    parser.add_argument("--follow", action="store_true", help="print events until the run ends, then show it")
    parser.add_argument("--prompts", action="store_true", help="include the prompt of each step")
    parser.add_argument(
        "--words", action="store_true", help="include the output of each step, and the answer"
    )
    parser.add_argument("--json", action="store_true", help="print the whole record as JSON")
    options = parser.parse_args(arguments)
    return run(lambda: show_run(Client.of(options), options))


def show_run(client: Client, options: argparse.Namespace) -> int:
    """Print one run and return the exit code.

    Raises:
        ClientError: there is no such run, the run failed, or the server rejects the request or cannot be
            reached.
    """
    id = options.id or newest(client)
    record = client.get(f"/v1/workflows/{path_part(id)}")
    if options.follow and record["status"] not in OVER:
        follow(client, id)
        record = client.get(f"/v1/workflows/{path_part(id)}")
    if options.json:
        print(inert_json(record, indent=2))
        return 0
    from podium.run_text import cut_text, failure_text, run_tree, terminal

    out = terminal()
    out.print(run_tree(record, words=options.words, prompts=options.prompts))
    if not record["content"]:
        out.print("The texts of this run are not stored, only their lengths.", style="dim")
    if options.words:
        out.print(f"\n{inert(record['answer'])}")
    if record["status"] == "finished" and (line := cut_text(record["finish_reason"])) is not None:
        terminal(errors=True).print(line, style="yellow")
    if record["error"]:
        raise ClientError(f"The run failed: {inert(failure_text(record))}")
    return 0


def newest(client: Client) -> str:
    """Return the id of the newest run that ran steps.

    Raises:
        ClientError: there is none.
    """
    newest_runs = client.get("/v1/workflows", {"limit": NEWEST})["data"]
    ran = [each["id"] for each in newest_runs if not each.get("plan_only")]
    if not ran:
        raise ClientError("There are no runs yet. Start one with `podium ask`.", FAILED)
    return str(ran[0])


def follow(client: Client, id: str) -> None:
    """Print the events of a run on stderr until it ends.

    Raises:
        ClientError: the server disconnects.
    """
    from podium.run_text import event_line, terminal

    out = terminal(errors=True)
    with client.stream("GET", f"/v1/workflows/{path_part(id)}/events") as stream:
        for event in stream:
            line = event_line(event)
            if line is not None:
                out.print(line)
        if not stream.is_whole:
            raise ClientError(
                f"The event stream of {id} ended before the run did. Continue with `podium show {id} --follow`."
            )


def models(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of("models", "List every model name that the server accepts: models led by a conductor, fixed plans, workers.", "podium models")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    options = parser.parse_args(arguments)
    return run(lambda: list_models(Client.of(options), as_json=options.json))


def list_models(client: Client, *, as_json: bool) -> int:
    """Print the models.

    Raises:
        ClientError: the server rejects the request or cannot be reached.
    """
    listed = client.get("/v1/models")["data"]
    if as_json:
        for each in listed:
            print(inert_json(each))
        return 0
    from rich.table import Table

    from podium.run_text import cell, terminal

    table = Table(
        "name", "kind", "description", "$ per million in, out", box=None, pad_edge=False, header_style="bold"
    )
    for each in listed:
        about: Json = each["podium"]
        conductor: Json = about.get("conductor") or {}
        what = {
            "worker": ": ".join(filter(None, (about.get("model"), about.get("card")))),
            "workflow": "a fixed plan",
            "conductor": f"plans by {conductor['worker']}" if conductor else "plans",
        }[about["kind"]]
        price: Json = about.get("price") or {}
        rates = ", ".join(f"{price[name]:g}" for name in ("input_usd_per_mtok", "output_usd_per_mtok") if name in price)  # fmt: skip
        table.add_row(cell(each["id"]), about["kind"], cell(what), rates)
    terminal().print(table)
    return 0
