"""A few questions to a served conductor, one after the other, as a table to read: what it planned, what was answered, and what
the worker that answered says when it is asked by name. An impression beside `podium eval`, which has the figures.

    python -m evaluation.transcript --out docs/transcript.md
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx2 as httpx
import openai
from rich.progress import track

QUESTIONS = (
    "hi, how are you?",
    "What is the capital of France, and what is it known for?",
    "What is 17 + 25?",
    "Write a four-line poem about the sea.",
    "Summarise in one sentence: The library opens at nine, closes at five, and is shut on Sundays and holidays.",
    "Who wrote Romeo and Juliet?",
    "How do I boil an egg?",
    "Translate 'good morning' into French.",
    "Is this sentence correct? 'He go to school yesterday.'",
    "First list three uses of a brick, then write one sentence that names all of them.",
)
WORKFLOW_HEADER = "x-podium-workflow-id"
SHOWN = 170
"""Characters of an answer in the table."""
HEADER = """\
# Ten questions

{model}, asked one after the other by `python -m evaluation.transcript` ({day}). Beside each answer, the question to the worker that gave it, asked by name. First words came after {first:.2f} s
through the conductor and {alone:.2f} s by name (medians); answers have at most 120 tokens, are cut at " ..." here,
and come in other words each time: each worker writes at its own temperature. By name is asked second, when the worker has read the question once.
Both columns are what models of that size say: many answers are wrong either way, and what a step `needs` is named wrongly at times.

| question | plan | answer | first word, s | the same worker by name | first word, s |
| --- | --- | --- | --: | --- | --: |
"""


@dataclass(frozen=True, slots=True)
class Heard:
    """What a model said.

    Args:
        text: the whole answer.
        first_s: until its first word; None where there was none.
        run: the id of the run.
    """

    text: str
    first_s: float | None
    run: str


class TranscriptWriter:
    """Questions and answers.

    Args:
        url: where Podium is served.
        key: of it; anything where none is asked for.
        model: a conductor's served name.
    """

    def __init__(self, url: str, key: str, model: str) -> None:
        self._model, self._url = model, url.rstrip("/")
        self._client = openai.OpenAI(base_url=f"{self._url}/v1", api_key=key, max_retries=0)
        self._headers = {"Authorization": f"Bearer {key}"}

    def row(self, question: str) -> tuple[str, list[dict[str, Any]], Heard, Heard]:
        """The question, the plan's steps, and both answers."""
        heard = self.ask(self._model, question)
        steps: list[dict[str, Any]] = self.record(heard)["steps"]
        return question, steps, heard, self.ask(steps[-1]["worker"], question)

    def record(self, heard: Heard) -> dict[str, Any]:
        """The record of the run that gave it."""
        found = httpx.get(f"{self._url}/v1/workflows/{heard.run}", headers=self._headers, timeout=30)
        return found.raise_for_status().json()

    def ask(self, model: str, question: str) -> Heard:
        """What the model says to it, of at most 120 tokens."""
        began, first_s, text = time.perf_counter(), None, ""
        response = self._client.chat.completions.with_raw_response.create(
            model=model, messages=[{"role": "user", "content": question}], stream=True, max_tokens=120
        )
        for chunk in response.parse():
            words = chunk.choices[0].delta.content if chunk.choices else None
            if words and first_s is None:
                first_s = time.perf_counter() - began
            text += words or ""
        return Heard(text, first_s, response.headers[WORKFLOW_HEADER])


def page(model: str, rows: Sequence[tuple[str, list[dict[str, Any]], Heard, Heard]], day: str) -> str:
    """The table as Markdown."""
    firsts = [
        median(each.first_s or 0 for each in column)
        for column in zip(*(row[2:] for row in rows), strict=True)
    ]
    lines = [
        f"| {_cell(question)} | {_cell(_told(steps))} | {_cell(heard.text)} | {_seconds(heard)} | {_cell(alone.text)} | {_seconds(alone)} |"
        for question, steps, heard, alone in rows
    ]
    return (
        HEADER.format(model=f"`{model}`", day=day, first=firsts[0], alone=firsts[1]) + "\n".join(lines) + "\n"
    )


def _told(steps: Sequence[dict[str, Any]]) -> str:
    return "; ".join(_step(number, step) for number, step in enumerate(steps, 1))


def _step(number: int, step: dict[str, Any]) -> str:
    reads = f", reads {', '.join(str(index + 1) for index in step['access'])}" if step["access"] else ""
    needs = f" (needs: {step['needs']})" if step.get("needs") else ""
    return f"{number}. {step['worker']}{reads}: {step['subtask'] or 'the question as it is'}{needs}"


def _cell(text: str) -> str:
    words = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return words if len(words) <= SHOWN else f"{words[:SHOWN].rpartition(' ')[0]} ..."


def _seconds(heard: Heard) -> str:
    return "-" if heard.first_s is None else f"{heard.first_s:.2f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Ask, and print or write the page; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.transcript", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where Podium is served (%(default)s)")
    parser.add_argument("--key", default="none", help="of it")
    parser.add_argument("--model", default="podium-mini", help="the conductor's served name (%(default)s)")
    parser.add_argument(
        "--question", action="append", metavar="WORDS", help="in place of the ten; may be given again"
    )
    parser.add_argument("--out", type=Path, help="a Markdown file; else it is printed")
    options = parser.parse_args(argv)
    transcript = TranscriptWriter(options.url, options.key, options.model)
    try:
        rows = [
            transcript.row(each) for each in track(options.question or QUESTIONS, "asking", transient=True)
        ]
    except (openai.OpenAIError, httpx.HTTPError) as exc:
        print(f"{options.url} did not answer ({exc}). Is it served there? `make serve`.", file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        return 130
    text = page(options.model, rows, time.strftime("%Y-%m-%d"))
    if options.out:
        options.out.write_text(text, encoding="utf-8")
    else:
        print(text)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
