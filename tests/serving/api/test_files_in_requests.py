"""Files in requests, with the official SDKs in all three dialects: which workers get them, and what the conductor
learns.
"""

import base64
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.serving.api.keyed import keyed
from tests.serving.api.served import Json, Served, plan, scripted, served, step, team

PDF = b"%PDF-1.7\n1 0 obj\n<< /Type /Catalog >>\nendobj\n%%EOF\n"
DATA = f"data:application/pdf;base64,{base64.b64encode(PDF).decode()}"
NOTES = "The code word is Heron.\n"
NOTES_DATA = f"data:text/plain;base64,{base64.b64encode(NOTES.encode()).decode()}"
READER = scripted("reader", "A report.", reads_pdfs=True)
OTHER = scripted("other", "Something.")
TEXT: Json = {"type": "text", "text": "What is this?"}


def mixture(*plans: str) -> Json:
    return team(*plans, workers=[OTHER, READER], workflows={})


def chat_file(**file: str) -> Any:
    return [{"role": "user", "content": [TEXT, {"type": "file", "file": file}]}]


async def ask(api: Served, dialect: str, data: str, name: str, model: str = "mini") -> str:
    """Send a file in the dialect and return the answer."""
    if dialect == "chat":
        talk = chat_file(file_data=data, filename=name)
        answer = await api.sdk.chat.completions.create(model=model, messages=talk)
        return answer.choices[0].message.content or ""
    if dialect == "responses":
        parts = [{"type": "input_text", "text": "What?"}, {"type": "input_file", "file_data": data, "filename": name}]  # fmt: skip
        messages: Any = [{"role": "user", "content": parts}]
        return (await api.sdk.responses.create(model=model, input=messages)).output_text
    media_type, _, content = data.removeprefix("data:").partition(";base64,")
    source: Any = {"type": "base64", "media_type": media_type, "data": content}
    block: Any = {"type": "document", "title": name, "source": source}
    sdk = api.anthropic()
    reply: Any = await sdk.messages.create(
        model=model, max_tokens=99, messages=[{"role": "user", "content": [TEXT, block]}]
    )
    return reply.content[-1].text


def files(api: Served, worker: str) -> list[tuple[str, str]]:
    """Return the names and addresses of the files that a worker got."""
    parts = [part for call in api.worker(worker).calls for message in call.messages for part in message.parts]
    return [
        (part.name, part.url) for part in parts if getattr(part, "url", "").startswith("data:application")
    ]


def words(api: Served, worker: str) -> str:
    return "\n".join(message.text for call in api.worker(worker).calls for message in call.messages)


@pytest.mark.parametrize("dialect", ["chat", "responses", "messages"])
async def test_a_pdf_goes_only_to_workers_that_read_pdfs_and_text_to_all(dialect: str) -> None:
    plan_text = plan(step(0, "Guess."), step(1, "Read.", [0]))
    async with served(mixture(plan_text)) as api:
        assert await ask(api, dialect, DATA, "report.pdf") == "A report."
        assert (files(api, "other"), files(api, "reader")) == ([], [("report.pdf", DATA)])
        assert "[The PDF report.pdf was omitted: this model cannot read PDFs.]" in words(api, "other")
        prompt = words(api, "conductor")
        assert f"- report.pdf (PDF, {len(PDF)} bytes): only 1 can use it" in prompt
        record = await api.newest()
        assert ["reads_pdfs" in str(each["notes"]) for each in record["steps"]] == [True, False]
        assert base64.b64encode(PDF).decode()[:20] not in str(record)
        assert await ask(api, dialect, NOTES_DATA, "notes.md") == "A report."
        assert all(NOTES in words(api, name) for name in ("other", "reader"))
        prompt = words(api, "conductor")
        assert f"- notes.md (text, {len(NOTES)} bytes): every worker can use it" in prompt
        assert "Heron" not in prompt


REFUSED: dict[str, tuple[Json, str]] = {
    "nobody reads it": ({"file_data": DATA, "filename": "a.pdf"}, ""),
    "no file": (
        {"file_data": "data:application/zip;base64,UEsDBP8=", "filename": "a.zip"},
        ".file.file_data",
    ),
    "no base64": ({"file_data": "data:text/plain;base64,%%%"}, ".file.file_data"),
    "an address": ({"file_data": "https://example.org/a.pdf"}, ".file.file_data"),
    "nothing": ({"filename": "a.pdf"}, ".file"),
    "no such file": ({"file_id": "file-0"}, ""),
}


@pytest.mark.parametrize(("file", "place"), REFUSED.values(), ids=REFUSED)
async def test_a_file_that_no_worker_can_read_is_rejected_with_its_place(file: Json, place: str) -> None:
    async with served(mixture()) as api:
        answer = await api.post({"model": "other", "messages": chat_file(**file)})
        calls = api.worker("other").calls
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == f"messages[0].content[1]{place}"
    assert not calls


