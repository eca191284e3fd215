"""`podium feedback`: say how good a run's answer is; write what was said to a file of questions to train on.

A question is taken where somebody said what had been the right answer, and the policy of its team lets models be
trained on its runs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from podium.client import Client, ClientError, parser_of, path_part, run

Json = dict[str, Any]
PAGE = 200
EXPORT = "export"


def main(arguments: Sequence[str] | None = None) -> int:
    """`podium feedback`."""
    given = list(sys.argv[2:] if arguments is None else arguments)
    return _export(given[1:]) if given[:1] == [EXPORT] else _give(given)


def _give(arguments: Sequence[str]) -> int:
    example = "podium feedback wf_… --score 0 --expected 42; podium feedback export questions.jsonl"
    parser = parser_of("feedback", "Say how good a run's answer is; what your key said before is replaced. `podium feedback export FILE` writes questions to train on.", example)  # fmt: skip
    parser.add_argument("id", help="of the run, or `export`")
    parser.add_argument("--score", type=float, metavar="0..1", help="0 is bad, 1 is good")
    parser.add_argument(
        "--label", action="append", default=[], metavar="WORD", help="a word of your own; may be repeated"
    )
    parser.add_argument("--comment", default="", metavar="TEXT")
    parser.add_argument("--expected", default="", metavar="TEXT", help="what had been the right answer")
    options = parser.parse_args(arguments)
    body = {"labels": options.label, "comment": options.comment, "expected": options.expected}
    said = body | ({} if options.score is None else {"score": options.score})
    return run(lambda: give(Client.of(options), options.id, said))


def give(client: Client, id: str, said: Json) -> int:
    """Send it.

    Raises:
        ClientError: the server refuses, or there is none.
    """
    client.post(f"/v1/workflows/{path_part(id)}/feedback", said)
    print(f"Kept with the run {id}.", file=sys.stderr)
    return 0


def _export(arguments: Sequence[str]) -> int:
    parser = parser_of("feedback export", "Write questions whose right answer somebody said, as `podium train` reads them (`source: jsonl`).", "podium feedback export questions.jsonl")  # fmt: skip
    parser.add_argument("file", type=Path, metavar="FILE", help="that is not there yet")
    options = parser.parse_args(arguments)
    return run(lambda: export(Client.of(options), options.file))


def export(client: Client, file: Path) -> int:
    """Write the file.

    Raises:
        ClientError: it is there already, the server refuses, or there is none.
    """
    if file.exists():
        raise ClientError(f"{file} is there already. Name another file.")
    questions, n_left_out = list[Json](), 0
    for record in runs_with_feedback(client):
        question = question_of(record)
        n_left_out += question is None
        questions += [question] if question else []
    lines = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in questions)
    try:
        with open(file, "x", encoding="utf-8", opener=_private) as out:
            out.write(lines)
    except OSError as error:
        raise ClientError(f"{file} cannot be written: {error.strerror}.") from error
    print(f"{_count(len(questions), 'question')} in {file}.", file=sys.stderr)
    if n_left_out:
        print(
            f"{_count(n_left_out, 'run')} left out: nobody said what had been right, its conversation has more than one "
            "message, its texts are gone, or its team lets no model be trained on it.",
            file=sys.stderr,
        )
    return 0


def runs_with_feedback(client: Client) -> Iterator[Json]:
    """The records of runs of which somebody has said something, the newest first.

    Raises:
        ClientError: the server refuses, or there is none.
    """
    after = None
    while True:
        page = client.get("/v1/workflows", {"rated": True, "limit": PAGE, "after": after})
        for each in page["data"]:
            yield client.get(f"/v1/workflows/{path_part(each['id'])}")
        if not page["has_more"]:
            return
        after = page["next_after"]


def question_of(record: Json) -> Json | None:
    """A run as a line of `training.jsonl_questions`; None where it is none. Of several right answers, the one that was
    said last.
    """
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
        "grader": "numeric" if _is_number(expected) else "exact",
        "source": "feedback",
        "family": record["model"],
    }


def _is_number(text: str) -> bool:
    try:
        return Decimal(text.replace(",", "").strip()).is_finite()
    except InvalidOperation:
        return False


def _private(path: str, flags: int) -> int:
    """Open a file for this account only: it holds users' texts."""
    return os.open(path, flags, 0o600)


def _count(n: int, of: str) -> str:
    return f"{n} {of}{'' if n == 1 else 's'}"
