"""Request body for each kind of user."""

import itertools
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

Json = dict[str, Any]
CHAT = "/v1/chat/completions"
KINDS = ("chat", "stream", "ultra", "cancel", "pass-through")
STREAMED = ("stream", "ultra", "cancel")
QUESTIONS = itertools.cycle(
    (
        "What is the capital of France?",
        "Explain in two sentences why the sky is blue.",
        "Name three differences between a list and a tuple in Python.",
        "A train goes 120 km in 80 minutes. How fast is it?",
        "Write a polite refusal of an invitation to dinner.",
    )
)
MAX_PATIENCE_EVENTS = 20
"""Most events that a cancelling user reads. A plan of four steps sends about 16 before the answer."""


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Models to call, and limits of each request.

    Args:
        worker: the worker of pass-through users, or "" to use the first worker that the server lists.
    """

    model: str = "podium-mini"
    ultra: str = "podium-ultra"
    worker: str = ""
    answer_tokens: int = 64
    deadline_s: float = 60.0

    def model_of(self, kind: str) -> str:
        return {"ultra": self.ultra, "pass-through": self.worker}.get(kind, self.model)

    def body(self, kind: str) -> Json:
        """Return the request body for a user of `kind`. It limits the length and the time of the answer."""
        body: Json = {
            "model": self.model_of(kind),
            "messages": [{"role": "user", "content": next(QUESTIONS)}],
            "max_tokens": self.answer_tokens,
            "podium": {"deadline_s": self.deadline_s},
        }
        if kind in STREAMED:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
            body["podium"]["progress"] = "events"
        return body


def patience(source: random.Random) -> int:
    """Draw the number of events after which a cancelling user disconnects, in any stage of a run."""
    return source.randint(1, MAX_PATIENCE_EVENTS)


def first_worker(models: Iterable[Json]) -> str:
    """Return the first worker of the pool in the `data` of `GET /v1/models`, or "" if there is none."""
    in_pool = (str(each["id"]) for each in models if cast(Json, each.get("podium") or {}).get("in_pool"))
    return next(in_pool, "")


def parse_json(content: bytes) -> Any:
    """Parse an answer that was not streamed. Return None if it is not JSON."""
    try:
        return json.loads(content)
    except ValueError:
        return None


def failure(status: int, content: bytes) -> str:
    """Return the kind of failure that an HTTP response reports."""
    try:
        code = json.loads(content or b"{}")["error"]["code"]
    except (ValueError, KeyError, TypeError):
        code = ""
    return f"http_{status} {code or ''}".strip()
