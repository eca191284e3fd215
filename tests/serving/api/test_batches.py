"""Files and batches with the official SDK, over a real socket."""

import asyncio
import json
import tracemalloc
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import openai
import pytest
from sqlalchemy import Executable, Row

from conductor.errors import BudgetExceeded
from conductor.model.messages import Message
from conductor.run.record import NO_ACCOUNT
from serving.accounts.account_ledger import WAIT_S
from serving.accounts.caller import Caller
from serving.accounts.replica_store import ReplicaStore
from serving.api.batch_line import Exchange
from serving.api.dialects.table import DIALECTS
from serving.api.run_response import Wire
from serving.batches.database_store import DatabaseBatchStore
from serving.batches.kept_text import kept_in_steps
from serving.batches.lines import PIECE_BYTES, LineAnswer, read_lines
from serving.batches.memory_store import MemoryBatchStore
from serving.batches.model import Batch, StoredFile
from serving.batches.runner import MOST_RESULT_BYTES
from serving.database.address import Address
from serving.database.clock import now_us
from serving.redaction.personal import PersonalDataRedactor
from serving.redaction.secrets import redact_secrets
from serving.redaction.slices import finish
from tests.databases import make_file
from tests.serving.api.keyed import Keyed, keyed
from tests.serving.api.served import PRICE, Json, Served, scripted, served, team
from tests.serving.api.test_responses_later import pack_item, unpack_item
from tests.states import until

CHAT = "/v1/chat/completions"
ENDS = {"completed", "failed", "expired", "cancelled"}
DAY_US = 86_400_000_000
ONE_CALL_USD = 0.0083
"""Dollars that cover the reservation of one call at `PRICE`, but not of two."""


def line(custom_id: str, text: str = "Why?", model: str = "a", url: str = CHAT, **body: Any) -> Json:
    request_body = {"model": model, "messages": [{"role": "user", "content": text}]} | body
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": request_body}


def jsonl(*lines: Any) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


async def upload(sdk: openai.AsyncOpenAI, *lines: Any) -> str:
    return (await sdk.files.create(file=("in.jsonl", jsonl(*lines)), purpose="batch")).id


async def begin(sdk: openai.AsyncOpenAI, *lines: Any) -> str:
    file = await upload(sdk, *lines)
    batch = await sdk.batches.create(input_file_id=file, endpoint=CHAT, completion_window="24h")
    assert batch.status == "validating"
    return batch.id


async def end(sdk: openai.AsyncOpenAI, id: str) -> Any:
    async with asyncio.timeout(30):
        while (batch := await sdk.batches.retrieve(id)).status not in ENDS:
            await asyncio.sleep(0.05)
    return batch


async def rows(sdk: openai.AsyncOpenAI, file_id: str | None) -> dict[str, Any]:
    if file_id is None:
        return {}
    text = (await sdk.files.content(file_id)).text
    return {row["custom_id"]: row for row in map(json.loads, text.splitlines())}


@pytest.fixture
async def api() -> AsyncGenerator[Served]:
    async with served(team()) as running:
        yield running


