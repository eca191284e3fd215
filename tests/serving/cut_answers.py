"""Models whose answers break off, for `play_seams.py`. Each case has one true answer; when asked to continue it, its
model obeys, or fails in one of `WAYS`. Reads and writes the bodies of every wire, and opens no connection.
"""

import random
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from conductor.errors import WorkerUnavailable
from serving.workers.vllm import Chunk, EngineCall
from tests.wires.server import PIECE, Answer, Request, tokens

Json = dict[str, Any]
BEGINNING = re.compile(r"Begin with:\n\n(.*)\Z", re.DOTALL)
CASE = re.compile(r"case-(\d+)-")
WORDS = [
    "The",
    "the",
    "sky",
    "is",
    "blue",
    "ha",
    "ha,",
    "ha",
    "because",
    "light,",
    "42",
    "~scatters~",
    "`code`:",
    "über",
    "日本語。",
    "🙂",
    "—",
    "end.",
    "\n",
    "\n\n",
    "\t",
    "a)",
    "b)",
]


def truth_of(draw: random.Random) -> str:
    """Draw an answer with prose, lists, repetitions, several scripts or unusual whitespace."""
    words = [draw.choice(WORDS) for _ in range(draw.randint(4, 60))]
    if draw.random() < 0.2:
        words += words[-draw.randint(1, len(words)) :] * draw.randint(1, 4)
    text = draw.choice(["", "A. "]) + draw.choice([" ", " ", "  ", ""]).join(words)
    return (text + " End.") if not text.strip() or draw.random() < 0.5 else text.rstrip() + "."


