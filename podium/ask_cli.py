"""`podium ask`: one question to a running server. The plan is drawn on stderr as it happens, the answer goes to
stdout, so that `podium ask ... > file` keeps the answer alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from podium.client import FAILED, WRONG_COMMAND, Client, ClientError, Stream, parser_of, run
from program.inert import inert, inert_json
from program.options import seconds as seconds_option
from program.options import usd

Json = dict[str, Any]
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = parser_of(
        "ask",
        "Ask a running server, show the plan as it happens and the cost at the end. What is read from a pipe is put below the "
        "question. Ctrl-C ends the run too.",
        "podium ask 'Which planet is the largest?'",
    )
    add_question(parser)
    parser.add_argument(
        "--plan",
        type=Path,
        metavar="FILE",
        help="run this plan, as `podium plan --json` gives it or a list of steps",
    )
    parser.add_argument("--quiet", action="store_true", help="print the answer alone")
    parser.add_argument(
        "--json", action="store_true", help="print the whole answer with its steps, as JSON, at the end"
    )
    options = parser.parse_args(arguments)
    question = question_of(parser, options)
    return run(lambda: ask(Client.of(options), options, question))


def add_question(parser: argparse.ArgumentParser) -> None:
    """The options that say what is asked, of whom, and within which limits."""
    parser.add_argument("question", nargs="*", help="what to ask; without it, standard input is the question")
    parser.add_argument("--model", help="as `podium models` lists them (the first that writes plans)")
    parser.add_argument("--effort", choices=EFFORTS, help="how much thought and how many steps it is worth")
    parser.add_argument("--max-cost", type=usd, metavar="DOLLARS", help="end the run before it costs more")
    parser.add_argument(
        "--deadline", type=seconds_option, metavar="SECONDS", help="end the run after that time"
    )
    parser.add_argument("--exclude", action="append", default=[], metavar="WORKER", help="leave a worker out; may be given again")  # fmt: skip


def question_of(parser: argparse.ArgumentParser, options: argparse.Namespace) -> str:
    """What is asked; ends the command where nothing is."""
    question = read_question(options.question)
    if not question:
        parser.error("there is no question: give one, or pipe it in")
    return question


def read_question(words: Sequence[str]) -> str:
    """What is asked: the words, and below them what comes through a pipe."""
    piped = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read()
    return "\n\n".join(part for part in (" ".join(words).strip(), piped.strip()) if part)


def ask(client: Client, options: argparse.Namespace, question: str) -> int:
    """Ask, and show what comes.

    Raises:
        ClientError: the server refuses, goes away, or says that the run has failed.
    """
    body = body_of(options, question, options.model or first_model(client))
    body["podium"] |= {"trace": True} | ({} if options.json else {"progress": "events"})
    if options.plan:
        body["podium"]["plan"] = read_plan(options.plan)
    if options.json:
        whole = client.post("/v1/chat/completions", body)
        finish_reason = next((choice.get("finish_reason") for choice in whole["choices"]), None)
        if not finish_reason:
            raise ClientError("The answer is not whole: it has no finish_reason.")
        print(inert_json(whole, indent=2))
        tell_cut(finish_reason)
        return 0
    with client.stream("POST", "/v1/chat/completions", body | {"stream": True}) as stream:
        return show(stream, options.url, quiet=options.quiet)


def body_of(options: argparse.Namespace, question: str, model: str) -> Json:
    """The request."""
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
    """The steps of a plan in a file.

    Raises:
        ClientError: it holds none.
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
    """The first that writes plans; where none does, the first.

    Raises:
        ClientError: the server has none that this key may ask.
    """
    models = client.get("/v1/models")["data"]
    if not models:
        raise ClientError("The server lists no model that may be asked.", FAILED)
    return next((each["id"] for each in models if each["podium"]["kind"] == "conductor"), models[0]["id"])


def show(stream: Stream, url: str, *, quiet: bool) -> int:
    """Print events and answer as they come; what the run cost at its end, and where the console shows it.

    Raises:
        ClientError: the run has failed.
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
        told: Json = chunk.get("podium") or {}
        if not chunk.get("choices"):
            line = None if quiet or has_begun else event_line(told)
            if line is not None:
                progress.print(line)
            continue
        summary = told or summary
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
    """See that the stream was read to its end.

    Raises:
        ClientError: it broke off.
    """
    if stream.is_whole and finish_reason:
        return
    seen = f" `podium show {stream.run_id}` shows what became of it." if stream.run_id else ""
    raise ClientError(f"The answer broke off: its stream ended before its last event.{seen}")


def tell_cut(finish_reason: str | None) -> None:
    """Print a line on stderr if the answer is not whole."""
    from podium.run_text import cut_text, terminal

    if (line := cut_text(finish_reason)) is not None:
        terminal(errors=True).print(line, style="yellow")
