"""Pictures reach a worker, or the client or record says that they did not."""

import asyncio
import base64
import json
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from serving.api.dialects.chat.dialect import ChatDialect
from serving.api.resolve import find_fetchers, resolve
from serving.pool import build_pool
from serving.settings.settings import parse
from serving.workers.picture_urls import LOOK_UPS, picture_url, public_hosts
from tests.resolver import Names
from tests.serving.api.served import ASK, Json, plan, scripted, served, step, team
from tests.states import until

PICTURE: Json = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
TALK: list[Json] = [
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": [{"type": "text", "text": "What is this?"}, PICTURE]},
]
BLIND, SEEING = scripted("blind", "Something."), scripted("seeing", "A cat.", sees_images=True)
FLOWS = {"dark": [step("blind")], "half": [step("blind", "Guess."), step("seeing", "Look.", [0])]}


def mixed(*plans: str, conductor: Json | None = None) -> Json:
    settings = team(*plans, workers=[BLIND, SEEING, scripted("blind-too")], workflows=FLOWS)
    return settings | ({"conductor": conductor} if conductor else {})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "body",
    [
        {"model": "blind"}, {"model": "dark"}, {"podium": {"plan": [step("blind"), step("blind-too", "x", [0])]}},
        {"podium": {"workers": ["blind", "blind-too"]}}, {"podium": {"exclude_workers": ["seeing"]}},
    ],
    ids=["a worker", "a workflow", "an own plan", "a pool", "what is left of a pool"],
)  # fmt: skip
async def test_an_image_that_no_worker_would_see_returns_400_with_its_place(body: Json, stream: bool) -> None:
    async with served(mixed(plan(step(0)))) as api:
        answer = await api.post({"messages": TALK, "stream": stream} | body)
        calls = [len(api.worker(name).calls) for name in ("conductor", "blind", "seeing", "blind-too")]
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "messages[2].content[1]")
    assert "sees_images" in error["message"]
    assert calls == [0, 0, 0, 0]


@pytest.mark.parametrize("body", [{"model": "half"}, {"model": "mini"}])
async def test_a_step_whose_worker_sees_no_images_is_noted_on_the_record(body: Json) -> None:
    plan_text = plan(step("blind", "Guess."), step("seeing", "Look.", [0]))
    async with served(mixed(plan_text)) as api:
        answer = await api.ok({"messages": TALK, **body})
        record = await api.record(answer["podium"]["workflow_id"])
        has_images = [api.worker(name).calls[0].messages[-1].has_image for name in ("blind", "seeing")]
    assert answer["choices"][0]["message"]["content"] == "A cat."
    assert has_images == [False, True]
    assert ["sees_images" in json.dumps(each["notes"]) for each in record["steps"]] == [True, False]


async def test_without_a_plan_a_worker_with_image_support_answers() -> None:
    async with served(mixed("no plan", conductor={"worker": "conductor", "fallback": "blind"})) as api:
        answer = await api.ok({"messages": TALK})
        assert answer["choices"][0]["message"]["content"] == "A cat."
        assert (await api.ok())["choices"][0]["message"]["content"] == "Something.", (
            "where there is no picture"
        )


async def test_a_fallback_without_image_support_gets_only_text_requests() -> None:
    ill = scripted("ill", {"error": "refused"}, sees_images=True, fallbacks=["blind"])
    async with served(team(workers=[ill, BLIND], workflows={})) as api:
        answer = await api.post({"model": "ill", "messages": TALK})
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "worker_refused")
        assert not api.worker("blind").calls
        await api.ok({"model": "ill"})
        assert len(api.worker("blind").calls) == 1


@pytest.mark.parametrize("role", ["system", "developer", "assistant"])
async def test_an_image_outside_a_user_message_returns_400_with_its_place(role: str) -> None:
    async with served(mixed()) as api:
        answer = await api.post(
            {"model": "seeing", "messages": [{"role": role, "content": [PICTURE]}, TALK[2]]}
        )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages[0].content[0]")


async def test_a_question_without_images_is_accepted_by_every_worker() -> None:
    async with served(mixed()) as api:
        await api.ok({"model": "blind", "messages": TALK[:2] + TALK[:1]})


async def test_the_models_list_shows_image_support() -> None:
    async with served(mixed()) as api:
        listed = (await api.http.get("/v1/models")).json()["data"]
    sees_images = {
        each["id"]: each["podium"].get("sees_images") for each in listed if each["podium"]["kind"] == "worker"
    }
    assert sees_images == {"conductor": False, "blind": False, "seeing": True, "blind-too": False}