def pieces_of(text: str, draw: random.Random) -> list[str]:
    """Split the text at token boundaries, or at random places."""
    if draw.random() < 0.5:
        return tokens(text)
    cuts = sorted(draw.randrange(len(text) + 1) for _ in range(len(text) // 4))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True) if b > a]


Way = Callable[[str, str, str], str]
"""Function that returns a model's continuation of a prefix. Its arguments are the prefix, the beginning to repeat,
and the true answer.
"""


def obey(prefix: str, beginning: str, truth: str) -> str:
    return beginning + truth[len(prefix.rstrip()) :]


WAYS: dict[str, Way] = {
    "as it was asked": obey,
    "as it was asked, after blanks": lambda *arguments: "\n " + obey(*arguments),
    "from an earlier word on": lambda prefix, beginning, truth: "[continued]\n" + truth[len(prefix) // 2 :],
    "all of it again": lambda prefix, beginning, truth: truth,
    "the rest alone": lambda prefix, beginning, truth: truth[len(prefix) :].strip() or "Done.",
    "other words": lambda prefix, beginning, truth: "Certainly! " + truth[::-1],
    "a remark first": lambda *arguments: "Here is the rest:\n\n" + obey(*arguments),
    "the last words changed": lambda prefix, beginning, truth: beginning.swapcase() + truth[len(prefix) :],
    "nothing": lambda prefix, beginning, truth: "",
}
OBEDIENT = tuple(WAYS)[:2]


@dataclass
class Case:
    """An answer and how it breaks off."""

    truth: str
    way: str
    pieces: list[str]
    cut: int
    """Number of pieces before the first call breaks off."""
    fault: str
    second_cut: float | None
    """Share of the pieces before the second call breaks off too, or None if it does not."""
    refuses_prefill: bool
    limit: int | None = None
    """Maximum output tokens, or None for no limit."""
    calls: list[str] = field(default_factory=list[str])

    @property
    def may_fail(self) -> bool:
        """Return whether the model was prompted to continue and does not obey."""
        return "asked" in self.calls and self.way not in OBEDIENT


def case_of(draw: random.Random) -> Case:
    """Draw a case. About two thirds of the models obey."""
    truth = truth_of(draw)
    pieces = pieces_of(truth, draw)
    way = draw.choice(OBEDIENT) if draw.random() < 0.66 else draw.choice(list(WAYS))
    fault = draw.choice(
        ["cut_after", "end_after", "garble_after", "cut_after", "end_after", "garble_after", "stall_after"]
    )
    second = draw.random() if draw.random() < 0.2 else None
    cut, refuses = draw.randint(1, len(pieces)), draw.random() < 0.05
    limit = count_tokens(truth) if draw.random() < 0.33 else None
    return Case(truth, way, pieces, cut, fault, second, refuses, limit)


def count_tokens(text: str) -> int:
    """Count tokens as these models do: four bytes each."""
    return -(-len(text.encode()) // 4)


def cut_at(most: int | None, text: str) -> str:
    """Return the beginning of `text` that fits into `most` tokens."""
    return text if most is None else text.encode()[: 4 * most].decode(errors="ignore")


class Model:
    """The model behind one wire.

    Args:
        cases: cases by the number that each question contains.
        first: number of events before the first word.
        prefills: whether the wire continues a final assistant turn.
        full: finish reason of an answer that reaches its token limit.
    """

    def __init__(self, cases: Sequence[Case], first: int, *, prefills: bool, full: str) -> None:
        self._cases, self._first, self._prefills, self._full = cases, first, prefills, full

    def respond(self, request: Request) -> Answer:
        turns = turns_of(request.body)
        case = self._cases[int(CASE.search(turns[0][1])[1])]  # type: ignore[index]
        n_calls = len(case.calls)
        kind, whole_text = self._reply_text(case, turns)
        case.calls.append(kind)
        if kind == "refused":
            return Answer(status=400, error="This model does not take an assistant's turn at the end.")
        visible_text = cut_at(limit_of(request.body), whole_text)
        pieces = case.pieces if n_calls == 0 else tokens(visible_text)
        text = PIECE + PIECE.join(pieces)
        if n_calls == 0:
            return Answer(text, **{case.fault: self._first + case.cut})
        if case.second_cut is not None and kind != "new" and case.calls.count(kind) == 1:
            return Answer(text, cut_after=self._first + round(case.second_cut * len(pieces)))
        return Answer(text, finish=None if visible_text == whole_text else self._full)

    def _reply_text(self, case: Case, turns: list[tuple[str, str]]) -> tuple[str, str]:
        """Return the kind of call, and the text of the reply."""
        if turns[-1][0] != "user":
            prefix = turns[-1][1]
            assert self._prefills
            assert case.truth.startswith(prefix), (prefix, case.truth)
            if case.refuses_prefill:
                return "refused", ""
            return "prefilled", case.truth[len(prefix) :]
        beginning = BEGINNING.search(turns[-1][1])
        if beginning is None:
            return "new", case.truth
        prefix = turns[-2][1]
        assert case.truth.startswith(prefix), (prefix, case.truth)
        return "asked", WAYS[case.way](prefix, beginning[1], case.truth)


def limit_of(body: Json) -> int | None:
    config = body | body.get("generationConfig", {})
    names = ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens")
    return next((config[name] for name in names if name in config), None)


def turns_of(body: Json) -> list[tuple[str, str]]:
    """Return the role and text of each turn of a request body of any wire."""
    turns = body.get("messages") or body.get("input") or body.get("contents") or []
    return [(str(turn["role"]), _text(turn.get("content", turn.get("parts")))) for turn in turns]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(str(part.get("text", "")) for part in content)


class CutEngine:
    """Fake local engine that continues a prefix and breaks off as its case says."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self._cases = cases

    async def generate(
        self, call: EngineCall, waiting: Callable[[str], None] | None = None
    ) -> AsyncGenerator[Chunk]:
        case = self._cases[int(CASE.search(_text(call.messages[0]["content"]))[1])]  # type: ignore[index]
        n_calls = len(case.calls)
        case.calls.append("prefilled" if call.prefix else "new")
        assert case.truth.startswith(call.prefix)
        rest = case.truth[len(call.prefix) :]
        visible_text = cut_at(call.max_tokens, rest)
        pieces = tokens(visible_text) if n_calls else case.pieces
        cut = None if n_calls else case.cut
        if n_calls == 1 and call.prefix and case.second_cut is not None:
            cut = round(case.second_cut * len(pieces))
        for n, piece in enumerate(pieces):
            if n == cut:
                raise WorkerUnavailable("The engine failed. Try again.")
            n_whole = len("".join(pieces[: n + 1]).encode()) // 4
            yield Chunk(piece, "", None, 12, 0, n_whole, 0)
        if cut == len(pieces):
            raise WorkerUnavailable("The engine failed. Try again.")
        finish = "stop" if visible_text == rest else "length"
        yield Chunk("", "", finish, 12, 0, count_tokens("".join(pieces)), 0)

    async def ready(self, adapters: Sequence[str] = ()) -> bool:
        return True

    async def load(self, adapter: str) -> None:
        pass
