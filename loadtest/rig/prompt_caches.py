"""Prompt caches by the published rules of Anthropic and OpenAI. A prompt has one token per four bytes.

Anthropic's rules (https://platform.claude.com/docs/en/build-with-claude/prompt-caching, read in November 2026):

* A prompt has the order tools, system, messages. Only a breakpoint (`cache_control`) writes an entry: the prefix that
  ends at its block, if the prefix has the model's minimum length (`least_tokens`). The entry can be read once the answer begins.
* Each breakpoint looks for the newest entry at 20 positions, its own included. A row of tool calls or of tool results is
  one position.
* An entry lives for 5 minutes or an hour after its last use. A request has at most four breakpoints, and those of an hour
  come first.
* The tokens up to the longest entry are read. The rest up to the last breakpoint of an hour is written for an hour, and
  the rest up to the last breakpoint for 5 minutes.
* `tool_choice`, `thinking` and `output_config` are part of the prefix from the first message on.

OpenAI's rules for models before GPT-5.6 (https://developers.openai.com/api/docs/guides/prompt-caching and
https://developers.openai.com/cookbook/examples/prompt_caching_201):

* Prompts of at least 1,024 tokens are cached in steps of 128 tokens. Writing is free.
* Each machine has its own cache. The first 256 tokens and `prompt_cache_key` choose the machine. Above about 15 requests
  per minute, further requests go to other machines.
* An entry lives for 5 to 10 minutes after its last use (here: 5).
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import cast

from loadtest.rig import Json
from serving.workers.cache_marks import least_tokens

FRESH, OUTPUT = "input_usd_per_mtok", "output_usd_per_mtok"
READ, WRITTEN = "cached_input_usd_per_mtok", "cache_write_usd_per_mtok"
WRITTEN_1H = "cache_write_1h_usd_per_mtok"
TOKEN_BYTES = 4
LOOK_BACK, MOST_BREAKPOINTS = 20, 4
LIFETIMES_S = {"5m": 300.0, "1h": 3600.0}
MESSAGE_FIELDS = ("tool_choice", "thinking", "output_config")
ROWS = ("tool_use", "tool_result")
STEP_TOKENS = 128
STEP_BYTES, ROUTING_BYTES = STEP_TOKENS * TOKEN_BYTES, 256 * TOKEN_BYTES
IDLE_S = 300.0
MACHINES, CALLS_PER_MACHINE, MINUTE_S = 4, 15, 60.0


class Rejected(Exception):
    """The provider rejects a request with the status 400. The message says why."""


class PrefixCache:
    """Cached prefixes by their hash, with their lifetime and the time when they expire."""

    def __init__(self) -> None:
        self._entries: dict[bytes, tuple[float, float]] = {}

    def has(self, prefix: bytes, now_s: float) -> bool:
        return now_s < self._entries.get(prefix, (0.0, now_s))[1]

    def write(self, prefix: bytes, lifetime_s: float, now_s: float) -> None:
        self._entries[prefix] = lifetime_s, now_s + lifetime_s

    def refresh(self, prefix: bytes, now_s: float) -> None:
        """Restart the lifetime of `prefix` if it is cached."""
        if self.has(prefix, now_s):
            self.write(prefix, self._entries[prefix][0], now_s)


@dataclass(frozen=True, slots=True)
class Block:
    """Block of a prompt of Anthropic's API. Its hashes and its end (in tokens) are those of the prompt up to its end.

    Args:
        kind: the type of a block of a message, or else "tool" or "system".
        lifetime: `5m` or `1h` if the block is a breakpoint, else "".
        prefix: the hash by which the prompt is cached.
    """

    kind: str
    lifetime: str
    end: int
    content: bytes
    prefix: bytes


class MessagesPrompt:
    """Prompt of a request of Anthropic's Messages API. Signatures of thoughts are valid for an `origin` (account and
    model).

    Raises:
        Rejected: the request has too many breakpoints, or in a wrong order, or it changes what comes before a
            signed thought.
    """

    def __init__(self, body: Json, origin: str) -> None:
        self.blocks: list[Block] = []
        self._origin, self._written = origin, list[Block]()
        self._least_tokens = least_tokens(body.get("model", ""))
        fields = _dump({name: body.get(name) for name in MESSAGE_FIELDS})
        parts = [("tool", each) for each in body.get("tools") or ()]
        parts += [("system", each) for each in parts_of(body.get("system"))]
        parts += [(turn["role"], each) for turn in body["messages"] for each in parts_of(turn["content"])]
        lifetimes, size, content = list[str](), 0, b""
        for place, part in parts:
            if part.get("type") == "thinking" and part["signature"] != self.signature:
                raise Rejected("Invalid `signature` in `thinking` block")
            plain, own = _without_marks(part)
            text = _dump([place, plain])
            size, content = size + len(text), _hash(content + text)
            is_head = place in ("tool", "system")
            kind, prefix = (place, content) if is_head else (part["type"], _hash(content + fields))
            self.blocks.append(Block(kind, own[-1] if own else "", size // TOKEN_BYTES, content, prefix))
            lifetimes += own
        if (n := len(lifetimes)) > MOST_BREAKPOINTS:
            raise Rejected(f"A maximum of 4 blocks with cache_control may be provided. Found {n}.")
        if lifetimes != sorted(lifetimes):  # "1h" is before "5m"
            raise Rejected(
                "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block"
            )

    @property
    def signature(self) -> str:
        """Signature of a thought that follows the blocks."""
        return _hash(self._origin.encode() + (self.blocks[-1].content if self.blocks else b"")).hex()

    def read(self, cache: PrefixCache, now_s: float) -> Counter[str]:
        """Read the cache. Return the tokens by the name of their price."""
        blocks = self.blocks
        marked = [n for n, each in enumerate(blocks) if each.lifetime and each.end >= self._least_tokens]
        hits = [
            at for each in marked for at in look_back(blocks, each) if cache.has(blocks[at].prefix, now_s)
        ]
        hit = max(hits, default=-1)
        for each in blocks[: hit + 1]:
            cache.refresh(each.prefix, now_s)
        self._written = [blocks[each] for each in marked if each > hit]
        read = blocks[hit].end if hit >= 0 else 0
        hour = max((each.end for each in self._written if each.lifetime == "1h"), default=read)
        end = max((each.end for each in self._written), default=read)
        tokens = {READ: read, WRITTEN_1H: hour - read, WRITTEN: end - hour, FRESH: blocks[-1].end - end}
        return Counter(tokens)

    def write(self, cache: PrefixCache, now_s: float) -> None:
        """Write the prefixes at the breakpoints. `now_s` is the time of the request."""
        for each in self._written:
            cache.write(each.prefix, LIFETIMES_S[each.lifetime], now_s)


def look_back(blocks: Sequence[Block], index: int) -> Iterator[int]:
    """Yield the indices of the blocks at which a breakpoint at `index` looks for an entry."""
    positions = 0
    for at in range(index, -1, -1):
        positions += at == index or not blocks[at].kind == blocks[at + 1].kind in ROWS
        if positions > LOOK_BACK:
            return
        yield at


class ChatPrompt:
    """Prompt of a request of OpenAI's Chat Completions."""

    def __init__(self, body: Json) -> None:
        parts = [body.get("response_format"), *(body.get("tools") or ()), *map(_plain, body["messages"])]
        text = b"\n".join(map(_dump, parts))
        self.route = _hash(text[:ROUTING_BYTES] + body.get("prompt_cache_key", "").encode())
        """Hash that chooses the machine."""
        self._least_tokens = least_tokens(body.get("model", ""))
        self._n_tokens, self._steps = len(text) // TOKEN_BYTES, list[bytes]()
        state = blake2b(digest_size=32)
        for start in range(0, len(text) - STEP_BYTES + 1, STEP_BYTES):
            state.update(text[start : start + STEP_BYTES])
            self._steps.append(state.digest())

    def machine(self, recent_calls: int) -> int:
        """Return the number of the machine. `recent_calls` is the number of calls of this route in the last
        minute.
        """
        return (int.from_bytes(self.route) + recent_calls // CALLS_PER_MACHINE) % MACHINES

    def read(self, cache: PrefixCache, now_s: float) -> Counter[str]:
        """Read the cache of the machine. Return the tokens by the name of their price."""
        steps = self._steps
        n_steps = next((n for n, each in enumerate(steps) if not cache.has(each, now_s)), len(steps))
        read = n_steps * STEP_TOKENS
        read = read if read >= self._least_tokens else 0
        return Counter({READ: read, FRESH: self._n_tokens - read})

    def write(self, cache: PrefixCache, now_s: float) -> None:
        """Write all steps. `now_s` is the time of the request."""
        for each in self._steps if self._n_tokens >= self._least_tokens else ():
            cache.write(each, IDLE_S, now_s)


def parts_of(content: object) -> list[Json]:
    """Return content as a list of blocks. A text means the same as one text block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return cast(list[Json], content or [])


def _without_marks(part: Json) -> tuple[Json, list[str]]:
    """Return a block without its breakpoints, and their lifetimes."""
    plain = {name: part[name] for name in sorted(part) if name != "cache_control"}
    lifetimes: list[str] = []
    if part.get("type") == "tool_result":
        inner = [_without_marks(each) for each in parts_of(part.get("content"))]
        plain["content"] = [each for each, _ in inner]
        lifetimes += [each for _, own in inner for each in own]
    if mark := part.get("cache_control"):
        lifetimes.append(mark.get("ttl", "5m"))
    return plain, lifetimes


def _plain(message: Json) -> Json:
    """Return a message of Chat Completions. A list of texts means the same as one text."""
    parts = parts_of(message.get("content"))
    if any(each["type"] != "text" for each in parts):
        return message
    return message | {"content": "".join(each["text"] for each in parts)}


def _dump(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _hash(content: bytes) -> bytes:
    return blake2b(content, digest_size=32).digest()