ADDRESS = "https://example.com/cat.png"
FAR: Json = {"type": "image_url", "image_url": {"url": ADDRESS}}
WORDS: Json = {"type": "text", "text": "What is this?"}
BY_ADDRESS: dict[str, tuple[str, str, Json]] = {
    "a chat": (
        "/v1/chat/completions",
        "messages[0].content[1].image_url",
        {"messages": [{"role": "user", "content": [WORDS, FAR]}]},
    ),
    "a plan": (
        "/v1/plans",
        "messages[0].content[1].image_url",
        {"messages": [{"role": "user", "content": [WORDS, FAR]}]},
    ),
    "a response": (
        "/v1/responses",
        "input",
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": ADDRESS}]}]},
    ),
    "a message": (
        "/v1/messages",
        "messages[0].content",
        {
            "max_tokens": 99,
            "messages": [
                {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": ADDRESS}}]}
            ],
        },
    ),
}


def fetching_none() -> Json:
    """Return settings with workers that fetch no pictures: one in the local network, and one with `fetches_pictures`
    off.
    """
    api = {"kind": "openai", "model": "m", "sees_images": True}
    near = api | {"name": "near", "base_url": "http://127.0.0.1:9/v1"}
    far = api | {"name": "far", "base_url": "https://example.org/v1", "fetches_pictures": False}
    return team(plan(step(0)), workers=[near, far], workflows={"flow": [step("near")]})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["near", "far", "mini", "flow"])
@pytest.mark.parametrize("what", BY_ADDRESS)
async def test_an_image_url_that_no_worker_fetches_returns_400_with_its_place(
    what: str, model: str, stream: bool
) -> None:
    path, param, body = BY_ADDRESS[what]
    async with served(fetching_none()) as api:
        answer = await api.http.post(path, json=body | {"model": model, "stream": stream})
        n_calls = len(api.worker("conductor").calls)
    error = answer.json()["error"]
    assert answer.status_code == 400, answer.text
    assert param in error["message"]
    assert "example.com" in error["message"]
    assert "data:image" in error["message"]
    assert error.get("param", param) == param
    assert n_calls == 0


async def test_an_image_url_is_accepted_if_one_worker_may_fetch_it() -> None:
    settings = fetching_none()
    settings["workers"].insert(0, scripted("seeing", "A cat.", sees_images=True))
    async with served(settings) as api:
        assert (await api.post(BY_ADDRESS["a chat"][2] | {"model": "seeing"})).status_code == 200
        answer = await api.post(BY_ADDRESS["a chat"][2] | {"model": "mini"})
    assert answer.status_code == 200, answer.text


async def test_workers_that_fetch_no_urls_get_no_image_urls_and_plans_reflect_that() -> None:
    settings = fetching_none()
    settings["workers"][1]["try_first"] = ["far"]
    settings["workers"].insert(0, scripted("seeing", "A cat.", sees_images=True))
    task = ChatDialect().parse(json.dumps(BY_ADDRESS["a chat"][2] | {"model": "mini"}).encode())
    async with served(settings) as api:
        pool = api.service.pool
        resolved = resolve(task, pool, fetchers=await find_fetchers(task, pool))
        words = ChatDialect().parse(json.dumps(ASK).encode())
        assert await find_fetchers(words, pool) is None
        assert pool.members["near"].sees_images
        assert resolve(words, pool).team.pool == pool.team.pool
        members = resolved.team.members_for(resolved.task)
        assert members["near"].worker is pool.members["near"].for_conductor.worker
        assert [name for name, member in members.items() if member.sees_images] == ["seeing"]


async def test_hosts_of_deployments_are_looked_up_concurrently(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names(monkeypatch)
    hosts = [f"host{n}.example" for n in range(LOOK_UPS)]
    for host in hosts[1:]:
        names.hang(host)
    names.lead(hosts[0], "93.184.216.34")
    places = [{"name": f"at{n}", "base_url": f"https://{host}/v1"} for n, host in enumerate(hosts)]
    api_settings = {"kind": "openai", "model": "m", "sees_images": True, "api_key_env": "KEY"}
    workers = [
        api_settings | {"name": "far", "deployments": [*places[1:], places[0]]},
        api_settings | {"name": "other", "deployments": places[1:]},
    ]
    pool = build_pool(parse(team(workers=workers, workflows={})), {"KEY": "k"}, {})
    finding = asyncio.create_task(pool.find_fetchers([ADDRESS]))
    await until(lambda: len(names.looked_up) == len(hosts), "all are looked up")
    names.released.set()
    fetchers = await finding
    assert "far" in fetchers
    assert "other" not in fetchers
    await pool.aclose()


@pytest.mark.real_time
async def test_slow_look_ups_share_one_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names(monkeypatch)
    names.lead("public.example", "93.184.216.34")
    hosts = [f"host{n}.example" for n in range(3 * LOOK_UPS)]
    for host in hosts:
        names.hang(host)
    try:
        assert await public_hosts(["public.example", *hosts[:3]], 0.5) == {"public.example"}
        async with asyncio.timeout(10):
            assert not await public_hosts(hosts, 0.1)
        assert len(names.looked_up) <= LOOK_UPS + 4, "the others were not begun"
    finally:
        names.released.set()


@given(st.text("Az09+/=-_ é", max_size=12) | st.binary().map(lambda data: base64.b64encode(data).decode()))
@example("AAAA====")
def test_exactly_the_pictures_in_padded_base64_are_accepted(content: str) -> None:
    decoded = accepted = None
    with suppress(ValueError):
        decoded = base64.b64decode(content, validate=True)
    with suppress(ValueError):
        accepted = picture_url(f"DATA:image/jpg;Base64,{content}")
    is_padded = decoded is not None and len(base64.b64encode(decoded)) == len(content)
    assert accepted == (f"data:image/jpeg;base64,{content}" if is_padded else None)
