"""Rules by which the fake provider caches and bills prompts: one row for each sentence of the providers' pages."""

from collections import Counter
from typing import Any

import pytest

from loadtest.rig.prompt_caches import (
    FRESH,
    READ,
    WRITTEN,
    WRITTEN_1H,
    ChatPrompt,
    MessagesPrompt,
    PrefixCache,
    Rejected,
)

Json = dict[str, Any]
FIVE, HOUR = {"type": "ephemeral"}, {"type": "ephemeral", "ttl": "1h"}
LONG = "word " * 1200
"""Longer than the minimum of 1,024 tokens."""


def text(words: str, mark: Json | None = None) -> Json:
    return {"type": "text", "text": words} | ({"cache_control": mark} if mark else {})


def messages(*turns: list[Json], system: list[Json] | None = None, **more: Any) -> Json:
    roles = ["user", "assistant"] * len(turns)
    listed = [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=False)]
    return {"system": system or [], "messages": listed, **more}


class Anthropic:
    """Cache of one account and one model."""

    def __init__(self) -> None:
        self.cache = PrefixCache()

    def send(self, body: Json, at_s: float = 0.0) -> Counter[str]:
        prompt = MessagesPrompt(body, "account model")
        tokens = prompt.read(self.cache, at_s)
        prompt.write(self.cache, at_s)
        assert tokens.total() == prompt.blocks[-1].end
        return +tokens


def test_a_breakpoint_writes_the_cache_and_the_next_request_reads_it() -> None:
    api, first = Anthropic(), messages([text(LONG, FIVE)])
    assert set(api.send(first)) == {WRITTEN}
    tokens = api.send(messages([text(LONG)], [text("Yes.")], [text("More", FIVE)]))
    assert tokens[READ] >= 1500
    assert 0 < tokens[WRITTEN] < 50
    assert set(tokens) == {READ, WRITTEN}


def test_without_a_breakpoint_nothing_is_cached() -> None:
    api = Anthropic()
    for _ in range(2):
        assert set(api.send(messages([text(LONG)]))) == {FRESH}
    api.send(messages([text(LONG, FIVE)]))
    assert set(api.send(messages([text(LONG)]))) == {FRESH}


@pytest.mark.parametrize(
    ("model", "words", "is_cached"),
    [
        ("claude-sonnet-4-6", 800, False),
        ("claude-sonnet-4-6", 850, True),
        ("claude-opus-5", 800, True),
        ("claude-haiku-4-5", 3200, False),
        ("claude-haiku-4-5", 3400, True),
    ],
)
def test_a_prefix_below_the_model_s_minimum_is_not_cached(model: str, words: int, *, is_cached: bool) -> None:
    api, body = Anthropic(), messages([text("word " * words, FIVE)], model=model)
    assert set(api.send(body)) == {WRITTEN if is_cached else FRESH}
    assert set(api.send(body)) == {READ if is_cached else FRESH}


@pytest.mark.parametrize(
    ("changed", "read"),
    [({"tools": [{"name": "f"}]}, False), ({"tool_choice": {"type": "any"}}, True), ({"thinking": {"type": "adaptive"}}, True)],
)  # fmt: skip
def test_only_some_changed_parameters_keep_the_system_prompts_cache(changed: Json, *, read: bool) -> None:
    api, system = Anthropic(), [text(LONG, FIVE)]
    before = api.send(messages([text(LONG, FIVE)], system=system))
    after = api.send(messages([text(LONG, FIVE)], system=system, **changed))
    assert 0 <= after[READ] < before[WRITTEN]
    assert bool(after[READ]) is read


@pytest.mark.parametrize(("more", "hit"), [(19, True), (20, False)])
def test_a_breakpoint_looks_back_over_20_positions(more: int, *, hit: bool) -> None:
    api = Anthropic()
    api.send(messages([text(LONG, FIVE)]))
    blocks = [text(LONG), *(text(f"block {n}") for n in range(more))]
    blocks[-1] |= {"cache_control": FIVE}
    assert bool(api.send(messages(blocks))[READ]) is hit


def test_consecutive_tool_results_are_one_position() -> None:
    api = Anthropic()
    api.send(messages([text(LONG, FIVE)]))
    calls = [{"type": "tool_use", "id": f"c{n}", "name": "f", "input": {}} for n in range(15)]
    results: list[Json] = [
        {"type": "tool_result", "tool_use_id": each["id"], "content": "x"} for each in calls
    ]
    results[-1] |= {"cache_control": FIVE}
    assert api.send(messages([text(LONG)], calls, results))[READ]


