"""How soon a served conductor's answers begin, one question after the other, and what its guesses cost (docs/decisions/0063).

    python -m evaluation.first_words --count 100

Run it beside a server with `conductor.speculation` and beside one without. The first questions teach the router whom plans
ask; they are counted like all others.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import httpx2 as httpx
import openai
from rich.console import Console
from rich.progress import track
from rich.table import Table

from evaluation.sources.everyday import questions
from evaluation.spec import Spec
from evaluation.transcript import Transcript


@dataclass(frozen=True, slots=True)
class Turn:
    """One question.

    Args:
        first_s: until its first word; None: there was none.
        outcome: what became of the guess; empty: none was made.
        tokens: that all calls of the run took, its guess left out, as far as they are known.
        wasted: that the guess took where it was not kept; None: not known.
    """

    first_s: float | None
    outcome: str
    tokens: int
    wasted: int | None

    @classmethod
    def of(cls, first_s: float | None, record: dict[str, Any]) -> "Turn":
        """From the run's record."""
        guess: dict[str, Any] = record["plans"][0].get("guess") or {}
        calls = [*record["plans"], *record["steps"]]
        used = sum(_tokens(call.get("usage")) or 0 for call in calls)
        wasted = 0 if guess.get("outcome", "kept") == "kept" else _tokens(guess.get("usage"))
        return cls(first_s, guess.get("outcome") or "", used, wasted)


def _tokens(usage: dict[str, int] | None) -> int | None:
    return usage["input_tokens"] + usage["output_tokens"] if usage else None


def table(model: str, turns: Sequence[Turn]) -> Table:
    """One row."""
    outcomes = Counter(turn.outcome or "none made" for turn in turns)
    unknown = sum(turn.wasted is None for turn in turns)
    wasted, used = sum(turn.wasted or 0 for turn in turns), sum(turn.tokens for turn in turns)
    shown = Table(
        "questions", "first word, median, s", "guesses", "tokens used", "tokens wasted", title=model
    )
    shown.add_row(
        str(len(turns)),
        f"{median(turn.first_s for turn in turns if turn.first_s is not None):.2f}",
        ", ".join(f"{outcome} {count}" for outcome, count in outcomes.most_common()),
        str(used),
        f"{wasted}" + (f" and {unknown} guesses' that are not known" if unknown else ""),
    )
    return shown


def main(argv: Sequence[str] | None = None) -> int:
    """Ask, and print the table; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.first_words", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where Podium is served (%(default)s)")
    parser.add_argument("--key", default="none", help="of it")
    parser.add_argument("--model", default="podium-mini", help="the conductor's served name (%(default)s)")
    parser.add_argument("--count", type=int, default=100, help="so many everyday questions (%(default)s)")
    options = parser.parse_args(argv)
    asked = Transcript(options.url, options.key, options.model)
    texts = [each.text for each in questions(Spec.parse("everyday?part=train"), None, 0)][: options.count]
    turns: list[Turn] = []
    try:
        for question in track(texts, "asking", transient=True):
            heard = asked.ask(options.model, question)
            turns.append(Turn.of(heard.first_s, asked.record(heard)))
    except (openai.OpenAIError, httpx.HTTPError) as exc:
        print(f"{options.url} did not answer ({exc}). Is it served there? `make serve`.", file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt:
        return 130
    Console().print(table(options.model, turns))
    return 0


if __name__ == "__main__":
    sys.exit(main())
