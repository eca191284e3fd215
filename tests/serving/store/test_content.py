"""Texts that the store receives of a run, on both databases. It never gets secrets, and policies can exclude personal
data or all text, or limit the retention.
"""

import asyncio
import zlib
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from conductor.model.messages import Message
from conductor.model.terms import Permit
from conductor.run.events import Event
from conductor.run.fold import after
from conductor.run.record import Account, Record, RunRecords
from conductor.run.task import Task
from serving.accounts.account_policy import AccountPolicy
from serving.accounts.directory import Directory
from serving.batches.kept_text import kept_in_steps
from serving.database.address import Address
from serving.redaction.personal import MOST_CHECKED, PersonalDataRedactor
from serving.redaction.slices import finish
from serving.redaction.texts import map_texts
from serving.store.content import ContentJournal, kept_part
from serving.store.retention import DAY_US
from tests.serving.api.served import ASK, answer_text, parsed, scripted, team
from tests.serving.store.stores import Replica, open_stores, replicas
from tests.serving.store.test_database_store import EVENTS, begun, tell
from tests.serving.store.test_retention import NOW_S, NOW_US, shown

pytestmark = pytest.mark.postgresql

SECRET = "sk-proj-" + "aB3x" * 8
PERSON = "ada@example.org"
ECHO = team(
    workers=[
        scripted("a", f"One {PERSON} two {SECRET} three.", tokens_per_s=100),
        scripted("b", "{question}"),
        scripted("c"),
    ]
)
QUESTION = {"messages": [{"role": "user", "content": f"My key is {SECRET}, I am {PERSON}."}]}


@asynccontextmanager
async def limited(
    address: Address, **policy: Any
) -> AsyncGenerator[tuple[Replica, dict[str, str], Directory]]:
    """Serve a router that requires keys. Yield it, and the headers of a key whose team has this policy."""
    directory = Directory(address)
    try:
        owner = await directory.create_team("search")
        await directory.change_team_policy(owner.id, AccountPolicy(**policy))
        key, _ = await directory.create_key("app", "search")
        async with replicas(address, ECHO, n=1, directory=directory) as (router,):
            yield router, {"authorization": f"Bearer {key.reveal()}"}, directory
    finally:
        await directory.aclose()


async def everything(router: Replica) -> bytes:
    """Return everything that the store has of runs, once all is written."""
    await router.records._idle.wait()
    texts: list[Any] = []
    for query in ("SELECT numbers, body FROM run", "SELECT body, NULL FROM run_event"):
        for row in await router.rows(query):
            texts += [zlib.decompress(bytes(each)) for each in row if each is not None]
    texts += [
        f"{text}\n{question}".encode()
        for text, question in await router.rows("SELECT text, question FROM run_text")
    ]
    return b"\n".join(texts)


@pytest.mark.parametrize("stream", [False, True])
async def test_secrets_in_prompts_outputs_and_streams_are_not_stored(
    store_address: Address, stream: bool
) -> None:
    async with limited(store_address) as (router, headers, _):
        body = ASK | QUESTION | {"model": "a", "stream": stream}
        answer = await router.api.http.post(
            "/v1/chat/completions", json=body, headers=headers | {"idempotency-key": "one"}
        )
        heard = (
            answer_text(parsed(answer.text)) if stream else answer.json()["choices"][0]["message"]["content"]
        )
        assert SECRET in heard  # the client gets the worker's own words
        content = await everything(router)
        assert SECRET.encode() not in content
        assert PERSON.encode() in content
        id = answer.headers["x-podium-workflow-id"]
        record = (await router.api.http.get(f"/v1/workflows/{id}", headers=headers)).text
        events = (await router.api.http.get(f"/v1/workflows/{id}/events", headers=headers)).text
        listed = (await router.api.http.get("/v1/workflows", headers=headers)).text
        assert SECRET not in record + events + listed
        assert PERSON in listed, "the beginning of the question"
        assert "[secret removed] three." in record


async def test_personal_data_is_not_stored_if_the_policy_forbids_it(store_address: Address) -> None:
    async with limited(store_address, redact_personal_data=True) as (router, headers, _):
        body = ASK | QUESTION | {"stream": True}
        await router.api.http.post(
            "/v1/chat/completions", json=body, headers=headers | {"idempotency-key": "one"}
        )
        content = await everything(router)
        assert PERSON.encode() not in content
        assert b"[e-mail address removed]" in content


async def test_without_stored_content_events_are_still_recorded(
    store_address: Address,
) -> None:
    async with limited(store_address, store_content=False) as (router, headers, _):
        body = ASK | QUESTION | {"logprobs": True, "prompt_cache_key": "the trip of Ada"}
        answer = await router.api.http.post("/v1/chat/completions", json=body, headers=headers)
        assert answer.json()["choices"][0]["logprobs"]["content"], "these tokens contain its text too"
        id = answer.headers["x-podium-workflow-id"]
        content = await everything(router)
        assert not [
            word for word in (b"My key", b"One", b"three", b"Find a reason", b"the trip") if word in content
        ]
        record = (await router.api.http.get(f"/v1/workflows/{id}", headers=headers)).json()
        assert (record["content"], record["status"]) == (False, "finished")
        assert record["usage"]["total_tokens"] > 0
        events = (await router.api.http.get(f"/v1/workflows/{id}/events", headers=headers)).text
        assert '"type":"step_ended"' in events
        assert "three" not in events