def test_a_result_means_the_same_as_text_or_as_a_block() -> None:
    api = Anthropic()
    call = [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]
    for content in (LONG, [text(LONG)], [text(LONG, FIVE)]):
        result = {"type": "tool_result", "tool_use_id": "c", "content": content, "cache_control": FIVE}
        tokens = api.send(messages([text("Go")], call, [result]))
    assert set(tokens) == {READ}


def test_at_most_four_breakpoints() -> None:
    with pytest.raises(Rejected, match="Found 5"):
        MessagesPrompt(messages([text("a", FIVE)] * 5), "")
    MessagesPrompt(messages([text("a", FIVE)] * 4), "")


def test_one_hour_breakpoints_precede_shorter_ones() -> None:
    MessagesPrompt(messages([text("a", FIVE)], system=[text("a", HOUR)]), "")
    with pytest.raises(Rejected, match="must not come after"):
        MessagesPrompt(messages([text("a", HOUR)], system=[text("a", FIVE)]), "")


@pytest.mark.parametrize(("mark", "lives_s"), [(FIVE, 300), (HOUR, 3600)])
def test_an_entry_expires_after_its_last_use(mark: Json, lives_s: int) -> None:
    api, body = Anthropic(), messages([text(LONG, mark)])
    api.send(body)
    assert set(api.send(body, lives_s - 1)) == {READ}
    assert set(api.send(body, 2 * lives_s - 2)) == {READ}
    assert READ not in api.send(body, 3 * lives_s - 2)


def test_two_lifetimes_are_billed_up_to_their_last_breakpoints() -> None:
    api = Anthropic()
    body = messages([text(LONG, FIVE), text("rest")], system=[text(LONG, HOUR)])
    tokens = api.send(body)
    assert tokens[WRITTEN_1H] == pytest.approx(tokens[WRITTEN], rel=0.02)
    assert 0 < tokens[FRESH] < 20
    assert set(api.send(body, 400)) == {READ, WRITTEN, FRESH}


def test_a_thinking_block_is_signed_with_everything_before_it() -> None:
    first = messages([text("Why?")])
    thought = {"type": "thinking", "thinking": "Hm.", "signature": MessagesPrompt(first, "us").signature}
    MessagesPrompt(messages([text("Why?")], [thought], [text("So?")]), "us")
    for changed, origin in (("Why not?", "us"), ("Why?", "eu")):
        with pytest.raises(Rejected, match="signature"):
            MessagesPrompt(messages([text(changed)], [thought]), origin)


def chat(words: int, *more: str, key: str = "") -> Json:
    texts = [f"{'word ' * words}", *more]
    body: Json = {"messages": [{"role": "user", "content": each} for each in texts]}
    return body | ({"prompt_cache_key": key} if key else {})


def send_chat(cache: PrefixCache, body: Json, at_s: float = 0.0) -> Counter[str]:
    prompt = ChatPrompt(body)
    tokens = prompt.read(cache, at_s)
    prompt.write(cache, at_s)
    return tokens


def test_chat_prompts_are_cached_in_steps_of_128_tokens() -> None:
    cache = PrefixCache()
    assert send_chat(cache, chat(1200))[READ] == 0
    tokens = send_chat(cache, chat(1200, "And then?"))
    assert tokens[READ] == 11 * 128  # of about 1,510 tokens
    assert tokens[FRESH] > 0


def test_chat_prompts_below_1024_tokens_are_not_cached() -> None:
    cache = PrefixCache()
    for _ in range(2):
        assert send_chat(cache, chat(800))[READ] == 0


def test_chat_entries_live_for_five_minutes_after_their_last_use() -> None:
    cache = PrefixCache()
    reads = [send_chat(cache, chat(1200), at_s)[READ] for at_s in (0, 299, 598, 898)]
    assert [bool(each) for each in reads] == [False, True, True, False]


def test_the_prompts_start_and_cache_key_select_the_machine() -> None:
    route = ChatPrompt(chat(1200)).route
    assert ChatPrompt(chat(1200, "other")).route == route
    assert ChatPrompt(chat(1200, key="a")).route != route
    assert ChatPrompt({"messages": [{"role": "user", "content": "other " * 1200}]}).route != route


def test_above_15_calls_per_minute_another_machine_is_used() -> None:
    prompt = ChatPrompt(chat(1200))
    machines = [prompt.machine(n) for n in range(31)]
    assert len({*machines[:15]}) == 1
    assert machines[14] != machines[15]
    assert machines[30] not in (machines[0], machines[15])