async def test_a_file_is_created_listed_read_and_deleted(api: Served) -> None:
    sdk = api.sdk
    content = jsonl(line("1"))
    file = await sdk.files.create(file=("in.jsonl", content), purpose="batch")
    assert (file.filename, file.bytes, file.purpose, file.status) == ("in.jsonl", len(content), "batch", "processed")  # fmt: skip
    other = await upload(sdk, line("2"))
    assert [each.id async for each in sdk.files.list()] == [other, file.id]
    assert [each.id async for each in sdk.files.list(limit=1, order="asc")] == [file.id, other]
    assert (await sdk.files.retrieve(file.id)).id == file.id
    assert (await sdk.files.content(file.id)).content == content
    assert (await sdk.files.delete(file.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await sdk.files.retrieve(file.id)


async def test_each_line_of_a_batch_is_a_run_and_answers_become_a_file(api: Served) -> None:
    sdk = api.sdk
    lines = [line("one"), line("two", model="duo"), line("nobody", model="absent"), line("bad", temperature="hot"), line("streams", stream=True)]  # fmt: skip
    file = await upload(sdk, *lines)
    new_batch = await sdk.batches.create(input_file_id=file, endpoint=CHAT, completion_window="24h", metadata={"for": "tests"})  # fmt: skip
    batch = await end(sdk, new_batch.id)
    assert (batch.status, batch.metadata, batch.errors) == ("completed", {"for": "tests"}, None)
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (
        5,
        2,
        3,
    )
    good, bad = await rows(sdk, batch.output_file_id), await rows(sdk, batch.error_file_id)
    assert (list(good), list(bad)) == (["one", "two"], ["nobody", "bad", "streams"])
    answer = good["one"]["response"]
    assert (answer["status_code"], good["one"]["error"]) == (200, None)
    assert answer["body"]["choices"][0]["message"]["content"] == "A reason: scattering."
    assert (await api.record(answer["request_id"]))["status"] == "finished"
    assert bad["nobody"]["response"]["status_code"] == 404
    assert bad["bad"]["response"]["body"]["error"]["param"] == "temperature"
    assert bad["streams"]["error"]["code"] == "invalid_request"
    assert [each.id async for each in sdk.batches.list()] == [new_batch.id]
    with pytest.raises(openai.BadRequestError, match="purpose"):
        await sdk.batches.create(input_file_id=batch.output_file_id, endpoint=CHAT, completion_window="24h")


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"{not json\n", "invalid_json_line"),
        (b"\n", "empty_file"),
        (jsonl({"method": "POST"}), "invalid_request"),
        (jsonl(line("1"), line("1")), "duplicate_custom_id"),
        (jsonl(line("1", url="/v1/embeddings")), "mismatched_url"),
        (jsonl(line("\x1b]0;x\x07")), "invalid_request"),
        (jsonl(line("\u202e1")), "invalid_request"),
    ],
)
async def test_an_invalid_file_fails_its_batch_and_runs_nothing(content: bytes, code: str) -> None:  # fmt: skip
    async with served(team(batches={"max_lines": 3})) as api:
        file = await api.sdk.files.create(file=("in.jsonl", content), purpose="batch")
        new_batch = await api.sdk.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h"
        )
        batch = await end(api.sdk, new_batch.id)
        assert (batch.status, batch.errors.data[0].code) == ("failed", code)
        assert not api.worker("a").calls


async def test_an_invalid_batch_request_is_an_error_with_its_field(api: Served) -> None:
    sdk = api.sdk
    with pytest.raises(openai.BadRequestError, match="purpose"):
        await sdk.files.create(file=("in.jsonl", b"{}"), purpose="fine-tune")
    file = await upload(sdk, line("1"))
    with pytest.raises(openai.BadRequestError, match="endpoint"):
        await sdk.batches.create(input_file_id=file, endpoint="/v1/images", completion_window="24h")  # type: ignore[arg-type]
    with pytest.raises(openai.BadRequestError, match="completion_window"):
        await sdk.batches.create(input_file_id=file, endpoint=CHAT, completion_window="1h")  # type: ignore[arg-type]
    with pytest.raises(openai.NotFoundError, match="input_file_id"):
        await sdk.batches.create(input_file_id="file-none", endpoint=CHAT, completion_window="24h")
    answer = await api.http.post("/v1/files", json={"purpose": "batch"})
    assert answer.status_code == 415
    headers = {"content-type": "multipart/form-data; boundary=x"}
    for form in (b"nonsense", b"--x\r\nnonsense\r\n"):
        assert (await api.http.post("/v1/files", content=form, headers=headers)).status_code == 400
    assert await upload(sdk, line("1")), "a form that breaks off holds no turn"


async def test_a_batch_file_may_exceed_the_body_limit_but_not_its_own() -> None:
    settings = team(limits={"max_body_bytes": 1000, "max_text_bytes": 1000}, batches={"max_file_bytes": 5000})
    async with served(settings) as api:
        await api.sdk.files.create(file=("in.jsonl", (b"x" * 399 + b"\n") * 10), purpose="batch")
        for n in (6000, 200_000):
            with pytest.raises(openai.APIStatusError) as caught:
                await api.sdk.files.create(file=("in.jsonl", b"x" * n), purpose="batch")
            assert caught.value.status_code == 413
            assert "batches.max_file_bytes" in caught.value.message


async def test_a_teams_files_are_limited_in_bytes_even_if_uploaded_concurrently() -> None:
    async with served(team(batches={"max_bytes_per_team": 1000})) as api:
        uploads = [api.sdk.files.create(file=("in.jsonl", b"x" * 600), purpose="batch") for _ in range(5)]
        answers = await asyncio.gather(*uploads, return_exceptions=True)
        refused = [each for each in answers if isinstance(each, openai.APIStatusError)]
        assert [(each.status_code, each.param) for each in refused] == [(413, "file")] * 4
        assert all("batches.max_bytes_per_team" in each.message for each in refused)
        (file,) = [each async for each in api.sdk.files.list()]
        await api.sdk.files.delete(file.id)
        await api.sdk.files.create(file=("in.jsonl", b"x" * 900), purpose="batch")