async def test_file_urls_are_rejected_by_field() -> None:
    async with served(mixture()) as api:
        part = {"type": "input_file", "file_url": "http://169.254.169.254/a.pdf"}
        body = {"model": "mini", "input": [{"role": "user", "content": [part]}]}
        answer = await api.http.post("/v1/responses", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "input[0].content[0].file_url")
        block = {"type": "document", "source": {"type": "url", "url": "http://169.254.169.254/a.pdf"}}
        message_body = {"model": "mini", "max_tokens": 9, "messages": [{"role": "user", "content": [block]}]}
        answer = await api.http.post("/v1/messages", json=message_body)
        assert (answer.status_code, "downloaded" in answer.text) == (400, True)


async def test_only_its_own_team_may_use_an_uploaded_file(tmp_path: Path) -> None:
    async with keyed(tmp_path, mixture(plan(step(1, "Read.")))) as api:
        first, second = (api.api.sdk.with_options(api_key=api.secrets[who]) for who in ("mine", "other team"))
        file = await first.files.create(file=("report.pdf", PDF), purpose="user_data")
        talk = chat_file(file_id=file.id)
        answer = await first.chat.completions.create(model="mini", messages=talk)
        assert answer.choices[0].message.content == "A report."
        assert files(api.api, "reader") == [("report.pdf", DATA)]
        with pytest.raises(openai.BadRequestError) as caught:
            await second.chat.completions.create(model="mini", messages=talk)
        assert caught.value.param == "messages[0].content[1]"


async def test_an_image_in_a_tool_result_is_checked_like_any_other() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    talk: list[Json] = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": [TEXT, picture]},
    ]
    async with served(team(workers=[OTHER, scripted("seeing", sees_images=True)], workflows={})) as api:
        answer = await api.post({"model": "other", "messages": talk})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages[2].content[0]")
        await api.ok({"model": "seeing", "messages": talk})
        assert [message.has_image for message in api.worker("seeing").calls[0].messages][-1]
        plan_body = {"podium": {"plan": [step("other", "x"), step("seeing", "y", [0])]}}
        await api.ok({"model": "mini", "messages": talk} | plan_body)
        assert not any(message.has_image for message in api.worker("other").calls[0].messages)


async def test_a_key_without_read_scope_cannot_use_another_keys_file(tmp_path: Path) -> None:
    async with keyed(tmp_path, team(workers=[scripted("a", "{question}")], workflows={})) as api:
        for owner, statuses in (("mine", [200, 400, 400]), ("only run", [200, 200, 400])):
            upload = await api.api.http.post(
                "/v1/files",
                data={"purpose": "user_data"},
                files={"file": ("notes.txt", NOTES.encode())},
                headers=api.headers(owner),
            )
            body = {"model": "a", "messages": chat_file(file_id=upload.json()["id"])}
            requests = [
                await api.ask(who, "POST", "/v1/chat/completions", body)
                for who in ("mine", "only run", "other team")
            ]
            assert [each.status_code for each in requests] == statuses


async def test_a_text_file_too_long_for_any_request_is_rejected() -> None:
    async with served(mixture() | {"limits": {"max_text_bytes": 1000}}) as api:

        async def upload(content: bytes) -> int:
            form = {"data": {"purpose": "user_data"}, "files": {"file": ("it", content)}}
            return (await api.http.post("/v1/files", **form)).status_code  # type: ignore[arg-type]

        assert [await upload(b"x" * n) for n in (1000, 1001)] == [200, 413]
        assert await upload(PDF + b"\xff" * 2000) == 200


EVIL = ("\x1b]0;title\x07", "\x9b31m", "\u202efdp.exe", "\u2066a\u2069", "\x7f", "\u2028")


@pytest.mark.parametrize("evil", EVIL, ids=ascii)
async def test_control_characters_in_file_names_and_metadata_are_rejected(evil: str) -> None:
    name = f"a{evil}.pdf"
    async with served(team(workers=[scripted("a", "Yes.", reads_pdfs=True)], workflows={})) as api:
        form = {"data": {"purpose": "user_data"}, "files": {"file": (name, b"%PDF-1.7")}}
        answers = [await api.http.post("/v1/files", **form)]  # type: ignore[arg-type]
        for metadata in ({"a": evil}, {evil: "a"}):
            answers += [
                await api.http.post("/v1/responses", json={"model": "a", "input": "Why?", "metadata": metadata}),
                await api.http.post("/v1/conversations", json={"metadata": metadata}),
                await api.http.post("/v1/batches", json={"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h", "metadata": metadata}),
            ]  # fmt: skip
        fine = await api.http.post("/v1/conversations", json={"metadata": {"größe 日本": "two\nlines 👩‍🔬"}})
        pdf = "data:application/pdf;base64,JVBERi0xLjc="
        message = {
            "role": "user",
            "content": [{"type": "file", "file": {"filename": name, "file_data": pdf}}],
        }
        completion = await api.ok({"model": "a", "messages": [message]})
        record = (await api.http.get(f"/v1/workflows/{completion['podium']['workflow_id']}")).text
        assert (await api.http.get("/v1/files")).json()["data"] == []
    for answer in answers:
        assert answer.status_code == 400, answer.text
        assert evil not in answer.text
    assert fine.status_code == 200
    assert evil not in record
