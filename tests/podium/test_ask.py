"""`podium ask`, `runs`, `show` and `models` against a real API over a real socket."""

import asyncio
import io
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from podium.cli import main
from podium.client import ClientError, path_part
from podium.command_line.program import Program
from podium.command_line.terminal import cell
from podium.run_text import event_line
from serving.accounts.hold import team_subject
from tests.conftest import PODIUM, ROOT
from tests.serving.api.keyed import keyed
from tests.serving.api.served import PRICE, Served, plan, scripted, served, step, team

POOL = team(
    plan(step("a", "Find a reason."), step("b", "Conclude.", [0])),
    workers=[
        scripted("a", "A reason: \x1b[31mscattering\x1b]0;title\x07.", price=PRICE),
        scripted("b", "Blue [bold]light[/bold].", price=PRICE),
    ],
)


@dataclass
class CommandResult:
    code: int
    out: str
    err: str


@pytest.fixture
async def api() -> AsyncGenerator[Served]:
    async with served(POOL) as running:
        yield running


@pytest.fixture(autouse=True)
def no_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    monkeypatch.delenv("PODIUM_API_KEY", raising=False)


async def podium(capsys: pytest.CaptureFixture[str], *arguments: str) -> CommandResult:
    code = await asyncio.to_thread(main, arguments)
    return CommandResult(code, *capsys.readouterr())


async def test_the_answer_goes_to_stdout_and_plan_and_cost_to_stderr(api: Served, capsys: Any) -> None:
    ended = await podium(capsys, "ask", "Why", "blue?", "--url", api.url)
    assert (ended.code, ended.out) == (0, "Blue [bold]light[/bold].\n")
    for line in ("conductor writes a plan", "step 1  a: Find a reason.", "step 2  b (reads 1): Conclude.", "step 1 done", "$0.0000", "2 steps"):  # fmt: skip
        assert line in ended.err, line
    id = (await api.newest())["id"]
    assert f"{api.url}/console/#/runs/{id}" in ended.err
    quiet = await podium(capsys, "ask", "Why?", "--quiet", "--model", "duo", "--url", api.url)
    assert (quiet.code, quiet.out, quiet.err) == (0, "Blue [bold]light[/bold].\n", "")


async def test_piped_text_is_appended_to_the_question(
    api: Served, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("piped words\n"))
    assert (await podium(capsys, "ask", "Sum up:", "--url", api.url)).code == 0
    assert (await api.newest())["messages"] == [{"role": "user", "content": "Sum up:\n\npiped words"}]


async def test_limits_are_sent_and_the_servers_errors_are_printed(api: Served, capsys: Any) -> None:
    ended = await podium(capsys, "ask", "Why?", "--exclude", "a", "--exclude", "nobody", "--url", api.url)
    assert (ended.code, ended.out) == (1, "")
    assert "nobody" in ended.err
    ended = await podium(capsys, "ask", "Why?", "--max-cost", "0.000000001", "--deadline", "20", "--json", "--url", api.url)  # fmt: skip
    assert ended.code == 1
    assert ended.err.startswith("podium ask: ")
    ended = await podium(capsys, "ask", "Why?", "--effort", "low", "--json", "--url", api.url)
    assert json.loads(ended.out)["podium"]["steps"][0]["worker"] == "a"


async def test_runs_are_listed_filtered_and_shown_as_a_tree(api: Served, capsys: Any) -> None:
    assert (await podium(capsys, "runs", "--url", api.url)).err == "No run matches.\n"
    for model in ("mini", "duo"):
        await api.ok({"model": model})
    listed = await podium(capsys, "runs", "--url", api.url)
    assert [line.split()[3] for line in listed.out.splitlines()[1:]] == ["duo", "mini"]
    one = await podium(capsys, "runs", "--url", api.url, "--model", "mini", "--worker", "a", "--words", "why is", "--status", "finished", "--min-cost", "0.000001", "--json")  # fmt: skip
    run = json.loads(one.out)
    assert run["model"] == "mini"
    more = await podium(capsys, "runs", "--url", api.url, "--limit", "1")
    assert "podium runs --after" in more.err

    shown = await podium(capsys, "show", run["id"], "--words", "--url", api.url)
    assert shown.code == 0
    for line in ("mini", "plan 1: conductor by conductor", "1 a", "2 b reads 1", "Find a reason.", "Blue [bold]light[/bold]."):  # fmt: skip
        assert line in shown.out, line
    assert "\x1b" not in shown.out, "what a model says does not command the terminal"
    assert "\x07" not in shown.out
    prompts = await podium(capsys, "show", run["id"], "--prompts", "--url", api.url)
    for line in ("started 20", "critical path", ": Why is", "user: ", "Find a reason.", " from "):
        assert line in prompts.out, line
    assert json.loads((await podium(capsys, "show", "--json", "--url", api.url)).out)["model"] == "duo"
    absent = await podium(capsys, "show", "wf_absent", "--url", api.url)
    assert (absent.code, "not found" in absent.err) == (1, True)


