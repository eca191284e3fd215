"""Ask a served conductor a few questions and write plans and answers as a Markdown table.

Each row has the plan, the answer, and the answer of the same worker when it is called by name. The table
gives an impression; `podium eval` gives figures.

    python -m evaluation.transcript --out docs/transcript.md
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import httpx2 as httpx
import openai
from rich.progress import track
from typer import Option

from podium.command_line.program import CommandError, Program

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
SHOWN = 110
"""Maximum characters of an answer in the table."""
HEADER = """\
# Ten questions

This page shows ten answers of {model}, asked one after another by `python -m evaluation.transcript` ({day}), next to those of the same worker when it is called by name.
Each question was sent twice: first through the conductor, and then directly to the worker that had answered. Because the worker has read the question by then, the second answer begins sooner. The median time until the first word was {first:.2f} s through the conductor, and {alone:.2f} s directly.
An answer has at most 120 tokens. A " ..." shows that the table contains only its beginning. Answers differ from run to run, many are wrong either way, and the `needs` of a step is sometimes wrong.

| question | plan | answer | first word, s | the same worker by name | first word, s |
| --- | --- | --- | --: | --- | --: |
"""


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """Answer of a model, with the seconds to its first token, if any, and the run's id."""

    text: str
    first_s: float | None
    run: str


class TranscriptWriter:
    """Client that asks the questions of a conductor at the URL of a Podium."""

    def __init__(self, url: str, key: str, model: str) -> None:
        self._model, self._url = model, url.rstrip("/")
        self._client = openai.OpenAI(base_url=f"{self._url}/v1", api_key=key, max_retries=0)
        self._headers = {"Authorization": f"Bearer {key}"}

    def row(self, question: str) -> tuple[str, list[dict[str, Any]], TimedAnswer, TimedAnswer]:
        """Ask the question. Return it with the steps of its plan and both answers."""
        answer = self.ask(self._model, question)
        steps: list[dict[str, Any]] = self.record(answer)["steps"]
        return question, steps, answer, self.ask(steps[-1]["worker"], question)

    def record(self, answer: TimedAnswer) -> dict[str, Any]:
        response = httpx.get(f"{self._url}/v1/workflows/{answer.run}", headers=self._headers, timeout=30)
        return response.raise_for_status().json()

    def ask(self, model: str, question: str) -> TimedAnswer:
        """Ask `model` a question and return its answer of at most 120 tokens."""
        began, first_s, text = time.perf_counter(), None, ""
        response = self._client.chat.completions.with_raw_response.create(
            model=model, messages=[{"role": "user", "content": question}], stream=True, max_tokens=120
        )
        for chunk in response.parse():
            words = chunk.choices[0].delta.content if chunk.choices else None
            if words and first_s is None:
                first_s = time.perf_counter() - began
            text += words or ""
        return TimedAnswer(text, first_s, response.headers[WORKFLOW_HEADER])


def page(
    model: str, rows: Sequence[tuple[str, list[dict[str, Any]], TimedAnswer, TimedAnswer]], day: str
) -> str:
    """Return the table as Markdown."""
    firsts = [
        median(each.first_s or 0 for each in column)
        for column in zip(*(row[2:] for row in rows), strict=True)
    ]
    lines = [
        f"| {_cell(question)} | {_cell(_plan_text(steps))} | {_cell(answer.text)} | {_seconds(answer)} | {_cell(alone.text)} | {_seconds(alone)} |"
        for question, steps, answer, alone in rows
    ]
    return (
        HEADER.format(model=f"`{model}`", day=day, first=firsts[0], alone=firsts[1]) + "\n".join(lines) + "\n"
    )


def _plan_text(steps: Sequence[dict[str, Any]]) -> str:
    return "; ".join(_step(number, step) for number, step in enumerate(steps, 1))


def _step(number: int, step: dict[str, Any]) -> str:
    reads = f", reads {', '.join(str(index + 1) for index in step['access'])}" if step["access"] else ""
    needs = f" (needs: {step['needs']})" if step.get("needs") else ""
    return f"{number}. {step['worker']}{reads}: {step['subtask'] or 'the question as it is'}{needs}"


def _cell(text: str) -> str:
    words = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return words if len(words) <= SHOWN else f"{words[:SHOWN].rpartition(' ')[0]} ..."


def _seconds(answer: TimedAnswer) -> str:
    return "-" if answer.first_s is None else f"{answer.first_s:.2f}"


main = Program("python -m evaluation.transcript")


@main.command()
def write(
    url: Annotated[str, Option(help="URL of a running Podium server")] = "http://127.0.0.1:8000",
    key: Annotated[str, Option(help="API key of the server")] = "none",
    model: Annotated[str, Option(help="model name of the conductor")] = "podium-mini",
    question: Annotated[
        list[str] | None,
        Option(metavar="WORDS", help="question to ask instead of the ten built-in ones; repeatable"),
    ] = None,
    out: Annotated[Path | None, Option(help="Markdown file to write", show_default="standard output")] = None,
) -> int:
    """Ask the questions, and print or write a page with plans and answers."""
    transcript = TranscriptWriter(url, key, model)
    try:
        rows = [transcript.row(each) for each in track(question or QUESTIONS, "asking", transient=True)]
    except (openai.OpenAIError, httpx.HTTPError) as exc:
        raise CommandError(
            f"No Podium server responds at {url} ({exc}). Start one with `make serve`."
        ) from exc
    except KeyboardInterrupt:
        return 130
    text = page(model, rows, time.strftime("%Y-%m-%d"))
    if out:
        out.write_text(text, encoding="utf-8")
    else:
        print(text)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
