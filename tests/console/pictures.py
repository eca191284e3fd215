"""Pictures of `docs/console.md`: `python -m tests.console.pictures [NAME...]`, with scripted workers."""

import asyncio
import copy
import json
import random
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from playwright.async_api import Page, Route, expect

from evaluation.aggregate import row
from evaluation.outcome import RunOutcome
from evaluation.results import Result
from tests.conftest import ROOT
from tests.console.chromium import ask, browsing, enter_key, node, open_page, until_finished
from tests.console.month import spent
from tests.databases import make_file
from tests.serving.api.calling_team import calling_team
from tests.serving.api.keyed import Keyed, keyed
from tests.serving.api.served import Json, plan, scripted, served, step, team

DOCS = ROOT / "docs"
SIZE: Json = {"viewport": {"width": 1280, "height": 800}}
PRICE = {"input_usd_per_mtok": 1, "output_usd_per_mtok": 2}
QUESTION = "Is it worth insulating the roof of a house from 1970 before the windows?"
ROOF = "Through an uninsulated roof goes about a quarter of a house's heat; two days of work, paid back in five years or so."
PANES = "Old double glazing loses less than people think, and new windows cost five times as much as a roof."
ANSWER = (
    "Yes: begin with the roof. It loses more heat than the windows, costs a fifth, and pays itself back within "
    "about five years. Do the windows when they are due anyway."
)
PLAN = plan(
    step("physicist", "How much heat goes through the roof and the windows?"),
    step("builder", "What do both cost, and how long does the work take?"),
    step("writer", "Answer in a few sentences.", [0, 1]),
)


def house(**settings: Any) -> Json:
    workers = [
        scripted("physicist", ROOF, price=PRICE, delay_s=0.6, tokens_per_s=7, card="knows how heat moves"),
        scripted(
            "builder", PANES, price=PRICE, delay_s=0.9, tokens_per_s=7, card="knows what building costs"
        ),
        scripted("writer", ANSWER, price=PRICE, delay_s=0.4, tokens_per_s=15, card="writes briefly"),
        scripted("broken", {"error": "unavailable"}, in_pool=False, card="its server is away"),
    ]
    return team(PLAN, workers=workers, workflows={}, **settings)


@asynccontextmanager
async def page_of(settings: Json, **options: Any) -> AsyncGenerator[tuple[Any, Page]]:
    shape = SIZE | options
    async with served(settings) as api, browsing() as browser, open_page(browser, api.url, **shape) as tab:
        yield api, tab.page


async def live() -> None:
    """Show two parallel steps with their text."""
    async with page_of(house()) as (_, page):
        await shot(page, "ask")
        await ask(page, QUESTION)
        await expect(node(page, 2)).to_contain_text("loses", timeout=15_000)
        await shot(page, "live")
        await until_finished(page)


async def replay() -> None:
    """Show a replayed run with a step's details, in the dark colours."""
    async with page_of(house(), color_scheme="dark") as (_, page):
        await ask(page, QUESTION)
        await until_finished(page)
        await page.get_by_role("link", name="Open the run").click()
        await until_finished(page)
        await node(page, 1).click()
        await page.get_by_label("Replay position").focus()
        for _ in range(3):
            await page.keyboard.press("PageDown")
        await shot(page, "replay")


async def failover() -> None:
    """Show a worker that fails, and the one that answers instead."""
    workers = [
        scripted("first", {"error": "unavailable"}, fallbacks=["second"], price=PRICE),
        scripted("second", ROOF, price=PRICE, delay_s=0.3),
    ]
    settings = team(plan(step("first", "Answer.")), workers=workers, workflows={})
    async with page_of(settings) as (_, page):
        await ask(page, QUESTION)
        await until_finished(page)
        await page.get_by_role("link", name="Open the run").click()
        await until_finished(page)
        await node(page, 1).click()
        await shot(page, "failover")


async def tools() -> None:
    """Show a run that waits for its client's tool."""
    offered = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    async with page_of(calling_team()) as (api, page):
        body = {"messages": [{"role": "user", "content": "What is the weather in Rome?"}], "tools": offered}
        await api.ok(body)
        await page.goto(f"{api.url}/console/#/runs/{(await api.newest())['id']}")
        await node(page, 1).click()
        await shot(page, "tools")


async def admin() -> None:
    """Show lists, the overview with artificial traffic, pool, keys and dialogs, and the phone layout."""
    with TemporaryDirectory() as folder:
        async with keyed(Path(folder), house()) as it, browsing() as browser:
            await traffic(it)
            async with open_page(browser, it.api.url, **SIZE) as tab:
                page = tab.page
                await enter_key(page, it.secrets["admin"])
                for name, shows in PAGES:
                    if name == "overview":
                        await page.route("**/v1/workflows?*", busy_day)
                    await page.goto(f"{it.api.url}/console/#/{name}")
                    await expect(page.locator("main")).to_contain_text(shows)
                    if name == "overview":
                        await page.get_by_role("button", name="Cost").click()
                        await page.get_by_role("group", name="Group by").get_by_role("button", name="Worker").click()  # fmt: skip
                    await shot(page, name)
                    await page.unroute_all()
                await page.get_by_role("button", name="Edit mine").click()
                await expect(page.get_by_role("dialog").get_by_label("Per day ($)")).to_have_value("2.5")
                await shot(page, "edit")
            async with open_page(browser, it.api.url, viewport={"width": 390, "height": 760}) as tab:
                await enter_key(tab.page, it.secrets["mine"])
                await ask(tab.page, QUESTION)
                await until_finished(tab.page)
                await shot(tab.page, "phone")


