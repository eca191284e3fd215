"""`podium feedback`: rate a run's answer, or export rated runs as training questions.

A run is exported if feedback names the right answer and its team's policy allows training on its runs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from podium.client import DEFAULT_URL, Client, ClientError, Url, epilog, path_part
from podium.command_line.options import is_number
from podium.command_line.program import Program

Json = dict[str, Any]
PAGE = 200
EXPORT = "export"


class FeedbackProgram(Program):
    """Program for both `podium feedback ID` and `podium feedback export FILE`."""

    def __call__(self, arguments: Sequence[str] | None = None) -> int:
        """Run `podium feedback export` if the first argument is `export`. Otherwise rate a run."""
        words = sys.argv[1:] if arguments is None else arguments
        return export_program(words[1:]) if words[:1] == [EXPORT] else super().__call__(words)


main, export_program = FeedbackProgram("podium feedback"), Program("podium feedback export")


@main.command(
    epilog=epilog("podium feedback wf_… --score 0 --expected 42; podium feedback export questions.jsonl")
)
def give(
    id: Annotated[str, Argument(help="id of the run, or `export`")],
    url: Url = DEFAULT_URL,
    score: Annotated[
        float | None, Option(metavar="0..1", help="rating of the answer, from 0 (bad) to 1 (good)")
    ] = None,
    label: Annotated[
        list[str] | None, Option(metavar="WORD", help="label of your choice; repeatable")
    ] = None,
    comment: Annotated[str, Option(metavar="TEXT", help="comment of your choice", show_default=False)] = "",
    expected: Annotated[str, Option(metavar="TEXT", help="the right answer", show_default=False)] = "",
) -> int:
    """Rate a run's answer. This replaces earlier feedback from the same key. `podium feedback export FILE` writes
    training questions.
    """
    body = {"labels": label or [], "comment": comment, "expected": expected}
    with Client.open(url) as client:
        client.post(
            f"/v1/workflows/{path_part(id)}/feedback", body | ({} if score is None else {"score": score})
        )
        print(f"Feedback saved for run {id}.", file=sys.stderr)
    return 0


@export_program.command(epilog=epilog("podium feedback export questions.jsonl"))
def export(
    file: Annotated[
        Path, Argument(metavar="FILE", help="file to create; an existing file is not overwritten")
    ],
    url: Url = DEFAULT_URL,
) -> int:
    """Write the questions of runs whose feedback names the right answer, for `podium train` (`source: jsonl`)."""
    if file.exists():
        raise ClientError(f"{file} already exists. Choose another file.")
    questions, n_skipped = list[Json](), 0
    with Client.open(url) as client:
        for record in runs_with_feedback(client):
            question = question_of(record)
            n_skipped += question is None
            questions += [question] if question else []
    lines = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in questions)
    try:
        with open(file, "x", encoding="utf-8", opener=_private) as out:
            out.write(lines)
    except OSError as error:
        raise ClientError(f"{file} cannot be written: {error.strerror}.") from error
    print(f"Wrote {_count(len(questions), 'question')} to {file}.", file=sys.stderr)
    if n_skipped:
        print(
            f"Skipped {_count(n_skipped, 'run')}. Reasons are: no feedback has the right answer, the conversation has more than one "
            "message, the texts were deleted, or the team does not allow training.",
            file=sys.stderr,
        )
    return 0


def runs_with_feedback(client: Client) -> Iterator[Json]:
    """Yield the records of runs with feedback, newest first."""
    after = None
    while True:
        page = client.get("/v1/workflows", {"rated": True, "limit": PAGE, "after": after})
        for each in page["data"]:
            yield client.get(f"/v1/workflows/{path_part(each['id'])}")
        if not page["has_more"]:
            return
        after = page["next_after"]


def question_of(record: Json) -> Json | None:
    """Convert a run to a line of `training.jsonl_questions` by its latest right answer, or return None."""
    expected = next((each["expected"] for each in reversed(record["feedback"]) if each["expected"]), "")
    messages = record["messages"]
    if not (expected.strip() and record["content"] and record["training"]):
        return None
    if [message["role"] for message in messages] != ["user"] or not messages[0]["content"].strip():
        return None
    return {
        "id": f"feedback/{record['id']}",
        "text": messages[0]["content"],
        "expected": expected.strip(),
        "grader": "numeric" if is_number(expected) else "exact",
        "source": "feedback",
        "family": record["model"],
    }


def _private(path: str, flags: int) -> int:
    """Open a file that only this account may read, because it contains users' texts."""
    return os.open(path, flags, 0o600)


def _count(n: int, of: str) -> str:
    return f"{n} {of}{'' if n == 1 else 's'}"