async def test_a_client_may_set_an_earlier_expiry_of_files(
    api: Served,
) -> None:
    sdk, hour = api.sdk, {"anchor": "created_at", "seconds": 3_600}
    lines = ("in.jsonl", jsonl(line("1")))
    file = await sdk.files.create(file=lines, purpose="batch", expires_after=hour)  # type: ignore[arg-type]
    fields: Any = {
        "input_file_id": file.id,
        "endpoint": CHAT,
        "completion_window": "24h",
        "output_expires_after": hour,
    }
    batch = await sdk.batches.create(**fields, extra_body={"some_new_thing": 1})
    output = await sdk.files.retrieve((await end(sdk, batch.id)).output_file_id)
    assert [each.expires_at - each.created_at for each in (file, output)] == [3_600, 3_600]
    for wrong in ({"anchor": "created_at", "seconds": 1}, {"seconds": 3_600}):
        with pytest.raises(openai.BadRequestError, match="expires_after"):
            await sdk.files.create(file=lines, purpose="batch", expires_after=wrong)  # type: ignore[arg-type]


async def test_a_line_that_was_not_admitted_is_sent_again(api: Served) -> None:
    served_by, refused = api.batches.send, Counter[str]()

    async def send(path: str, body: bytes, caller: Caller, key: str) -> LineAnswer:
        refused[key] += 1
        if refused[key] == 1:
            return LineAnswer(429, "", {"error": {"code": "overloaded"}}, later_s=0.1)
        assert served_by is not None
        return await served_by(path, body, caller, key)

    api.batches.send = send
    batch = await end(api.sdk, await begin(api.sdk, line("one"), line("two"), line("nobody", model="absent")))
    assert (batch.request_counts.completed, batch.request_counts.failed) == (2, 1)
    assert set(await rows(api.sdk, batch.output_file_id)) == {"one", "two"}
    assert list(refused.values()) == [2, 2, 2]
    assert len(api.worker("a").calls) == 2


async def test_a_line_of_responses_cannot_be_in_the_background(api: Served) -> None:
    sdk, path = api.sdk, "/v1/responses"
    bodies = {"asks": {}, "leaves": {"background": True}}
    lines = [{"custom_id": id, "method": "POST", "url": path, "body": {"model": "mini", "input": "Why?"} | more} for id, more in bodies.items()]  # fmt: skip
    file = await upload(sdk, *lines)
    batch = await end(
        sdk, (await sdk.batches.create(input_file_id=file, endpoint=path, completion_window="24h")).id
    )
    good, bad = await rows(sdk, batch.output_file_id), await rows(sdk, batch.error_file_id)
    assert good["asks"]["response"]["body"]["status"] == "completed"
    assert bad["leaves"]["error"]["message"].startswith("background is not supported")


async def test_a_cancelled_batch_starts_no_lines_and_keeps_its_results() -> None:
    slow = [scripted("a", "Done.", delay_s=0.3, price=PRICE), scripted("b"), scripted("c")]
    async with served(team(workers=slow, batches={"lines_at_once": 1})) as api:
        id = await begin(api.sdk, *(line(str(n)) for n in range(50)))
        await until(lambda: len(api.worker("a").calls) >= 2, "a line has ended")
        assert (await api.sdk.batches.cancel(id)).status == "cancelling"
        batch = await end(api.sdk, id)
        assert batch.status == "cancelled"
        n = batch.request_counts.completed
        assert 1 <= n == len(await rows(api.sdk, batch.output_file_id)) == len(api.worker("a").calls) < 50
        assert (await api.sdk.batches.cancel(id)).status == "cancelled"


async def test_lines_that_did_not_start_in_time_are_in_the_error_file() -> None:
    late_us = 0
    slow = [scripted("a", "Done.", delay_s=0.3, price=PRICE), scripted("b"), scripted("c")]
    settings = team(workers=slow, batches={"lines_at_once": 1})
    async with served(settings, clock=lambda: now_us() + late_us) as api:
        id = await begin(api.sdk, *(line(str(n)) for n in range(20)))
        await until(lambda: len(api.worker("a").calls) >= 2, "a line has ended")
        late_us = 2 * DAY_US
        batch = await end(api.sdk, id)
        assert batch.status == "expired"
        good, bad = await rows(api.sdk, batch.output_file_id), await rows(api.sdk, batch.error_file_id)
        assert len(good) + len(bad) == 20
        assert len(good) == len(api.worker("a").calls)
        assert {row["error"]["code"] for row in bad.values()} == {"batch_expired"}