CUT = {"text": "Blue light is", "finish": "length"}
FILTERED = {"text": "Blue", "finish": "content_filter"}


@pytest.mark.parametrize("model", ["mini", "b"])
@pytest.mark.parametrize(
    ("reply", "note", "status"),
    [
        (CUT, "The answer was cut off at the token limit", "finished, cut off"),
        (FILTERED, "content filter", "finished, cut off by a content filter"),
        ("Whole.", "", "finished"),
    ],
)
async def test_a_truncated_answer_is_marked_as_cut_off(
    model: str, reply: Any, note: str, status: str, capsys: Any
) -> None:
    async with served(team(plan(step("b")), workers=[scripted("a"), scripted("b", reply)])) as api:
        where = ("--url", api.url)
        answered = [await podium(capsys, "ask", "Why?", "--model", model, *more, *where) for more in ((), ("--quiet",), ("--json",))]  # fmt: skip
        shown, listed = await podium(capsys, "show", *where), await podium(capsys, "runs", *where)
    for ended in (*answered, shown):
        assert (note and note in ended.err) or (not note and "cut off" not in ended.err)
    assert f"{status}  " in shown.out
    assert f"{status.replace('finished', 'done')}  " in shown.out
    assert f"{status}  " in listed.out


async def test_a_program_that_cannot_answer_is_shown_as_rejected_not_failed(
    capsys: Any,
) -> None:
    factory = "serving.workers.programs.calculator:Calculator"
    program = {"name": "calculator", "kind": "python", "factory": factory, "card": "sums", "fallbacks": ["a"]}
    async with served(
        team(plan(step("calculator", "")), workers=[program, scripted("a"), scripted("b")])
    ) as api:
        await podium(capsys, "ask", "Why?", "--url", api.url)
        shown = await podium(capsys, "show", "--url", api.url)
    assert "rejected by calculator: calculator is a program that answers only questions about" in shown.out
    assert "failed" not in shown.out


@pytest.mark.parametrize("reply", [CUT, "Whole."])
async def test_a_truncated_step_is_marked_although_the_run_is_complete(reply: Any, capsys: Any) -> None:
    async with served(team(workers=[scripted("a", reply), scripted("b")])) as api:
        ended = await podium(capsys, "ask", "Why?", "--url", api.url)
        shown = await podium(capsys, "show", "--url", api.url)
    assert ("step 1 done, cut off" in ended.err) == (reply is CUT)
    assert ("done, cut off" in shown.out) == (reply is CUT)
    assert "finished, cut off" not in shown.out
    assert "The answer was cut off" not in ended.err


async def test_a_run_in_progress_is_followed_to_its_end(capsys: Any) -> None:
    slow = scripted("b", "one two three four", tokens_per_s=1.5)
    async with served(team(workers=[scripted("a"), slow])) as api:
        asking = asyncio.create_task(api.ok())
        while not api.service.sessions.running:
            await asyncio.sleep(0.01)
        ended = await podium(capsys, "show", "--follow", "--url", api.url)
        await asking
    assert ended.code == 0
    assert "step 2 done" in ended.err
    assert "finished" in ended.out


def test_control_characters_of_a_server_are_removed_from_tables() -> None:
    evil = "a\x1b]0;title\x07\x9b2J\u202e [bold]b[/bold]"
    assert cell(evil).plain == "a\N{REPLACEMENT CHARACTER}]0;title" + "\N{REPLACEMENT CHARACTER}" * 2 + "2J\N{REPLACEMENT CHARACTER} [bold]b[/bold]"  # fmt: skip
    lines = [event_line({"type": "plan_began", "worker": evil}), event_line({"type": "step_planned", "worker": evil, "access": [], "subtask": ""})]  # fmt: skip
    assert all(line and not {"\x1b", "\x07", "\x9b", "\u202e"} & set(line.plain) for line in lines)