PAGES = (("runs", "finished"), ("overview", "over time"), ("pool", "Workers in the pool"), ("keys", "Ledger"))


async def busy_day(route: Route) -> None:
    """Repeat each run at times of the last day: more of them in its middle, and with some variation."""
    body = await (await route.fetch()).json()
    rng, now_s = random.Random(45), time.time()
    runs: list[Json] = []
    while len(runs) < 400:
        run = copy.deepcopy(rng.choice(body["data"]))
        if run["status"] != "failed" or rng.random() < 0.3:
            size = rng.lognormvariate(0, 0.4)
            run |= {"id": f"wf_{len(runs):032x}", "created": now_s - 86_400 * rng.triangular(0, 1, 0.45)}
            run |= {"cost_usd": (run["cost_usd"] or 0) * size, "wall_s": run["wall_s"] * size}
            for step in run["steps"]:
                step["cost_usd"] = step["cost_usd"] and step["cost_usd"] * size
                if step["usage"]:
                    step["usage"]["cached_input_tokens"] = int(step["usage"]["input_tokens"] * rng.random())
            runs.append(run)
    runs.sort(key=lambda run: -run["created"])
    await route.fulfill(json=body | {"data": runs, "has_more": False, "next_after": None})


async def traffic(it: Keyed) -> None:
    """Send requests of two teams with budgets, one of which fails."""
    for path, body in (
        (f"teams/{it.ids['search']}/budget", {"day_usd": "20", "month_usd": "300"}),
        (f"teams/{it.ids['sales']}/budget", {"month_usd": "0.0012"}),
        (f"teams/{it.ids['search']}/policy", {"requests_per_minute": 600, "local_only": True}),
        (f"keys/{it.ids['mine']}/budget", {"day_usd": "2.5"}),
    ):
        await it.ask("admin", "POST", f"/v1/admin/{path}", body)
    await it.ask("admin", "POST", f"/v1/admin/keys/{it.ids['alone']}", {"expires_at": "2027-06-01T00:00:00Z"})
    questions = (
        ("mine", "mini", QUESTION),
        ("other team", "writer", "Write a subject line for our offer on roof insulation."),
        ("mine", "mini", "How much does a heat pump save in a house of 140 square metres?"),
        ("mine", "physicist", "What is the U-value of a brick wall of 24 cm?"),
        ("other team", "broken", "Summarize this call with a customer."),
        ("mine", "mini", "Is triple glazing worth it in the north of Spain?"),
    )
    for who, model, question in questions:
        body = {"model": model, "messages": [{"role": "user", "content": question}]}
        await it.ask(who, "POST", "/v1/chat/completions", body)


async def costs() -> None:
    """Show a month of costs and a turn of a conversation, of artificial runs."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        api, secrets = await stack.enter_async_context(spent(make_file(folder / "podium.db")))
        browser = await stack.enter_async_context(browsing())
        page = (await stack.enter_async_context(open_page(browser, api.url, **SIZE))).page
        await enter_key(page, secrets["admin"])
        await page.goto(f"{api.url}/console/#/costs")
        await page.get_by_role("group", name="Group by").get_by_role("button", name="Worker").click()
        await expect(page.locator("tbody tr")).to_have_count(3)
        await shot(page, "costs")
        headers = {"authorization": f"Bearer {secrets['admin']}"}
        runs = (await api.http.get("/v1/workflows?limit=1000", headers=headers)).json()["data"]
        run = max(runs, key=lambda run: run["saved_usd"] or 0)
        await page.goto(f"{api.url}/console/#/runs/{run['id']}")
        await node(page, 1).click()
        await shot(page, "conversation")


async def compare() -> None:
    """Show an evaluation next to live traffic."""
    rows = [
        strategy("small model alone", 41, "0.0004"),
        strategy("large model alone", 68, "0.004"),
        strategy("best of three", 72, "0.0038"),
        strategy("podium-ultra", 74, "0.002"),
    ]
    async with page_of(house()) as (api, page):
        for model in ("mini", "writer", "writer"):
            await api.ok({"model": model, "messages": [{"role": "user", "content": QUESTION}]})
        id = (await api.newest())["id"]
        await api.http.post(f"/v1/workflows/{id}/feedback", json={"score": 1})
        await page.goto(f"{api.url}/console/#/evaluation")
        report = json.dumps({"title": "An example, made up: 100 sums", "rows": rows}).encode()
        await page.locator("input[type=file]").set_input_files(
            [{"name": "report.json", "mimeType": "application/json", "buffer": report}]
        )
        await expect(page.locator("tbody tr")).to_have_count(6)
        await shot(page, "compare")


def strategy(name: str, n_right: int, cost_usd: str) -> Json:
    """Return a row of a report of 100 questions."""
    outcome = RunOutcome(cost_usd=Decimal(cost_usd), wall_s=2.0)
    results = [Result(name, str(n), "made", "sums", "", n < n_right, "1", "", outcome) for n in range(100)]
    return row(name, "", results, 100, {}, "")


async def shot(page: Page, name: str) -> None:
    """Write `docs/console-NAME.png`, smaller if Pillow is installed."""
    await page.wait_for_timeout(300)
    path = DOCS / f"console-{name}.png"
    await page.screenshot(path=path)
    try:
        from PIL import Image
    except ImportError:
        return
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(160).save(path, optimize=True)


PICTURES: tuple[Callable[[], Awaitable[None]], ...] = (live, replay, failover, tools, admin, costs, compare)


async def main() -> None:
    """Take the pictures named on the command line, or all."""
    for picture in PICTURES:
        if picture.__name__ in sys.argv[1:] or not sys.argv[1:]:
            await picture()


if __name__ == "__main__":
    asyncio.run(main())