SLOW = [scripted("a", "Done.", delay_s=0.1, price=PRICE), scripted("b"), scripted("c")]


async def test_a_batch_over_the_concurrency_limit_starts_later() -> None:
    async with served(team(workers=SLOW, batches={"at_once": 1})) as api:
        first = await begin(api.sdk, *(line(str(n)) for n in range(20)))
        waiting = await begin(api.sdk, line("1"))
        await until(lambda: len(api.worker("a").calls) >= 9, "lines of the first have ended")
        batch = await api.sdk.batches.retrieve(waiting)
        assert (batch.status, batch.in_progress_at, batch.request_counts.total) == ("validating", None, 0)
        assert (await end(api.sdk, waiting)).request_counts.completed == 1
        assert (await end(api.sdk, first)).request_counts.completed == 20


async def test_a_batch_that_waits_can_be_cancelled_and_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.batches.runner.SWEEP_S", 0.05)
    late_us = 0
    halting = [scripted("a", {"text": "On and on", "stall_after_tokens": 1})]
    settings = team(workers=halting, workflows={}, batches={"at_once": 1})
    async with served(settings, clock=lambda: now_us() + late_us) as api:
        first = await begin(api.sdk, line("1"))
        await until(lambda: api.worker("a").open_calls == 1, "the first is worked on")
        cancelled, late = await begin(api.sdk, line("1")), await begin(api.sdk, line("1"), line("2"))
        assert (await api.sdk.batches.cancel(cancelled)).status == "cancelling"
        assert (await end(api.sdk, cancelled)).status == "cancelled"
        late_us = 2 * DAY_US
        batch = await end(api.sdk, late)
        assert (batch.status, batch.request_counts.total, batch.request_counts.failed) == ("expired", 2, 2)
        bad = await rows(api.sdk, batch.error_file_id)
        assert [row["error"]["code"] for row in bad.values()] == ["batch_expired"] * 2
        assert (await api.sdk.batches.retrieve(first)).status == "in_progress"
        (run,) = api.service.sessions.running
        await api.http.post(f"/v1/workflows/{run}/cancel")


async def test_a_long_batch_yields_to_another_one_and_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr("serving.batches.runner.TURN_S", 0.2)
    async with keyed(tmp_path, team(workers=SLOW, batches={"at_once": 1, "lines_at_once": 2})) as it:
        mine, other = sdk_of(it, "mine"), sdk_of(it, "other team")
        long = [await begin(mine, *(line(str(n)) for n in range(30))) for _ in range(2)]
        await until(lambda: len(it.api.worker("a").calls) >= 2, "lines of the first are under way")
        await end(other, await begin(other, line("1")))
        assert len(it.api.worker("a").calls) < 40
        for id in long:
            batch = await end(mine, id)
            assert (batch.status, batch.request_counts.completed) == ("completed", 30)
            assert list(await rows(mine, batch.output_file_id)) == [str(n) for n in range(30)]
        assert len(it.api.worker("a").calls) == 61, "no line is run twice"


async def test_a_batch_whose_file_was_deleted_keeps_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr("serving.batches.runner.TURN_S", 0.2)
    async with keyed(tmp_path, team(workers=SLOW, batches={"at_once": 1, "lines_at_once": 2})) as it:
        mine, other = sdk_of(it, "mine"), sdk_of(it, "other team")
        file = await upload(mine, *(line(str(n)) for n in range(30)))
        long = await mine.batches.create(input_file_id=file, endpoint=CHAT, completion_window="24h")
        await until(lambda: len(it.api.worker("a").calls) >= 2, "its lines are under way")
        between = await begin(other, line("1"))
        await mine.files.delete(file)
        await end(other, between)
        batch = await end(mine, long.id)
        assert (batch.status, batch.errors.data[0].code) == ("expired", "file_gone")
        assert len(await rows(mine, batch.output_file_id)) == batch.request_counts.completed > 0


