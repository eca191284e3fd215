"""Clients with long conversations, for measurements of prompt caches: a coding agent, a chat, and questions about
a long document.

A client is a generator. It yields its next request, and receives the answer. The same seed gives the same
requests.
"""

import random
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from loadtest.rig import Json
from loadtest.rig.routers import RouterProcess

TURNS = 60
SYLLABLES = ("ka", "lo", "mi", "ne", "ru", "sa", "te", "vo")
WORDS = [first + second + third for first in SYLLABLES for second in SYLLABLES for third in SYLLABLES]
MARK: Json = {"cache_control": {"type": "ephemeral"}}
AGENT_MESSAGES, AGENT_TOOL_TURNS, AGENT_TOOLS = 6, 9, 25


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """Body of a request without its model, and the seconds that the client waits before it sends the request."""

    body: Json
    after_s: float


Client = Generator[ClientRequest, Json, None]


@dataclass(frozen=True, slots=True)
class ClientScenario:
    """Client, and two models of its provider. A conductor names the other model in every `other_every`th plan."""

    name: str
    client: Callable[[int], Client]
    kind: str
    model: str
    other: str
    other_every: int = 12

    @property
    def path(self) -> str:
        return "/v1/messages" if self.kind == "anthropic" else "/v1/chat/completions"


class Clock:
    """Clock of a provider and of the routers, which read its shift from the file `path`."""

    def __init__(self, path: Path) -> None:
        self.path, self._at_s = path, 0.0
        path.write_text("0")

    def now_s(self) -> float:
        return self._at_s

    def advance(self, by_s: float, routers: Sequence[RouterProcess]) -> None:
        self._at_s += by_s
        self.path.write_text(str(self._at_s))
        for router in routers:
            router.move_clock()


async def replay(
    client: Client, send: Callable[[int, ClientRequest], Awaitable[Json]], turns: int = TURNS
) -> None:
    """Send the requests of a client one after another, but at most `turns`. `send` gets their numbers too."""
    request = next(client)
    for number in range(turns):
        answer = await send(number, request)
        try:
            request = client.send(answer)
        except StopIteration:
            return
    client.close()


def coding_agent(seed: int, *, has_marks: bool = True) -> Client:
    """Return a coding agent that uses Messages like Claude Code: many tools, nine tool turns after each message
    of the user, breakpoints on the system prompt and the newest block, and defaults that the agent adds to the
    input of its calls.
    """
    draws, mark = random.Random(seed), MARK if has_marks else {}
    system = [_text(f"conv-{seed}- You are a coding agent.") | mark, _text(draw_words(draws, 2000)) | mark]
    tools = [_tool(draws, number) for number in range(AGENT_TOOLS)]
    head: Json = {"max_tokens": 8192, "system": system, "tools": tools}
    head |= {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}
    messages: list[Json] = []
    for number in range(AGENT_MESSAGES):
        blocks, after_s = [_text(f"Task {number}: {draw_words(draws, 60)}")], draws.uniform(30, 200)
        while blocks:
            newest = {"role": "user", "content": [*blocks[:-1], blocks[-1] | mark]}
            answer = yield ClientRequest(head | {"messages": [*messages, newest]}, after_s)
            reply = [_with_defaults(each) for each in answer["content"]]
            messages += [{"role": "user", "content": blocks}, {"role": "assistant", "content": reply}]
            ids = [each["id"] for each in reply if each["type"] == "tool_use"]
            blocks = [_result(id, draw_words(draws, draws.randint(70, 1150))) for id in ids]
            after_s = draws.uniform(3, 15)


def chat(seed: int) -> Client:
    """Return a client of Chat Completions with pauses of 20 to 120 s, and one of 8 minutes after every ten
    messages.
    """
    draws = random.Random(seed)
    messages: list[Json] = [{"role": "system", "content": f"conv-{seed}- {draw_words(draws, 300)}"}]
    for number in range(TURNS):
        messages.append({"role": "user", "content": draw_words(draws, draws.randint(50, 800))})
        pause_s = 480.0 if number % 10 == 9 else draws.uniform(20, 120)
        answer = yield ClientRequest({"messages": messages}, pause_s)
        messages = [*messages, _reply(answer)]


def long_document(seed: int) -> Client:
    """Return a client of Chat Completions that asks about a document of 120,000 tokens, with pauses of 2 to 20
    minutes.
    """
    draws = random.Random(seed)
    document = f"conv-{seed}- {draw_words(draws, 68_500)}"
    messages: list[Json] = []
    for _ in range(TURNS):
        question = f"Question: {draw_words(draws, 30)}"
        messages.append({"role": "user", "content": question if messages else f"{document}\n\n{question}"})
        answer = yield ClientRequest({"messages": messages}, draws.uniform(120, 1200))
        messages = [*messages, _reply(answer)]


CLAUDE, GPT = (("anthropic", "claude-sonnet-4-6", "claude-opus-4-8"), ("openai", "gpt-5", "gpt-4.1"))
SCENARIOS = (
    ClientScenario("agent", coding_agent, *CLAUDE, other_every=4),
    ClientScenario("agent-unmarked", partial(coding_agent, has_marks=False), *CLAUDE, other_every=4),
    ClientScenario("chat", chat, *GPT),
    ClientScenario("document", long_document, *GPT),
)


def _reply(answer: Json) -> Json:
    return {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


def _result(id: str, text: str) -> Json:
    return {"type": "tool_result", "tool_use_id": id, "content": text}


def _tool(draws: random.Random, number: int) -> Json:
    schema = {"type": "object", "properties": {"path": {"type": "string"}, "limit": {"type": "integer"}}}
    return {"name": f"tool_{number}", "description": draw_words(draws, 150), "input_schema": schema}


def _with_defaults(block: Json) -> Json:
    """Return a block of an answer as Claude Code sends it back."""
    arguments: Any = block.get("input")
    return block if arguments is None else block | {"input": {"limit": 100, **arguments}}


def draw_words(draws: random.Random, count: int) -> str:
    return " ".join(draws.choices(WORDS, k=count))
