"""`podium ask`: send one question to a running server.

The plan is drawn on stderr as it runs and the answer goes to stdout, so that `podium ask ... > file` saves
only the answer.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from podium.client import FAILED, WRONG_COMMAND, Client, ClientError, Stream, parser_of, run
from podium.command_line.options import seconds as seconds_option
from podium.command_line.options import usd
from podium.command_line.terminal import inert, inert_json

Json = dict[str, Any]
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = parser_of(
        "ask",
        "Ask a running server, show the plan as it runs and the cost at the end. Piped input is added below the "
        "question. Ctrl-C also cancels the run.",
        "podium ask 'Which planet is the largest?'",
    )
    add_question(parser)
    parser.add_argument(
        "--plan",
        type=Path,
        metavar="FILE",
        help="run this plan: the output of `podium plan --json`, or a list of steps",
    )
    parser.add_argument("--quiet", action="store_true", help="print only the answer")
    parser.add_argument(
        "--json", action="store_true", help="print the whole answer with its steps as JSON at the end"
    )
    options = parser.parse_args(arguments)
    question = question_of(parser, options)
    return run(lambda: ask(Client.of(options), options, question))


def add_question(parser: argparse.ArgumentParser) -> None:
    """Add the options for the question, the model and the limits of the run."""
    parser.add_argument("question", nargs="*", help="the question (default: read from standard input)")
    parser.add_argument("--model", help="a name from `podium models` (default: the first that writes plans)")
    parser.add_argument("--effort", choices=EFFORTS, help="how much reasoning and how many steps to spend")
    parser.add_argument("--max-cost", type=usd, metavar="DOLLARS", help="stop the run before it costs more")
    parser.add_argument(
        "--deadline", type=seconds_option, metavar="SECONDS", help="stop the run after this time"
    )
    parser.add_argument("--exclude", action="append", default=[], metavar="WORKER", help="do not use this worker; repeatable")  # fmt: skip


def question_of(parser: argparse.ArgumentParser, options: argparse.Namespace) -> str:
    """Return the question, or exit with a usage error if there is none."""
    question = read_question(options.question)
    if not question:
        parser.error("no question: pass one as an argument or pipe it in")
    return question


def read_question(words: Sequence[str]) -> str:
    """Return the words of the command line, followed by any piped input."""
    piped = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read()
    return "\n\n".join(part for part in (" ".join(words).strip(), piped.strip()) if part)


def ask(client: Client, options: argparse.Namespace, question: str) -> int:
    """Send the question and print the answer as it arrives.

    Raises:
        ClientError: the server rejects the request or disconnects, or the run fails.
    """
    body = body_of(options, question, options.model or first_model(client))
    body["podium"] |= {"trace": True} | ({} if options.json else {"progress": "events"})
    if options.plan:
        body["podium"]["plan"] = read_plan(options.plan)
    if options.json:
        whole = client.post("/v1/chat/completions", body)
        finish_reason = next((choice.get("finish_reason") for choice in whole["choices"]), None)
        if not finish_reason:
            raise ClientError("The answer is incomplete: it has no finish_reason.")
        print(inert_json(whole, indent=2))
        tell_cut(finish_reason)
        return 0
    with client.stream("POST", "/v1/chat/completions", body | {"stream": True}) as stream:
        return show(stream, options.url, quiet=options.quiet)


def body_of(options: argparse.Namespace, question: str, model: str) -> Json:
    """Build the request body."""
    podium: Json = {}
    if options.max_cost is not None:
        podium["max_cost_usd"] = float(options.max_cost)
    if options.deadline is not None:
        podium["deadline_s"] = options.deadline
    if options.exclude:
        podium["exclude_workers"] = options.exclude
    effort = {"reasoning_effort": options.effort} if options.effort else {}
    return {"model": model, "messages": [{"role": "user", "content": question}], "podium": podium} | effort


def read_plan(path: Path) -> list[Json]:
    """Read the steps of a plan from a file.

    Raises:
        ClientError: the file cannot be read or holds no plan.
    """
    try:
        plan: Any = json.loads(path.read_text())
        return [dict(step) for step in cast(Any, plan["plan"] if isinstance(plan, dict) else plan)]
    except OSError as error:
        raise ClientError(f"--plan {path}: {error.strerror}.", WRONG_COMMAND) from None
    except (ValueError, TypeError, KeyError):
        raise ClientError(
            f'--plan {path} holds no plan: write what `podium plan --json` prints, or [{{"worker": "a", "subtask": "...", "access": []}}].',
            WRONG_COMMAND,
        ) from None


def first_model(client: Client) -> str:
    """Return the first model that writes plans, or the first of all if none does.

    Raises:
        ClientError: this key may use no model of the server.
    """
    models = client.get("/v1/models")["data"]
    if not models:
        raise ClientError("The server lists no model that this key may use.", FAILED)
    return next((each["id"] for each in models if each["podium"]["kind"] == "conductor"), models[0]["id"])


def show(stream: Stream, url: str, *, quiet: bool) -> int:
    """Print events and answer text as they arrive, then the cost and a link to the run in the console.

    Raises:
        ClientError: the run failed or its stream ended early.
    """
    from podium.run_text import dollars, event_line, seconds, terminal

    progress, answer = terminal(errors=True), sys.stdout
    summary: Json = {}
    finish_reason: str | None = None
    has_begun = False
    for chunk in stream:
        if error := chunk.get("error"):
            if has_begun:
                print(file=answer, flush=True)
            raise ClientError(f"{error['message']} (run {stream.run_id})")
        payload: Json = chunk.get("podium") or {}
        if not chunk.get("choices"):
            line = None if quiet or has_begun else event_line(payload)
            if line is not None:
                progress.print(line)
            continue
        summary = payload or summary
        finish_reason = chunk["choices"][0].get("finish_reason") or finish_reason
        if piece := chunk["choices"][0]["delta"].get("content"):
            if not has_begun and not quiet:
                progress.print()
            has_begun = True
            answer.write(inert(piece) if answer.isatty() else piece)
            answer.flush()
    if has_begun or finish_reason:
        print(file=answer, flush=True)
    _check_whole(stream, finish_reason)
    tell_cut(finish_reason)
    if not quiet and summary:
        cost = dollars(summary.get("cost_usd"))
        steps = f"{len(summary.get('steps', []))} steps"
        progress.print(
            f"\n{cost}, {seconds(summary.get('wall_s'))}, {steps}\n"
            f"podium show {inert(stream.run_id)} --url {url}\n{url}/console/#/runs/{inert(stream.run_id)}",
            style="dim",
        )
    return 0


def _check_whole(stream: Stream, finish_reason: str | None) -> None:
    """Check that the stream was read to its end.

    Raises:
        ClientError: the stream ended early.
    """
    if stream.is_whole and finish_reason:
        return
    hint = f" See `podium show {stream.run_id}` for the run." if stream.run_id else ""
    raise ClientError(f"The answer is incomplete: its stream ended before its last event.{hint}")


def tell_cut(finish_reason: str | None) -> None:
    """Print a warning on stderr if the answer was cut off."""
    from podium.run_text import cut_text, terminal

    if (line := cut_text(finish_reason)) is not None:
        terminal(errors=True).print(line, style="yellow")