async def test_a_team_has_a_limit_of_open_batches_and_gets_the_remedy(tmp_path: Path) -> None:
    async with keyed(tmp_path, team(workers=SLOW, batches={"max_open_per_team": 2})) as it:
        mine, other = sdk_of(it, "mine"), sdk_of(it, "other team")
        file = await upload(mine, *(line(str(n)) for n in range(100)))
        creations = [mine.batches.create(input_file_id=file, endpoint=CHAT, completion_window="24h") for _ in range(5)]  # fmt: skip
        answers = await asyncio.gather(*creations, return_exceptions=True)
        refused = [each for each in answers if isinstance(each, openai.RateLimitError)]
        assert len(refused) == 3
        assert all("cancel one" in each.message and each.response.headers["retry-after"] for each in refused)
        open_ones = [each.id for each in answers if not isinstance(each, BaseException)]
        assert (await end(other, await begin(other, line("1")))).status == "completed"
        await mine.batches.cancel(open_ones[0])
        await end(mine, open_ones[0])
        for id in (open_ones[1], await begin(mine, line("1"))):
            await mine.batches.cancel(id)
            await end(mine, id)


async def batch_of(content: bytes) -> tuple[MemoryBatchStore, Batch]:
    store = MemoryBatchStore()
    await store.add_file(
        StoredFile("file-1", NO_ACCOUNT, "batch", "a", len(content), now_us(), 2**60), content
    )
    return store, Batch("batch_1", NO_ACCOUNT, "", "validating", "file-1", CHAT, {}, now_us(), 2**60, 2**60)


async def test_reading_a_files_lines_uses_memory_for_one_piece() -> None:
    content = jsonl(*(line(str(n), "x" * 2_000) for n in range(7_000)))
    assert len(content) > 3 * PIECE_BYTES
    store, batch = await batch_of(content)
    tracemalloc.start()
    try:
        lines, errors = await read_lines(store, batch, 7_000)
        assert [(await lines.get(n)).custom_id for n in (6_999, 1)] == ["6999", "1"]
        n_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert (len(lines), errors) == (7_000, [])
    assert n_bytes < 1.5 * PIECE_BYTES


class LargestRead(ReplicaStore):
    """Measures the most bytes that it reads at once."""

    most_bytes = 0

    async def read(self, query: Executable) -> list[Row[Any]]:
        rows = await super().read(query)
        n_bytes = sum(len(value) for row in rows for value in row if isinstance(value, bytes))
        self.most_bytes = max(self.most_bytes, n_bytes)
        return rows


async def test_a_batch_reads_its_file_in_pieces_and_joins_its_results_in_the_database(
    store_address: Address,
) -> None:
    store, long = LargestRead(store_address, renew_s=60), "x" * 120_000
    settings = team(workers=[scripted("a", {"text": "ü" * 70_000})], workflows={})
    async with aclosing(store), served(settings, batch_store=DatabaseBatchStore(store)) as api:
        lines = [line(str(n), long, "a" if n % 9 else "absent") for n in range(45)]
        batch = await end(api.sdk, await begin(api.sdk, *lines))
        assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == (
            "completed",
            40,
            5,
        )
        assert store.most_bytes <= PIECE_BYTES
        good, bad = await rows(api.sdk, batch.output_file_id), await rows(api.sdk, batch.error_file_id)
        assert list(good) == [str(n) for n in range(45) if n % 9]
        assert list(bad) == [str(n) for n in range(45) if not n % 9]
        assert all(each["response"]["body"]["choices"][0]["message"]["content"] for each in good.values())
        file = await api.sdk.files.retrieve(batch.output_file_id)
        assert file.bytes == len((await api.sdk.files.content(file.id)).content) > PIECE_BYTES


class FullBatches(MemoryBatchStore):
    async def result_bytes(self, batch_id: str) -> int:
        return MOST_RESULT_BYTES


async def test_a_batch_with_too_large_results_stops_with_a_reason() -> None:
    async with served(team(), batch_store=FullBatches()) as api:
        batch = await end(api.sdk, await begin(api.sdk, line("1"), line("2")))
        assert (batch.status, batch.request_counts.failed) == ("completed", 2)
        bad = await rows(api.sdk, batch.error_file_id)
        assert [each["error"]["code"] for each in bad.values()] == ["batch_full", "batch_full"]
        assert not api.worker("a").calls


async def test_secrets_in_a_file_are_not_stored(api: Served) -> None:
    secret = "sk-proj-" + "a1B2c3D4" * 5
    file = await upload(api.sdk, line("1", f"My key is {secret}, what is it?"), line("2"))
    content = (await api.sdk.files.content(file)).text
    assert secret not in content
    assert [json.loads(each)["custom_id"] for each in content.splitlines()] == ["1", "2"]


