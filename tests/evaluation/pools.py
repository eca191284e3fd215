"""Small artificial pools and a small recorded file for tests of evaluation."""

import json
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from conductor.errors import WorkerUnavailable
from conductor.model.call import Call
from conductor.model.deltas import open_reply
from conductor.model.reply import Delta, FinishReason, Reply
from conductor.model.usage import Price, Usage
from evaluation.backends.in_process import InProcessBackend
from evaluation.questions import Question
from serving.settings.settings import parse

HERE = "tests.evaluation.pools"
PRICE = {"input_usd_per_mtok": 1, "output_usd_per_mtok": 10}


class Adder:
    """Worker that adds the numbers in the question and `off`. It fails if `down`, and counts its calls."""

    n_calls = 0

    def __init__(self, name: str, price: Price | None, off: int = 0, down: bool = False) -> None:
        self.name, self._price, self._off, self._down = name, price, off, down

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        Adder.n_calls += 1
        if self._down:
            raise WorkerUnavailable(f"{self.name} is down.", worker=self.name)
        return open_reply(self.name, "adder", self._deltas(call), self._price)

    async def _deltas(self, call: Call) -> AsyncGenerator[Delta]:
        user = next(m.text for m in reversed(call.messages) if m.role == "user").splitlines()[0]
        total = sum(int(word) for word in user.split() if word.isdigit())
        yield Delta(f"I think <answer>{total + self._off}</answer>")
        yield Delta(finish=FinishReason.STOP, usage=Usage(len(user.split()), 3))


def sums(count: int, family: str = "sums") -> list[Question]:
    return [
        Question(f"{family}/{n}", f"{n} and {n * n}", str(n + n * n), "numeric", "made up", family)
        for n in range(count)
    ]


def worker(name: str, **options: Any) -> dict[str, Any]:
    return {
        "name": name,
        "kind": "python",
        "factory": f"{HERE}:Adder",
        "options": options,
        "price": PRICE,
        "retry": {"attempts": 1},
    }


def backend(*workers: dict[str, Any], **settings: Any) -> InProcessBackend:
    return InProcessBackend(
        parse({"workers": workers or [worker("good"), worker("bad", off=1)]} | settings), {}
    )


ROWS = [
    {
        "difficulty": "easy" if n % 2 else "hard",
        "category": "sums",
        "dataset": "chain_sum",
        "question": f"{n} + 1?",
        "expected": str(n + 1),
        "models": {
            "lab_good": {"s": 1.0, "a": str(n + 1), "n": 9},
            "lab_half": {"s": 1.0 if n % 2 else 0.2, "a": str(n + n % 2), "n": 9},
            "lab_mute": {"s": 0.0, "a": None, "n": 9},
        },
    }
    for n in range(20)
]


def write_recording(folder: Path) -> str:
    path = folder / "recorded.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)) + "\n")
    return str(path)