async def test_a_run_in_progress_shows_only_what_may_be_stored(store_address: Address) -> None:
    async with limited(store_address, store_content=False) as (router, headers, _):
        body = ASK | QUESTION | {"model": "a", "stream": True}
        async with router.api.http.stream(
            "POST", "/v1/chat/completions", json=body, headers=headers
        ) as answer:
            id = answer.headers["x-podium-workflow-id"]
            running = (await router.api.http.get(f"/v1/workflows/{id}", headers=headers)).json()
            assert running["content"] is False
            listed = (await router.api.http.get("/v1/workflows", headers=headers)).json()["data"]
            assert [run["id"] for run in listed] == [id]
            assert "My key" not in str(running) + str(listed)
        await until_ended_with(router, id, headers)


async def test_the_list_shows_a_running_runs_question_without_secrets(
    store_address: Address,
) -> None:
    async with limited(store_address) as (router, headers, _):
        body = ASK | QUESTION | {"model": "a", "stream": True}
        async with router.api.http.stream(
            "POST", "/v1/chat/completions", json=body, headers=headers
        ) as answer:
            id = answer.headers["x-podium-workflow-id"]
            (listed,) = (await router.api.http.get("/v1/workflows", headers=headers)).json()["data"]
            assert (listed["id"], listed["content"]) == (id, False)
            assert "My key" in str(listed["messages"])
            assert SECRET not in str(listed)
        await until_ended_with(router, id, headers)


async def until_ended_with(router: Replica, id: str, headers: dict[str, str]) -> None:
    while (await router.api.http.get(f"/v1/workflows/{id}", headers=headers)).json()["status"] == "running":
        await asyncio.sleep(0.02)


async def test_texts_are_removed_when_the_teams_or_keys_policy_requires_it(store_address: Address) -> None:
    directory = Directory(store_address)
    try:
        owner = await directory.create_team("search")
        await directory.change_team_policy(owner.id, AccountPolicy(content_days=2))
        _, key = await directory.create_key("app")
        await directory.change_key_policy(key.id, AccountPolicy(content_days=5))
        async with open_stores(store_address) as (_, store):
            for id, days, account in (
                ("new", 1, Account("key_x", owner.id)),
                ("old", 3, Account("key_x", owner.id)),
                ("others", 3, Account("key_x", "team_x")),
                ("key_new", 4, Account(key.id)),
                ("key_old", 6, Account(key.id)),
            ):
                await tell(store, begun(id, NOW_S - days * 86_400, account))
            await store.aclose()
            assert await store.remove_old(NOW_US) == 2
            assert await shown(store) == {"new": True, "old": False, "others": True, "key_new": True, "key_old": False}  # fmt: skip
            await directory.change_team_policy(owner.id, AccountPolicy(content_days=None))
            assert await store.remove_old(NOW_US + DAY_US) == 0
    finally:
        await directory.aclose()


def test_the_texts_of_a_run_share_one_limit_of_checked_numbers() -> None:
    """A limit per text would not help, because a request can have 200,000 texts."""
    numbers = [Message.of("user", f"+999 {n:09}") for n in range(MOST_CHECKED + 100)]
    task = Task(tuple(numbers), permit=Permit(hides_personal_data=True))
    part = kept_part(RunRecords(replace(begun("wf_1"), task=task))).record.task.conversation
    assert list(part[:MOST_CHECKED]) == numbers[:MOST_CHECKED]
    assert {message.text for message in part[MOST_CHECKED:]} == {"[telephone number removed]"}
    records: list[Record] = []
    journal = ContentJournal(task.permit, lambda record, *_: records.append(record))
    journal.note(replace(begun("wf_1"), task=task), 1, EVENTS[0])
    assert records[0].task.conversation == part


def test_the_lines_of_a_file_share_one_limit_of_checked_numbers() -> None:
    lines = [f'["+999 {n:09}"]\n'.encode() for n in range(20)]
    redact = PersonalDataRedactor(most_checked=5)
    assert (
        finish(kept_in_steps(b"".join(lines), redact))
        == b"".join(lines[:5]) + b'["[telephone number removed]"]\n' * 15
    )


def swap_words(events: Sequence[Event], place: int | None) -> Generator[Event]:
    """Yield `events`, with a secret in every text of the event at `place`."""
    for n, event in enumerate(events):
        yield map_texts(event, lambda text: f"{text} {SECRET}") if n == place else event


@pytest.mark.parametrize("place", [None, *range(len(EVENTS))])
def test_no_text_is_redacted_twice(place: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = ContentJournal(Permit(), lambda *_: None)
    record = begun("wf_1")
    untold = RunRecords(replace(record, answer=SECRET))
    assert journal.storable(untold) == kept_part(untold) != untold
    for event in swap_words(EVENTS, place):
        record = after(record, event)
        journal.note(record, record.seq, event)
    records = RunRecords(record)
    expected = kept_part(records)
    monkeypatch.setattr("serving.store.content.map_texts", None)
    assert journal.storable(records) == expected
    assert (journal.storable(records) is records) == (SECRET not in repr(record)), (
        "a piece of an answer is no part of it"
    )