def sdk_of(it: Keyed, who: str) -> openai.AsyncOpenAI:
    return it.api.openai(it.secrets[who])


async def limit(it: Keyed, what: str, **fields: Any) -> None:
    answer = await it.ask("admin", "POST", f"/v1/admin/keys/{it.ids['mine']}/{what}", fields)
    assert answer.status_code == 200, answer.text


async def test_files_and_batches_of_another_team_return_404(tmp_path: Path) -> None:
    async with keyed(tmp_path) as it:
        mine, other = sdk_of(it, "mine"), sdk_of(it, "other team")
        id = await begin(mine, line("1"))
        batch = await end(mine, id)
        assert batch.status == "completed"
        for ask in (
            other.batches.retrieve(id),
            other.batches.cancel(id),
            other.files.retrieve(batch.input_file_id),
            other.files.delete(batch.input_file_id),
            other.batches.create(input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h"),
        ):
            with pytest.raises(openai.NotFoundError):
                await ask
        with pytest.raises(openai.NotFoundError):
            await other.files.content(batch.output_file_id)
        assert [each.id async for each in other.files.list()] == []
        assert [each.id async for each in other.batches.list()] == []


async def test_a_key_without_read_scope_can_run_only_its_own_files(tmp_path: Path) -> None:
    async with keyed(tmp_path) as it:
        runner = sdk_of(it, "only run")
        teammates = await begin(sdk_of(it, "mine"), line("1"))
        file_id = (await sdk_of(it, "mine").batches.retrieve(teammates)).input_file_id
        with pytest.raises(openai.NotFoundError, match="input_file_id"):
            await runner.batches.create(input_file_id=file_id, endpoint=CHAT, completion_window="24h")
        assert await begin(runner, line("1"))


async def test_lines_are_billed_to_the_key_and_follow_its_policy_and_budget(tmp_path: Path) -> None:
    async with keyed(tmp_path) as it:
        await limit(it, "policy", exclude_workers=["b"])
        mine = sdk_of(it, "mine")
        batch = await end(mine, await begin(mine, line("1"), line("2", model="b")))
        bad = await rows(mine, batch.error_file_id)
        assert (batch.request_counts.completed, bad["2"]["response"]["status_code"]) == (1, 404)
        await limit(it, "budget", day_usd=0)
        batch = await end(mine, await begin(mine, line("1"), line("2")))
        bad = await rows(mine, batch.error_file_id)
        assert [row["response"]["status_code"] for row in bad.values()] == [402, 402]


async def test_lines_wait_while_other_lines_of_the_batch_hold_the_budget(tmp_path: Path) -> None:
    slow = [scripted("a", "Done.", delay_s=1.5 * WAIT_S, price=PRICE), scripted("b"), scripted("c")]
    async with keyed(tmp_path, team(workers=slow)) as it:
        await limit(it, "budget", day_usd=ONE_CALL_USD)
        mine = sdk_of(it, "mine")
        batch = await end(mine, await begin(mine, line("1"), line("2")))
        assert await rows(mine, batch.error_file_id) == {}
        assert batch.request_counts.completed == 2


@pytest.mark.parametrize("path", DIALECTS.by_path)
async def test_a_line_is_retried_if_its_budget_is_held_but_not_if_spent(path: str) -> None:
    retryable, spent = BudgetExceeded("Held.", retryable=True, retry_after_s=2.0), BudgetExceeded("Spent.")
    for error, later_s in ((retryable, 2.0), (spent, None)):
        exchange = Exchange(b"")
        await Wire(exchange.send, DIALECTS.of(path)).error(error)
        assert exchange.answer().later_s == later_s


async def test_a_revoked_key_fails_lines_that_have_not_started(tmp_path: Path) -> None:  # fmt: skip
    slow = [scripted("a", "Done.", delay_s=0.2, price=PRICE), scripted("b"), scripted("c")]
    async with keyed(tmp_path, team(workers=slow, batches={"lines_at_once": 1})) as it:
        id = await begin(sdk_of(it, "mine"), *(line(str(n)) for n in range(20)))
        await until(lambda: len(it.api.worker("a").calls) >= 2, "a line has ended")
        revoked = await it.ask("admin", "DELETE", f"/v1/admin/keys/{it.ids['mine']}")
        assert revoked.status_code == 200, revoked.text
        reader = sdk_of(it, "only read")
        batch = await end(reader, id)
        good, bad = await rows(reader, batch.output_file_id), await rows(reader, batch.error_file_id)
        assert (batch.status, len(good) + len(bad)) == ("completed", 20)
        assert len(good) == len(it.api.worker("a").calls) < 20
        assert {row["error"]["code"] for row in bad.values()} == {"invalid_api_key"}


async def test_a_long_batch_of_one_key_does_not_delay_another_key(tmp_path: Path) -> None:
    slow = [scripted("a", "Done.", delay_s=0.1, price=PRICE), scripted("b"), scripted("c")]
    async with keyed(tmp_path, team(workers=slow, batches={"lines_at_once": 2})) as it:
        long = await begin(sdk_of(it, "mine"), *(line(str(n)) for n in range(100)))
        await until(lambda: len(it.api.worker("a").calls) >= 2, "lines of the first are under way")
        other = sdk_of(it, "other team")
        await end(other, await begin(other, *(line(str(n)) for n in range(5))))
        assert len(it.api.worker("a").calls) < 50
        await sdk_of(it, "mine").batches.cancel(long)
        await end(sdk_of(it, "mine"), long)


async def test_lines_that_are_not_admitted_use_no_slot(tmp_path: Path) -> None:
    async with keyed(tmp_path, team(batches={"lines_at_once": 2})) as it:
        served_by, refused = it.api.batches.send, list[str]()

        async def send(path: str, body: bytes, caller: Caller, key: str) -> LineAnswer:
            if caller.account.key_id == it.ids["mine"]:
                refused.append(key)
                return LineAnswer(429, "", {"error": {"code": "rate_limit_exceeded"}}, later_s=3_000)
            assert served_by is not None
            return await served_by(path, body, caller, key)

        it.api.batches.send = send
        late = await begin(sdk_of(it, "mine"), *(line(str(n)) for n in range(10)))
        await until(lambda: len(refused) >= 2, "two lines were refused")
        other = sdk_of(it, "other team")
        assert (await end(other, await begin(other, line("1")))).request_counts.completed == 1
        await sdk_of(it, "mine").batches.cancel(late)
        assert (await end(sdk_of(it, "mine"), late)).status == "cancelled"
        assert len(refused) == 2


async def test_a_key_that_may_not_store_text_cannot_upload(tmp_path: Path) -> None:
    async with keyed(tmp_path) as it:
        await limit(it, "policy", store_content=False)
        with pytest.raises(openai.PermissionDeniedError, match="does not allow storing text"):
            await upload(sdk_of(it, "mine"), line("1"))


async def test_a_piece_of_a_file_in_a_database_can_be_read(tmp_path: Path) -> None:
    own = ReplicaStore(make_file(tmp_path / "podium.db"))
    try:
        store, body = DatabaseBatchStore(own), bytes(range(256)) * 40
        await store.add_file(
            StoredFile("file-1", NO_ACCOUNT, "user_data", "a", len(body), now_us(), 2**60), body
        )
        assert await store.piece("file-1", 0, 1000) == body[:1000]
        assert await store.piece("file-1", 10_000, 1000) == body[10_000:]
        assert await store.piece("file-1", len(body), 1000) == b""
        assert await store.piece("file-1", len(body) + 1, 1000) == b""
        assert await store.piece("file-2", 0, 1000) is None
        await store.add_file(
            StoredFile("file-3", NO_ACCOUNT, "user_data", "a", len(body), now_us(), now_us() - 1), body
        )
        assert await store.piece("file-3", 0, 1000) is None, "it has expired"
    finally:
        await own.aclose()


async def test_a_piece_of_a_file_is_read_without_the_rest(tmp_path: Path) -> None:
    own, size = ReplicaStore(make_file(tmp_path / "podium.db")), 20_000_000
    try:
        store = DatabaseBatchStore(own)
        await store.add_file(
            StoredFile("file-1", NO_ACCOUNT, "user_data", "a", size, now_us(), 2**60), bytes(size)
        )
        read_bytes = bytes_read()
        assert await store.piece("file-1", 0, 1000) == bytes(1000)
        assert bytes_read() - read_bytes < size / 10
    finally:
        await own.aclose()


def bytes_read() -> int:
    """Return the number of bytes that this process has read from files, cached ones included."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.parametrize(
    ("content", "number", "setting"),
    [
        (jsonl(*(line(str(n)) for n in range(4))), 4, "batches.max_lines"),
        (b"\n" * 5_000_000, 4, "batches.max_lines"),
        (b"{}\r\n" * 1_000_000, 4, "batches.max_lines"),
        (jsonl(line("1"), line("2", "x" * 2000)), 2, "limits.max_body_bytes"),
        (jsonl(line("1", "x" * 900)), 1, "limits.max_text_bytes"),
        (b'"' + b"1" * 5_000_000 + b'"', 1, "limits.max_body_bytes"),
    ],
    ids=["requests", "newlines", "objects", "a long line", "a long text", "one long line"],
)
async def test_a_file_is_rejected_at_its_first_invalid_line(content: bytes, number: int, setting: str) -> None:  # fmt: skip
    limits = {"max_body_bytes": 2000, "max_text_bytes": 800}
    async with served(team(limits=limits, batches={"max_lines": 3})) as api:
        with pytest.raises(openai.APIStatusError) as caught:
            await api.sdk.files.create(file=("in.jsonl", content), purpose="batch")
        assert (caught.value.status_code, caught.value.param) == (413, "file")
        assert f"line {number} " in caught.value.message
        assert setting in caught.value.message
        assert not [each async for each in api.sdk.files.list()]


async def test_a_file_with_many_lines_is_read_without_a_copy() -> None:
    content = jsonl(*(line(str(n)) for n in range(4_000)))
    tracemalloc.start()
    try:
        assert finish(kept_in_steps(content, redact_secrets)) is content
        lines, errors = await read_lines(*await batch_of(content), 4_000)
        assert (len(lines), errors) == (4_000, [])
        assert tracemalloc.get_traced_memory()[1] < 3 * len(content)
    finally:
        tracemalloc.stop()


def test_redacted_line_ids_stay_different() -> None:
    ids = ["a@example.com", "b@example.com", "a@example.com", "plain"]
    content = b"".join(b'{"custom_id":"%s"}\n' % each.encode() for each in ids)
    lines = [
        json.loads(line)["custom_id"]
        for line in finish(kept_in_steps(content, PersonalDataRedactor())).splitlines()
    ]
    removed = "[e-mail address removed]"
    assert lines == [removed, f"{removed} 2", removed, "plain"], "what was sent twice is still found"


async def test_a_file_keeps_compactions_without_the_secrets_in_them(api: Served) -> None:
    sentence = f"It is gl{'pat-' + 'aB3k_' * 4}."
    contents = [pack_item(Message.of("user", text)) for text in (sentence, "Hi.")]
    bodies = [{"input": [{"type": "compaction", "encrypted_content": each}]} for each in contents]
    damaged = {"input": [{"type": "compaction", "encrypted_content": f"podium1.{sentence}"}]}
    sent = jsonl(*({"custom_id": str(n), "body": body} for n, body in enumerate([*bodies, damaged])))
    file = await api.sdk.files.create(file=("in.jsonl", sent), purpose="batch")
    lines = (await api.sdk.files.content(file.id)).text.splitlines()
    compactions = [json.loads(line)["body"]["input"][0]["encrypted_content"] for line in lines]
    assert unpack_item(compactions[0]) == (Message.of("user", "It is [secret removed]."),)
    assert compactions[1:] == [contents[1], "podium1.It is [secret removed]."]


async def test_compactions_in_a_batch_file_may_have_the_size_of_a_file() -> None:
    content = pack_item(Message.of("user", "x" * 900))
    body = {"input": [{"type": "compaction", "encrypted_content": content}]}
    sent = jsonl(*({"custom_id": str(n), "body": body} for n in range(3)))
    for max_file_bytes, is_taken in ((2500, False), (3000, True)):
        async with served(team(batches={"max_file_bytes": max_file_bytes})) as api:
            answer = await api.http.post("/v1/files", data={"purpose": "batch"}, files={"file": sent})
            assert (answer.status_code == 200) == is_taken
            assert ("batches.max_file_bytes" in answer.text) != is_taken


async def test_file_names_and_batch_metadata_are_redacted(api: Served) -> None:
    secret = "gl" + "pat-" + "aB3k_" * 4
    file = await api.sdk.files.create(file=(f"{secret}.jsonl", jsonl(line("1"))), purpose="batch")
    assert secret not in file.filename
    metadata = {secret: "x", "key": secret}
    batch = await api.sdk.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata=metadata
    )
    assert batch.metadata == {"[secret removed]": "x", "key": "[secret removed]"}