async def test_an_invalid_id_is_rejected(api: Served, capsys: Any) -> None:
    for id in ("", ".", ".."):
        with pytest.raises(ClientError, match="not a valid id or name"):
            path_part(id)
    for verb in (["show"], ["feedback", "--score", "1"]):
        absent = await podium(capsys, *verb, "../models?x=1#y", "--url", api.url)
        assert absent.code == 1
        assert "object" not in absent.out


def test_control_characters_in_an_error_are_removed(capsys: Any) -> None:
    program = Program("podium show")

    @program.command()
    def fail() -> int:  # pyright: ignore[reportUnusedFunction]
        raise ClientError("It said \x1b]0;title\x07\x9b2J\u202eand failed.")

    assert program([]) == 1
    stderr = capsys.readouterr().err
    assert stderr.startswith("podium show: It said \N{REPLACEMENT CHARACTER}]0;title")
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(stderr)


@pytest.mark.parametrize("key", ["pk_sec\nret", "pk_secré"])
async def test_an_invalid_key_is_not_printed(
    key: str, api: Served, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PODIUM_API_KEY", key)
    refused = await podium(capsys, "models", "--url", api.url)
    assert (refused.code, "PODIUM_API_KEY" in refused.err, "sec" in refused.err) == (4, True, False)
    result = await podium(capsys, "doctor", "--url", api.url)
    assert (result.code, "PODIUM_API_KEY" in result.out, "sec" in result.out + result.err) == (1, True, False)


async def test_models_are_listed(api: Served, capsys: Any) -> None:
    listed = await podium(capsys, "models", "--url", api.url)
    names = [line.split()[:2] for line in listed.out.splitlines()[1:]]
    assert ["mini", "conductor"] in names
    assert ["duo", "workflow"] in names
    assert ["a", "worker"] in names


async def test_a_key_is_read_from_the_environment_and_a_missing_one_exits_4(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with keyed(tmp_path, POOL) as it:
        refused = await podium(capsys, "runs", "--url", it.api.url)
        assert (refused.code, "PODIUM_API_KEY" in refused.err) == (4, True)
        monkeypatch.setenv("PODIUM_API_KEY", it.secrets["mine"])
        assert (await podium(capsys, "ask", "Why?", "--url", it.api.url)).code == 0
        monkeypatch.setenv("PODIUM_API_KEY", it.secrets["only read"])
        refused = await podium(capsys, "ask", "Why?", "--url", it.api.url, "--model", "mini")
        assert refused.code == 4
        assert it.secrets["only read"] not in refused.err


async def test_an_unreachable_server_exits_3_and_a_wrong_option_2(capsys: Any) -> None:
    ended = await podium(capsys, "models", "--url", "http://127.0.0.1:9")
    assert (ended.code, ended.out) == (3, "")
    assert "Cannot connect to http://127.0.0.1:9" in ended.err
    for wrong in (["ask"], ["ask", "x", "--url", "localhost"], ["runs", "--status", "odd"], ["ask", "x", "--max-cost", "-1"]):  # fmt: skip
        with pytest.raises(SystemExit) as exit_info:
            main(wrong)
        assert exit_info.value.code == 2


async def test_ctrl_c_cancels_the_run_on_the_server() -> None:
    slow = scripted("b", {"text": "one two three", "stall_after_tokens": 2})
    async with served(team(workers=[scripted("a"), slow])) as api:
        process = await asyncio.create_subprocess_exec(
            PODIUM, "ask", "Why?", "--url", api.url, cwd=ROOT, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        assert process.stdout
        assert await process.stdout.readexactly(4) == b"one "
        process.send_signal(signal.SIGINT)
        _, errors = await process.communicate()
        assert (process.returncode, errors.decode().splitlines()[-1]) == (130, "Stopped.")
        await api.quiet()
        assert (await api.newest())["status"] == "cancelled"


async def test_a_closed_output_pipe_is_not_an_error(api: Served) -> None:
    await api.ok()
    script = f"{PODIUM} runs --json --url {api.url} | true; echo ${{PIPESTATUS[0]}}"
    process = await asyncio.create_subprocess_exec("bash", "-c", script, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    out, errors = await process.communicate()
    assert (out, errors) == (b"0\n", b"")


async def test_a_plan_is_shown_with_its_maximum_cost_and_can_be_run(
    api: Served, capsys: Any, tmp_path: Path
) -> None:
    ended = await podium(capsys, "plan", "Why", "blue?", "--url", api.url)
    assert ended.code == 0
    assert [line.split()[:2] for line in ended.out.splitlines()[1:3]] == [["1", "a"], ["2", "b"]]
    assert "Find a reason." in ended.out
    assert re.search(r"Maximum for the run: \$0\.03\d+ and \d+ tokens\. Cost of this plan: free", ended.out)
    ended = await podium(capsys, "plan", "Why blue?", "--json", "--url", api.url)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"plan": json.loads(ended.out)["plan"][:1]}))
    ended = await podium(capsys, "ask", "Why?", "--plan", str(file), "--json", "--url", api.url)
    assert [each["worker"] for each in json.loads(ended.out)["podium"]["steps"]] == ["a"]
    file.write_text("3")
    for path, message in ((file, "is not a plan"), (tmp_path / "absent", "No such file")):
        ended = await podium(capsys, "ask", "Why?", "--plan", str(path), "--url", api.url)
        assert (ended.code, ended.out) == (2, "")
        assert message in ended.err


async def test_an_administrator_can_list_budgets_of_teams_and_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    async with keyed(tmp_path) as it:
        await it.directory.set_budget(team_subject(it.ids["search"]), {"day": Decimal(5)})
        monkeypatch.setenv("PODIUM_API_KEY", it.secrets["mine"])
        assert (await podium(capsys, "budgets", "--url", it.api.url)).code == 4
        monkeypatch.setenv("PODIUM_API_KEY", it.secrets["admin"])
        ended = await podium(capsys, "budgets", "--limited", "--json", "--url", it.api.url)
        [row] = map(json.loads, ended.out.splitlines())
        assert (row["whose"], row["name"], row["period"], row["left_usd"]) == ("team", "search", "day", "5")
        ended = await podium(capsys, "budgets", "--team", "search", "--url", it.api.url)
        assert re.search(r"team +search +day +\$5 +\$0 +\$0 +\$5", ended.out), ended.out
        assert re.search(r"key +mine +search +month +none +\$0 +\$0 +none", ended.out)
        assert "sales" not in ended.out


async def test_adapters_of_a_server_or_a_folder_are_listed(api: Served, capsys: Any, tmp_path: Path) -> None:
    ended = await podium(capsys, "adapters", "--url", api.url)
    assert (ended.code, ended.out) == (0, "No worker of this server uses an adapter.\n")
    ended = await podium(capsys, "adapters", "--folder", str(ROOT / "adapters"), "--json")
    assert json.loads(ended.out)["adapter"].startswith("conductor@")
    ended = await podium(capsys, "adapters", "--folder", str(tmp_path / "absent"))
    assert (ended.code, ended.err) == (
        1,
        f"podium adapters: The folder {tmp_path / 'absent'} does not exist.\n",
    )


CHUNK = b'data: {"choices": [{"delta": {"content": "Half."}}]}\n\n'
LAST = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'
MODELS = b'{"data": [{"id": "m", "podium": {"kind": "worker"}}]}'
JSON, EVENTS, HTML = "application/json", "text/event-stream", "text/html"
NOT_PODIUM: dict[str, tuple[int, str, bytes]] = {
    "a redirect": (302, HTML, b""),
    "a permanent redirect with events": (308, EVENTS, CHUNK + LAST + b"data: [DONE]\n\n"),
    "nothing": (200, JSON, b""),
    "no content": (204, "", b""),
    "HTML": (200, HTML, b"<html>Sign in</html>"),
    "HTML that claims to be JSON": (200, JSON, b"<html>Sign in</html>"),
    "half of JSON": (200, JSON, b'{"data": ['),
    "a list": (200, JSON, b"[]"),
    "another object": (200, JSON, b"{}"),
    "null in place of a list": (200, JSON, b'{"data": null, "has_more": false}'),
    "events": (200, EVENTS, CHUNK),
}
VERBS = (
    ("ask", "Why?", "--model", "m"),
    ("ask", "Why?", "--model", "m", "--json"),
    ("ask", "Why?"),
    ("plan", "Why?", "--model", "m"),
    ("runs",),
    ("runs", "--json"),
    ("show",),
    ("show", "wf_1"),
    ("show", "wf_1", "--follow"),
    ("models",),
    ("adapters",),
    ("feedback", "export", "export.jsonl"),
    ("keys", "list"),
    ("teams", "list"),
    ("budgets",),
    ("costs",),
    ("ledger", "show"),
)
BROKEN_OFF = {
    "before the first event": b"",
    "in the middle": CHUNK,
    "in an event": CHUNK + b'data: {"choices": [{"del',
    "before [DONE]": CHUNK + LAST,
    "without a finish reason": CHUNK + b"data: [DONE]\n\n",
    "with an event that is none": CHUNK + b"data: 5\n\n" + LAST + b"data: [DONE]\n\n",
}


@contextmanager
def answering(status: int, content_type: str, body: bytes, models: bytes = b"") -> Iterator[str]:
    """Serve the same response for each request, except for the list of models if `models` is set. Yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/v1/models" and models:
                return self.answer(200, JSON, models)
            return self.answer(status, content_type, body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.answer(status, content_type, body)

        def answer(self, status: int, content_type: str, body: bytes) -> None:
            self.send_response(status)
            if content_type:
                self.send_header("content-type", content_type)
            if status in (302, 308):
                self.send_header("location", "http://127.0.0.1:1/")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            serving.join()


@pytest.mark.parametrize("what", NOT_PODIUM)
async def test_a_response_that_is_not_podiums_is_a_one_line_error(
    what: str, capsys: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with answering(*NOT_PODIUM[what]) as url:
        for verb in VERBS:
            ended = await podium(capsys, *verb, "--url", url)
            out = "Half.\n" if what == "events" and verb == VERBS[0] else ""
            assert (ended.code, ended.out) == (1, out), (verb, ended)
            assert ended.err.lstrip("\n").startswith("podium "), verb
            assert ended.err.strip().count("\n") == 0, verb
    assert os.listdir() == []  # noqa: PTH208 (in a coroutine)


@pytest.mark.parametrize("where", BROKEN_OFF)
async def test_an_incomplete_answer_is_an_error_even_if_the_connection_closes_cleanly(
    where: str, capsys: Any
) -> None:
    with answering(200, EVENTS, BROKEN_OFF[where], MODELS) as url:
        ended = await podium(capsys, "ask", "Why?", "--quiet", "--url", url)
    assert ended.code == 1, ended
    assert ended.err.startswith("podium ask: ")
    with answering(200, EVENTS, CHUNK + LAST + b"data: [DONE]\n\n", MODELS) as url:
        ended = await podium(capsys, "ask", "Why?", "--quiet", "--url", url)
    assert (ended.code, ended.out, ended.err) == (0, "Half.\n", "")


async def test_json_output_escapes_control_characters_and_round_trips(capsys: Any) -> None:
    text = "\x1b]0;title\x07 \x9b31m \u202eevil\u2066 größer 日本"
    async with served(team(workers=[scripted("a", text)], workflows={})) as api:
        await api.ok({"model": "a"})
        shown = await podium(capsys, "show", "--json", "--url", api.url)
    assert json.loads(shown.out)["answer"] == text
    assert "größer 日本" in shown.out
    assert not set(shown.out) & set("\x1b\x07\x9b\u202e\u2066")


async def test_an_export_of_feedback_is_for_this_account_only(
    api: Served, capsys: Any, tmp_path: Path
) -> None:
    await api.ok()
    id = (await api.newest())["id"]
    assert (
        await podium(capsys, "feedback", id, "--score", "0", "--expected", "42", "--url", api.url)
    ).code == 0
    file, before = tmp_path / "questions.jsonl", os.umask(0o022)
    try:
        assert (await podium(capsys, "feedback", "export", str(file), "--url", api.url)).code == 0
        assert os.umask(0o022) == 0o022, "what follows in the same process has its own"
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert (await podium(capsys, "feedback", "export", str(file), "--url", api.url)).code == 1
