"""First causes: /readyz, the doctor, the log and records report the first cause of a failure, then its consequences."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from podium.command_line.terminal import console
from podium.doctor.server import check_server
from podium.run_text import failure_text, run_tree
from serving.health import OUT_S
from serving.telemetry.logs import FIELDS
from tests.serving.api.keyed import Keyed, keyed
from tests.serving.api.served import ASK, Json, Served, plan, served, step, team
from tests.wires.openai import OpenAIWire
from tests.wires.server import Answer, WireServer, serving

CHAT = "/v1/chat/completions"
REFUSED = Answer(status=401, error="Incorrect API key provided.")
BROKEN = Answer(status=500, error="planted-500")
BUSY = Answer(status=429, error="planted-429")
ONCE: Json = {"retry": {"attempts": 1}}


def api_worker(name: str, upstream: WireServer, **fields: Any) -> Json:
    return {"name": name, "kind": "openai", "model": "m", "base_url": f"{upstream.url}/v1", **ONCE, **fields}


@asynccontextmanager
async def upstreams(**answers: list[Answer]) -> AsyncGenerator[dict[str, WireServer]]:
    async with AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(serving(OpenAIWire(), *answer))
            for name, answer in answers.items()
        }


def led_pool(
    up: dict[str, WireServer], *, conductor: str = "big", conductor_fallbacks: tuple[str, ...] = ()
) -> Json:
    """Return settings with a conductor at one upstream and workers at the others."""
    workers = [
        api_worker(
            name,
            there,
            in_pool=name != conductor,
            fallbacks=list(conductor_fallbacks) if name == conductor else [],
        )
        for name, there in up.items()
    ]
    return {"conductor": {"worker": conductor}, "workers": workers, "models": {"mini": {}}}


async def ready(it: Served | Keyed, who: str | None = None) -> tuple[int, Json]:
    answer = await (it.ask(who, "GET", "/readyz") if isinstance(it, Keyed) else it.http.get("/readyz"))
    return answer.status_code, answer.json()


async def test_a_conductor_with_a_rejected_key_degrades_after_one_request() -> None:
    async with upstreams(big=[REFUSED] * 9, small=[Answer(text="Words.")] * 9) as up:  # noqa: SIM117
        async with served(led_pool(up)) as api:
            assert (await ready(api))[1]["status"] == "ready"
            await api.ok()
            status, report = await ready(api)
    assert (status, report["status"], report["conductor"]["worker"]) == (200, "degraded", "big")
    assert "WorkerRefused" in report["conductor"]["reason"]
    (failing,) = report["failing"]
    assert (failing["worker"], failing["failures_in_a_row"]) == ("big", 1)
    assert failing["since"].startswith("20")
    assert "Incorrect API key provided." in failing["first"]["detail"]


@pytest.mark.parametrize(("fault", "n"), [(REFUSED, 1), (BROKEN, 3)], ids=["refused", "broken"])
async def test_without_a_healthy_worker_readyz_is_503_until_a_retry_is_due(
    fault: Answer, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with upstreams(big=[fault] * 99, small=[fault] * 99, tiny=[fault] * 99) as up:  # noqa: SIM117
        async with served(led_pool(up)) as api:
            for _ in range(n):
                for model in ("mini", "small", "tiny"):
                    assert (await api.post({"model": model})).status_code >= 400
            status, report = await ready(api)
            assert (status, report["status"]) == (503, "unavailable")
            assert {each["worker"] for each in report["failing"]} == {"big", "small", "tiny"}
            monkeypatch.setattr("serving.health.OUT_S", 0.0)
            for health in api.service.pool.health.values():
                health.skip_until_s = 0.0
            assert (await ready(api))[0] == 200, "else no traffic would ever find out that it is well again"
            up["small"].answers.clear()
            up["small"].answers.extend([Answer(text="Words.")] * 9)
            monkeypatch.setattr("serving.health.OUT_S", OUT_S)
            await api.ok({"model": "small"})
            status, report = await ready(api)
    assert (status, report["status"]) == (200, "degraded")
    assert {each["worker"] for each in report["failing"]} == {"big", "tiny"}


async def test_a_failing_worker_degrades_the_server_until_it_answers() -> None:
    async with upstreams(  # noqa: SIM117
        big=[Answer(text=plan(step(0)))] * 9, small=[BROKEN] * 3, tiny=[Answer(text="T.")] * 9
    ) as up:
        async with served(led_pool(up)) as api:
            for number in range(3):
                assert (await ready(api))[1]["status"] == "ready", number
                await api.post({"model": "small"})
            status, report = await ready(api)
            assert (status, report["status"], [each["worker"] for each in report["failing"]]) == (
                200,
                "degraded",
                ["small"],
            )
            assert "conductor" not in report
            up["small"].answers.clear()
            up["small"].answers.extend([Answer(text="Words.")] * 9)
            api.service.pool.health["small"].skip_until_s = 0.0
            await api.ok({"model": "small"})
            assert (await ready(api))[1]["status"] == "ready"


async def test_busy_workers_are_reported_but_the_server_stays_ready() -> None:
    async with upstreams(big=[BUSY] * 99, small=[BUSY] * 99) as up, served(led_pool(up)) as api:
        for _ in range(3):
            for model in ("big", "small"):
                await api.post({"model": model})
                api.service.pool.health[model].skip_until_s = 0.0
        status, report = await ready(api)
    assert (status, report["status"]) == (200, "degraded")
    assert {each["first"]["error"] for each in report["failing"]} == {"WorkerBusy"}


async def test_a_rejected_prompt_does_not_count_against_the_worker() -> None:
    async with upstreams(big=[Answer(text="x")], small=[Answer(status=400, error="no")] * 9) as up:  # noqa: SIM117
        async with served(led_pool(up)) as api:
            for _ in range(5):
                await api.post({"model": "small"})
            assert (await ready(api))[1]["status"] == "ready"


async def test_details_are_shown_only_to_operators(tmp_path: Path) -> None:
    async with upstreams(big=[REFUSED] * 9, small=[Answer(text="Words.")] * 9) as up:  # noqa: SIM117
        async with keyed(tmp_path, led_pool(up)) as it:
            await it.ask("mine", "POST", CHAT, ASK)
            reports = {who: (await ready(it, who))[1] for who in (None, "mine", "admin")}
    assert reports[None] == {"status": "degraded"}
    assert "Incorrect" not in str(reports["mine"])
    first = reports["mine"]["failing"][0]["first"]
    assert (first["error"], sorted(first)) == ("WorkerRefused", ["at", "error"])
    assert "Incorrect API key provided." in reports["admin"]["failing"][0]["first"]["detail"]


PIECE = "settings.yaml: line 3: `prise` is no field: api_key: sk-123 (/etc/podium/key.txt)"


@pytest.mark.parametrize("scopes", ["mine", "only run", "only read"])
async def test_readyz_shows_a_key_only_its_own_workers_and_no_settings(scopes: str, tmp_path: Path) -> None:
    async with upstreams(big=[REFUSED] * 9, small=[BROKEN] * 9) as up:  # noqa: SIM117
        async with keyed(tmp_path, led_pool(up)) as it:
            await it.ask("mine", "POST", CHAT, ASK)
            it.api.service.refused = PIECE
            it.api.service.policy_faults = ["workers: no worker is called 'x'."]
            everything = (await ready(it, scopes))[1]
            policy = {"exclude_workers": ["big"]}
            assert (
                await it.ask("admin", "POST", f"/v1/admin/keys/{it.ids[scopes]}/policy", policy)
            ).is_success
            report, operators = [(await ready(it, who))[1] for who in (scopes, "admin")]
            models = (await it.ask(scopes, "GET", "/v1/models")).text
    assert operators["refused_user_config"] == PIECE
    assert "big" in str(operators)
    for each in (everything, report):
        assert "admin" in each["refused_user_config"]
        for secret in ("prise", "sk-123", "key.txt", "no worker is called", "Incorrect"):
            assert secret not in str(each), secret
    assert "big" in str(everything)
    assert report["workers"] == [name for name in everything["workers"] if name != "big"]
    assert "big" not in str(report)
    assert "big" not in models


@pytest.mark.real_time
async def test_the_doctor_reports_the_failing_worker_the_reason_and_the_time(tmp_path: Path) -> None:
    async with upstreams(big=[REFUSED] * 9, small=[BROKEN] * 9) as up, keyed(tmp_path, led_pool(up)) as it:
        await it.ask("mine", "POST", CHAT, ASK)

        async def check_as(who: str) -> Any:
            return (await asyncio.to_thread(check_server, it.api.url, it.secrets[who]))["ready"]

        one = await check_as("admin")
        assert one.level == "warning"
        for words in ("big (the conductor) fails since 20", "WorkerRefused", "Incorrect API key provided."):
            assert words in one.said, one.said
        plain = await check_as("mine")
        assert "Incorrect" not in plain.said
        assert "scope `admin`" in plain.remedy
        for _ in range(3):
            await it.ask("mine", "POST", CHAT, ASK | {"model": "small"})
        several = await check_as("admin")
        assert (several.level, "small fails since" in several.said) == ("warning", True), "not for every key"
        for _ in range(3):
            await it.ask("mine", "POST", CHAT, ASK | {"model": "small"})
        both = await check_as("admin")
    assert both.level == "wrong"
    assert "small fails since 20" in both.said
    assert "planted-500" in both.said


async def test_the_first_cause_is_first_in_readiness_record_and_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "podium")
    async with upstreams(big=[REFUSED] * 99, small=[BROKEN] * 99, tiny=[BROKEN] * 99) as up:
        settings = led_pool(up, conductor_fallbacks=("small",))
        settings["workers"][2]["fallbacks"] = ["small"]
        async with served(settings) as api:
            for _ in range(10):
                answer = await api.post()
                assert answer.status_code >= 400
            _, report = await ready(api)
            record = await api.newest()
    reason = report["conductor"]["reason"]
    assert reason.index("big") < reason.index(" Then ")
    assert "big" in record["fallback"].partition(" Then ")[0]
    lines = [each for each in caplog.records if each.getMessage() == "workflow failed"]
    assert {each.levelno for each in lines} == {logging.WARNING}
    first = getattr(lines[0], FIELDS)["errors"]
    assert "big" in first[0]
    assert "Incorrect API key provided." in first[0]
    (degraded,) = [each.getMessage() for each in caplog.records if "has written no plan" in each.getMessage()]
    assert degraded.index("big rejects every request") < degraded.index(" Then ")
    assert [
        each
        for each in caplog.records
        if each.getMessage().startswith("Worker big is failing. First failure: WorkerRefused")
    ]


async def test_a_successful_run_is_not_logged_as_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "podium")
    async with served(team()) as api:
        await api.ok()
    (line,) = [each for each in caplog.records if each.getMessage() == "workflow finished"]
    assert line.levelno == logging.INFO


def show(record: Json) -> str:
    with console().capture() as captured:
        pass
    out = console()
    with out.capture() as captured:
        out.print(run_tree(record, words=False))
    return captured.get()


async def test_show_prints_every_detail_for_operators_with_the_first_cause_first(tmp_path: Path) -> None:
    async with upstreams(big=[REFUSED] * 99, small=[BROKEN] * 99, tiny=[BROKEN] * 99) as up:
        settings = led_pool(up)
        settings["workers"][1]["fallbacks"] = ["tiny"]
        async with keyed(tmp_path, settings) as it:
            answer = await it.ask("mine", "POST", CHAT, ASK)
            id = answer.json()["error"]["podium"]["workflow_id"]
            records = {
                who: (await it.ask(who, "GET", f"/v1/workflows/{id}")).json() for who in ("mine", "admin")
            }
    text = show(records["admin"])
    assert (
        text.index("big rejects every request")
        < text.index("Incorrect API key provided.")
        < text.index("small failed")
    )
    assert text.index("small failed") < text.index("planted-500")
    failed = failure_text(records["admin"])
    assert failed.index("small failed") < failed.index("Then: tiny failed") < failed.index("planted-500")
    for words in (show(records["mine"]), failure_text(records["mine"])):
        assert "planted" not in words
        assert "Incorrect" not in words


@pytest.mark.parametrize(
    "fault",
    [BROKEN, REFUSED, BUSY, Answer(status=400, error="planted-400")],
    ids=lambda each: str(each.status),
)
async def test_an_error_of_a_self_hosted_server_names_its_address(fault: Answer) -> None:
    async with upstreams(small=[fault] * 9) as up:  # noqa: SIM117
        async with served({"workers": [api_worker("small", up["small"])]}) as api:
            await api.post({"model": "small"})
            (step_json,) = (await api.newest())["steps"]
            host = up["small"].url
    assert f"The server at {host} returned {fault.status}" in step_json["error"]["detail"]
    assert "OpenAI said" not in step_json["error"]["detail"]
