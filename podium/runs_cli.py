"""`podium runs`, `podium show` and `podium models`: what a server has done, does, and can be asked."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from podium.client import FAILED, Client, ClientError, parser_of, path_part, run
from program.inert import inert, inert_json
from program.options import count, usd

Json = dict[str, Any]
NEWEST = 20
"""Among so many the newest run is looked for that is not a plan alone."""
OVER = {"finished", "failed", "cancelled", "lost", "expired"}
STATUSES = ("running", "waiting", "detached", *sorted(OVER))


def runs(arguments: Sequence[str] | None = None) -> int:
    """`podium runs`."""
    parser = parser_of("runs", "The newest runs that your key may see, also those under way.", "podium runs --status failed --limit 5")  # fmt: skip
    parser.add_argument(
        "--limit", type=count, default=20, metavar="N", help="how many, at most 1000 (%(default)s)"
    )
    parser.add_argument("--status", choices=STATUSES, help="of this status")
    parser.add_argument("--model", help="this was asked for")
    parser.add_argument("--worker", help="this was called in it")
    parser.add_argument("--team", help="of this team, by its id; for the key of an administrator")
    parser.add_argument("--words", help="they are in the question or the answer, at least 3 characters")
    parser.add_argument("--min-cost", type=usd, metavar="DOLLARS", help="it cost at least that")
    parser.add_argument("--max-cost", type=usd, metavar="DOLLARS", help="it cost at most that")
    parser.add_argument("--after", metavar="ID", help="those that began before this run")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args(arguments)
    return run(lambda: list_runs(Client.of(options), options))


def list_runs(client: Client, options: argparse.Namespace) -> int:
    """Print the runs.

    Raises:
        ClientError: the server refuses, or there is none.
    """
    filters = {
        name: getattr(options, name)
        for name in ("limit", "status", "model", "worker", "team", "words", "after")
    }
    costs = {"min_cost_usd": options.min_cost, "max_cost_usd": options.max_cost}
    amounts = {name: None if value is None else str(value) for name, value in costs.items()}
    page = client.get("/v1/workflows", filters | amounts)
    while page["has_more"] and not page["data"]:  # nothing among those that one request looks at
        page = client.get("/v1/workflows", filters | amounts | {"after": page["next_after"]})
    if options.json:
        for each in page["data"]:
            print(inert_json(each))
        return 0
    if not page["data"]:
        print("No run is found.", file=sys.stderr)
        return 0
    from podium.run_text import runs_table, terminal

    terminal().print(runs_table(page["data"]))
    if page["has_more"]:
        print(f"There may be more: `podium runs --after {inert(str(page['next_after']))}`.", file=sys.stderr)
    return 0


def show(arguments: Sequence[str] | None = None) -> int:
    """`podium show`."""
    parser = parser_of(
        "show", "One run: its plans and steps with times and costs.", "podium show wf_… --words"
    )
    parser.add_argument("id", nargs="?", help="of the run; without it, the newest")
    parser.add_argument("--follow", action="store_true", help="tell what happens until it ends, then show it")
    parser.add_argument("--prompts", action="store_true", help="with what each step was shown")
    parser.add_argument("--words", action="store_true", help="with what each step said, and the answer")
    parser.add_argument("--json", action="store_true", help="the whole record as JSON")
    options = parser.parse_args(arguments)
    return run(lambda: show_run(Client.of(options), options))


def show_run(client: Client, options: argparse.Namespace) -> int:
    """Print one run; 1 where it has not ended well.

    Raises:
        ClientError: there is no such run, the server refuses, or there is none.
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
        out.print("Texts of this run are not kept, only how long they were.", style="dim")
    if options.words:
        out.print(f"\n{inert(record['answer'])}")
    if record["status"] == "finished" and (line := cut_text(record["finish_reason"])) is not None:
        terminal(errors=True).print(line, style="yellow")
    if record["error"]:
        raise ClientError(f"The run has failed: {inert(failure_text(record))}")
    return 0


def newest(client: Client) -> str:
    """The id of the newest run; a plan of which nothing was run is none.

    Raises:
        ClientError: there is none.
    """
    found = client.get("/v1/workflows", {"limit": NEWEST})["data"]
    ran = [each["id"] for each in found if not each.get("plan_only")]
    if not ran:
        raise ClientError("There is no run yet: `podium ask` makes one.", FAILED)
    return str(ran[0])


def follow(client: Client, id: str) -> None:
    """Print on stderr what happens in a run until it ends.

    Raises:
        ClientError: the server goes away.
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
                f"The events of {id} broke off before the run had ended: `podium show {id} --follow` goes on."
            )


def models(arguments: Sequence[str] | None = None) -> int:
    """`podium models`."""
    parser = parser_of("models", "Every name that may be asked: models led by a conductor, fixed plans, workers.", "podium models")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args(arguments)
    return run(lambda: list_models(Client.of(options), as_json=options.json))


def list_models(client: Client, *, as_json: bool) -> int:
    """Print the models.

    Raises:
        ClientError: the server refuses, or there is none.
    """
    found = client.get("/v1/models")["data"]
    if as_json:
        for each in found:
            print(inert_json(each))
        return 0
    from rich.table import Table

    from podium.run_text import cell, terminal

    table = Table(
        "name", "kind", "what it is", "$ per million in, out", box=None, pad_edge=False, header_style="bold"
    )
    for each in found:
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
