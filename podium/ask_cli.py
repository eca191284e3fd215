"""`podium ask`: send one question to a running server.

The plan is drawn on stderr as it runs and the answer goes to stdout, so that `podium ask ... > file` saves
only the answer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from typer import Argument, Option

from podium.client import DEFAULT_URL, FAILED, WRONG_COMMAND, Client, ClientError, Stream, Url, epilog
from podium.command_line.options import parse_seconds, parse_usd
from podium.command_line.program import Program, UsageError
from podium.command_line.terminal import console, inert, inert_json

Json = dict[str, Any]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
main = Program("podium ask")


@dataclass(frozen=True, slots=True)
class QuestionOptions:
    """Command-line options for a question, the requested model and the limits of the run."""

    question: Annotated[
        list[str] | None, Argument(help="question to ask", show_default="read from standard input")
    ] = None
    model: Annotated[
        str | None,
        Option(help="model name, from `podium models`", show_default="the first model with a conductor"),
    ] = None
    effort: Annotated[Effort | None, Option(help="effort: how much reasoning and how many steps to use")] = (
        None
    )
    max_cost: Annotated[
        Decimal | None,
        Option(
            parser=parse_usd, metavar="DOLLARS", help="maximum cost of the run; it stops before it costs more"
        ),
    ] = None
    deadline: Annotated[
        float | None, Option(parser=parse_seconds, metavar="SECONDS", help="maximum duration of the run")
    ] = None
    exclude: Annotated[
        list[str] | None, Option(metavar="WORKER", help="do not use this worker; repeatable")
    ] = None

    def text(self) -> str:
        """Return the question and any piped input. Raise UsageError if there is none."""
        if text := read_question(self.question or ()):
            return text
        raise UsageError("No question was given. Pass it as an argument, or pipe it to standard input")

    def body(self, question: str, client: Client) -> Json:
        """Build the body of the request. The default model is the first suitable one that the server lists."""
        podium: Json = {}
        if self.max_cost is not None:
            podium["max_cost_usd"] = float(self.max_cost)
        if self.deadline is not None:
            podium["deadline_s"] = self.deadline
        if self.exclude:
            podium["exclude_workers"] = self.exclude
        effort = {"reasoning_effort": self.effort} if self.effort else {}
        model = self.model or first_model(client)
        return {
            "model": model,
            "messages": [{"role": "user", "content": question}],
            "podium": podium,
        } | effort


def read_question(words: Sequence[str]) -> str:
    """Join the words of the command line, and append any piped input."""
    piped = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read()
    return "\n\n".join(part for part in (" ".join(words).strip(), piped.strip()) if part)


@main.command(epilog=epilog("podium ask 'Which planet is the largest?'"))
def ask(
    options: QuestionOptions,
    url: Url = DEFAULT_URL,
    plan: Annotated[
        Path | None,
        Option(metavar="FILE", help="run this plan: the output of `podium plan --json`, or a list of steps"),
    ] = None,
    quiet: Annotated[bool, Option("--quiet", help="print only the answer")] = False,
    as_json: Annotated[
        bool, Option("--json", help="print the whole answer with its steps as JSON when the run ends")
    ] = False,
) -> int:
    """Ask a running server a question, and show the plan while it runs and its cost at the end. Piped input is
    added below the question. Ctrl-C also cancels the run.
    """
    question = options.text()
    with Client.open(url) as client:
        body = options.body(question, client)
        body["podium"] |= {"trace": True} | ({} if as_json else {"progress": "events"})
        if plan:
            body["podium"]["plan"] = read_plan(plan)
        if as_json:
            return _print_whole(client.post("/v1/chat/completions", body))
        with client.stream("POST", "/v1/chat/completions", body | {"stream": True}) as stream:
            return show(stream, url, quiet=quiet)
    return 0


def _print_whole(answer: Json) -> int:
    """Print an answer as JSON. Raise ClientError if it is incomplete."""
    finish_reason = next((choice.get("finish_reason") for choice in answer["choices"]), None)
    if not finish_reason:
        raise ClientError(
            "The answer is incomplete, because it has no finish_reason. See `podium runs` for the run."
        )
    print(inert_json(answer, indent=2))
    tell_cut(finish_reason)
    return 0


def read_plan(path: Path) -> list[Json]:
    """Read the steps of a plan from a file, or raise ClientError."""
    try:
        plan: Any = json.loads(path.read_text())
        return [dict(step) for step in cast(Any, plan["plan"] if isinstance(plan, dict) else plan)]
    except OSError as error:
        raise ClientError(f"--plan: {path} cannot be read: {error.strerror}.", WRONG_COMMAND) from None
    except (ValueError, TypeError, KeyError):
        raise ClientError(
            f'--plan: {path} is not a plan. Use the output of `podium plan --json`, or a list of steps such as [{{"worker": "a", "subtask": "...", "access": []}}].',
            WRONG_COMMAND,
        ) from None


def first_model(client: Client) -> str:
    """Return the server's first model with a conductor, else its first, or raise ClientError."""
    models = client.get("/v1/models")["data"]
    if not models:
        raise ClientError(
            "This key may not use any model of the server. `podium keys policy KEY` shows its policy.", FAILED
        )
    return next((each["id"] for each in models if each["podium"]["kind"] == "conductor"), models[0]["id"])


def show(stream: Stream, url: str, *, quiet: bool) -> int:
    """Print events and answer as they arrive, then the cost and a link to the run."""
    from podium.run_text import dollars, event_line, seconds

    progress, answer = console(errors=True), sys.stdout
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
        n_steps = len(summary.get("steps", []))
        steps = f"{n_steps} {'step' if n_steps == 1 else 'steps'}"
        progress.print(
            f"\n{cost}, {seconds(summary.get('wall_s'))}, {steps}\n"
            f"podium show {inert(stream.run_id)} --url {url}\n{url}/console/#/runs/{inert(stream.run_id)}",
            style="dim",
        )
    return 0


def _check_whole(stream: Stream, finish_reason: str | None) -> None:
    """Raise ClientError if the stream ended early."""
    if stream.is_whole and finish_reason:
        return
    hint = f" See the run with `podium show {stream.run_id}`." if stream.run_id else ""
    raise ClientError(f"The answer is incomplete, because its stream ended early.{hint}")


def tell_cut(finish_reason: str | None) -> None:
    """Print a warning on stderr if the answer was cut off."""
    from podium.run_text import cut_text

    if (line := cut_text(finish_reason)) is not None:
        console(errors=True).print(line, style="yellow")
