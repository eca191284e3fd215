"""`podium runs`, `podium show` and `podium models`: list runs, show one run, list models."""

from __future__ import annotations

import sys
from decimal import Decimal
from typing import Annotated, Any, Literal

from typer import Argument, Option

from podium.client import DEFAULT_URL, FAILED, Client, ClientError, Url, epilog, path_part
from podium.command_line.options import JsonLines, parse_count, parse_usd
from podium.command_line.program import Program
from podium.command_line.terminal import cell, console, inert, inert_json, table

Json = dict[str, Any]
NEWEST = 20
"""Number of newest runs among which the newest one with steps is searched."""
OVER = {"finished", "failed", "cancelled", "lost", "expired"}
Status = Literal["running", "waiting", "detached", "cancelled", "expired", "failed", "finished", "lost"]
runs, show, models = Program("podium runs"), Program("podium show"), Program("podium models")


@runs.command(epilog=epilog("podium runs --status failed --limit 5"))
def list_runs(
    url: Url = DEFAULT_URL,
    limit: Annotated[
        int, Option(parser=parse_count, metavar="N", help="maximum number of runs, up to 1000")
    ] = 20,
    status: Annotated[Status | None, Option(help="only runs with this status")] = None,
    model: Annotated[str | None, Option(help="only runs that requested this model")] = None,
    worker: Annotated[str | None, Option(help="only runs that called this worker")] = None,
    team: Annotated[
        str | None, Option(help="only runs of this team, by id; needs an administrator's key")
    ] = None,
    words: Annotated[
        str | None, Option(help="only runs with this text in question or answer, at least 3 characters")
    ] = None,
    min_cost: Annotated[
        Decimal | None, Option(parser=parse_usd, metavar="DOLLARS", help="only runs that cost at least this")
    ] = None,
    max_cost: Annotated[
        Decimal | None, Option(parser=parse_usd, metavar="DOLLARS", help="only runs that cost at most this")
    ] = None,
    after: Annotated[str | None, Option(metavar="ID", help="only runs older than this one")] = None,
    as_json: JsonLines = False,
) -> int:
    """List the newest runs that your key may see, including running ones."""
    filters: dict[str, Any] = {
        "limit": limit,
        "status": status,
        "model": model,
        "worker": worker,
        "team": team,
        "words": words,
        "min_cost_usd": min_cost and str(min_cost),
        "max_cost_usd": max_cost and str(max_cost),
        "after": after,
    }
    with Client.open(url) as client:
        page = client.get("/v1/workflows", filters)
        while (
            page["has_more"] and not page["data"]
        ):  # the server searches a limited number of runs per request
            page = client.get("/v1/workflows", filters | {"after": page["next_after"]})
        if as_json:
            for each in page["data"]:
                print(inert_json(each))
        elif not page["data"]:
            print("No run matches.", file=sys.stderr)
        else:
            _print_runs(page)
    return 0


def _print_runs(page: Json) -> None:
    from podium.run_text import runs_table

    console().print(runs_table(page["data"]))
    if page["has_more"]:
        print(
            f"More runs may match. Continue with `podium runs --after {inert(str(page['next_after']))}`.",
            file=sys.stderr,
        )


@show.command(epilog=epilog("podium show wf_… --words"))
def show_run(
    id: Annotated[str | None, Argument(help="id of the run", show_default="the newest")] = None,
    url: Url = DEFAULT_URL,
    follow: Annotated[
        bool, Option("--follow", help="print events until the run ends, then show the run")
    ] = False,
    prompts: Annotated[bool, Option("--prompts", help="include the prompt of each step")] = False,
    words: Annotated[bool, Option("--words", help="include the output of each step, and the answer")] = False,
    as_json: Annotated[bool, Option("--json", help="print the whole record as JSON")] = False,
) -> int:
    """Show one run: its plans and steps with times and costs."""
    with Client.open(url) as client:
        id = id or newest(client)
        record = client.get(f"/v1/workflows/{path_part(id)}")
        if follow and record["status"] not in OVER:
            print_events(client, id)
            record = client.get(f"/v1/workflows/{path_part(id)}")
        if as_json:
            print(inert_json(record, indent=2))
        else:
            _print_run(record, words=words, prompts=prompts)
    return 0


def _print_run(record: Json, *, words: bool, prompts: bool) -> None:
    """Print a run. Raise ClientError if it failed."""
    from podium.run_text import cut_text, failure_text, run_tree

    out = console()
    out.print(run_tree(record, words=words, prompts=prompts))
    if not record["content"]:
        out.print("The texts of this run are not stored, only their lengths.", style="dim")
    if words:
        out.print(f"\n{inert(record['answer'])}")
    if record["status"] == "finished" and (line := cut_text(record["finish_reason"])) is not None:
        console(errors=True).print(line, style="yellow")
    if record["error"]:
        raise ClientError(f"The run failed: {inert(failure_text(record))}")


def newest(client: Client) -> str:
    """Return the id of the newest run that is not only a plan, or raise ClientError."""
    newest_runs = client.get("/v1/workflows", {"limit": NEWEST})["data"]
    ran = [each["id"] for each in newest_runs if not each.get("plan_only")]
    if not ran:
        raise ClientError("No runs yet. Start one with `podium ask`.", FAILED)
    return str(ran[0])


def print_events(client: Client, id: str) -> None:
    """Print the events of a run on stderr until it ends."""
    from podium.run_text import event_line

    out = console(errors=True)
    with client.stream("GET", f"/v1/workflows/{path_part(id)}/events") as stream:
        for event in stream:
            line = event_line(event)
            if line is not None:
                out.print(line)
        if not stream.is_whole:
            raise ClientError(
                f"The event stream of run {id} ended before the run. Continue with `podium show {id} --follow`."
            )


@models.command(epilog=epilog("podium models"))
def list_models(url: Url = DEFAULT_URL, as_json: JsonLines = False) -> int:
    """List every model name that the server accepts: models with a conductor, fixed plans and workers."""
    with Client.open(url) as client:
        listed = client.get("/v1/models")["data"]
        if as_json:
            for each in listed:
                print(inert_json(each))
        else:
            _print_models(listed)
    return 0


def _print_models(listed: list[Json]) -> None:
    rows = table("name", "kind", "description", "$ per million tokens in, out")
    for each in listed:
        about: Json = each["podium"]
        conductor: Json = about.get("conductor") or {}
        what = {
            "worker": ": ".join(filter(None, (about.get("model"), about.get("card")))),
            "workflow": "a fixed plan",
            "conductor": f"plans by {conductor['worker']}" if conductor else "plans by a conductor",
        }[about["kind"]]
        price: Json = about.get("price") or {}
        rates = ", ".join(f"{price[name]:g}" for name in ("input_usd_per_mtok", "output_usd_per_mtok") if name in price)  # fmt: skip
        rows.add_row(cell(each["id"]), about["kind"], cell(what), rates)
    console().print(rows)
