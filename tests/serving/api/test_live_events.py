"""Watchers of a run see the plan and the words of steps while they are written. Ten see the same, and without
watchers there is no cost.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from conductor.model.call import Call
from conductor.model.deltas import open_reply
from conductor.model.reply import Delta, FinishReason, Reply
from conductor.model.usage import Price, Usage
from serving.accounts.caller import Scope
from serving.database.address import Address
from tests.serving.api.keyed import keyed
from tests.serving.api.served import Json, Served, plan, scripted, served, step, team
from tests.serving.store.stores import replicas

SECRET = "sk-ant-api03-" + "a1B2c3D4" * 10
WORDS = f"one two {SECRET} four five six "
PLAN = plan(step("a", "Say words."), step("b", "Conclude.", [0]))


GATES = dict[str, asyncio.Event]()
"""Events by name. The conductor waits for its event before it plans."""


class GatedConductor:
    """Conductor that writes `PLAN` in pieces once its gate is open."""

    def __init__(self, name: str, price: Price | None, gate: str) -> None:
        self.name, self._gate = name, gate

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        return open_reply(self.name, "gated", self._deltas(), None)

    async def aclose(self) -> None: ...

    async def _deltas(self) -> AsyncGenerator[Delta]:
        await GATES[self._gate].wait()
        for n in range(0, len(PLAN), 10):
            await asyncio.sleep(0.01)
            yield Delta(PLAN[n : n + 10])
        yield Delta(finish=FinishReason.STOP, usage=Usage(10, 10))


def team_behind_a_gate() -> Json:
    settings = slow_team()
    factory = f"{__name__}:GatedConductor"
    conductor = {
        "name": "conductor",
        "kind": "python",
        "factory": factory,
        "in_pool": False,
        "options": {"gate": "it"},
    }
    return settings | {"workers": [conductor, *settings["workers"][1:]]}


def slow_team() -> Json:
    workers = [scripted("a", WORDS, tokens_per_s=20), scripted("b", "alpha beta gamma", tokens_per_s=20)]
    return team(PLAN, workers=workers, workflows={})


async def watch(api: Served, id: str, begun: list[str] | None = None) -> list[Json]:
    events: list[Json] = []
    async with api.http.stream("GET", f"/v1/workflows/{id}/events") as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                events += [json.loads(line.removeprefix("data: "))]
                if begun is not None and len(events) == 1:
                    begun.append(id)
    return events


def text_of(events: list[Json], step: int | None) -> str:
    return "".join(each["text"] for each in events if each["type"] == "work" and each["step"] == step)


@pytest.mark.parametrize("with_store", [False, True])
async def test_watchers_see_plan_and_step_output_while_they_are_written(
    store_address: Address, with_store: bool
) -> None:
    if not with_store and store_address.kind != "sqlite":
        return  # a run in memory needs only one database
    gate = GATES["it"] = asyncio.Event()
    async with AsyncExitStack() as stack:
        if with_store:
            one, other = await stack.enter_async_context(replicas(store_address, team_behind_a_gate()))
            apis = [one.api, other.api]
        else:
            apis = [await stack.enter_async_context(served(team_behind_a_gate()))]
        asking = asyncio.create_task(apis[0].ok())
        while not apis[0].service.sessions.running:
            await asyncio.sleep(0.01)
        id = next(iter(apis[0].service.sessions.running))
        for api in apis:
            while (await api.http.get(f"/v1/workflows/{id}")).status_code == 404:
                await asyncio.sleep(0.02)
        begun: list[str] = []
        watching = asyncio.gather(*(watch(apis[n % len(apis)], id, begun) for n in range(10)))
        while len(begun) < 10:
            await asyncio.sleep(0.02)
        gate.set()
        watched = await watching
        await asking
        assert all(events[-1] == {"type": "end", "status": "finished"} for events in watched)
        assert len({json.dumps(events) for events in watched[:: len(apis)]}) == 1, "all are told the same"
        for events in watched:
            assert PLAN.startswith(text_of(events, None))
            assert "".join(each["text"] for each in events if each["type"] == "answer") == "alpha beta gamma"
            assert "one two" in text_of(events, 0)
            assert SECRET not in json.dumps(events)
            assert len([each for each in events if each["type"] == "work" and each["step"] == 0]) > 1
        assert text_of(watched[0], None), "the plan's text"
        assert SECRET not in json.dumps(await apis[0].record(id))


async def test_a_run_without_watchers_stores_no_step_deltas() -> None:
    async with served(slow_team()) as api:
        id = (await api.ok())["podium"]["workflow_id"]
        assert not [each for each in await watch(api, id) if each["type"] in ("work", "answer")]


@pytest.mark.parametrize(
    ("method", "change", "status"), [("DELETE", None, 401), ("POST", {"scopes": ["run"]}, 403)]
)
async def test_a_watchers_stream_ends_when_its_key_loses_access(
    tmp_path: Path, method: str, change: Any, status: int
) -> None:
    workers = [scripted("a", WORDS * 4, tokens_per_s=10)]
    async with keyed(tmp_path, team(plan(step("a", "Say words.")), workers=workers, workflows={})) as it:
        body = {"model": "a", "messages": [{"role": "user", "content": "Hi"}]}
        asking = asyncio.create_task(it.ask("admin", "POST", "/v1/chat/completions", body))
        while not it.api.service.sessions.running:
            await asyncio.sleep(0.01)
        path = f"/v1/workflows/{next(iter(it.api.service.sessions.running))}/events"

        async def watch_as(who: str, on_line: Callable[[], None] = lambda: None) -> str:
            text = ""
            async with it.api.http.stream("GET", path, headers=it.headers(who)) as answer:
                async for line in answer.aiter_lines():
                    text += line
                    on_line()
            return text

        key, _ = await it.directory.create_key("second", None, {Scope.ADMIN})
        it.secrets["second"], start = key.reveal(), asyncio.Event()
        watching = asyncio.create_task(watch_as("second", start.set))
        other = asyncio.create_task(watch_as("admin"))
        await start.wait()
        changed = await it.ask("admin", method, "/v1/admin/keys/second", change)
        assert changed.status_code == 200
        text = await watching
        assert not asking.done()
        assert "event: end" not in text
        assert (await it.ask("second", "GET", path)).status_code == status
        assert (await asking).status_code == 200
        assert "event: end" in await other
