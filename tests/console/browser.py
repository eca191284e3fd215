"""Web console in a real Chromium: `make browser-test`, which is not part of `make test`. It needs the system's
browser (`apt install chromium`). The API, its store and its keys are real. The workers are scripted.
"""

import asyncio
import gzip
import json
import re
import time
from contextlib import AsyncExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from evaluation.aggregate import row
from evaluation.outcome import RunOutcome
from evaluation.results import Result
from serving.api.console import FOLDER
from tests.console.chromium import (
    ask,
    browsing,
    enter_key,
    has_focus,
    node,
    open_page,
    tab_to,
    until_finished,
    violations,
)
from tests.console.cutting_proxy import Cutter
from tests.console.month import spent
from tests.databases import make_file
from tests.serving.api.calling_team import calling_team
from tests.serving.api.keyed import Keyed, keyed
from tests.serving.api.served import ASK, Json, Served, plan, scripted, served, step, team

EVIL = (
    '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>'
    "[a link](javascript:window.hacked=1) ![a picture](http://127.0.0.1:9/x.png) <a href='http://127.0.0.1:9'>b</a>"
)
PRICE = {"input_usd_per_mtok": 1, "output_usd_per_mtok": 2}
WIDE = plan(
    step("a", "Find a reason for. " + EVIL),
    step("b", "Find a reason against."),
    step("c", "Conclude.", [0, 1]),
)
PAGES_AND_DIALOGS = (
    ("ask", "A team answers", "administrator"),
    ("ask/{id}", "finished", ""),
    ("runs", "finished", ""),
    ("overview", "Requests over time", ""),
    ("costs", "Cost per day", ""),
    ("pool", "Workers in the pool", "Test a"),
    ("keys", "Ledger", "New key"),
    ("keys", "Ledger", "New team"),
    ("keys", "Ledger", "Edit mine"),
    ("keys", "Ledger", "Edit search"),
    ("evaluation", "live traffic", ""),
    ("again/{id}", "Add a step", ""),
    ("compare/{id}/{id}", "finished", ""),
)
"""Pages, a text on each, and the button that opens its dialog."""
LETTERS = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda my"


def pool(**settings: Any) -> Json:
    """Return a team of two parallel workers, and one that reads both and writes for a second."""
    workers = [
        scripted("a", f"A reason. {EVIL}", price=PRICE, delay_s=1.5),
        scripted("b", "Another reason.", price=PRICE, delay_s=1.8),
        scripted("c", f"{LETTERS} {EVIL}", price=PRICE, tokens_per_s=20),
    ]
    return team(WIDE, workers=workers, **settings)


async def test_a_new_user_sees_parallel_steps_costs_and_a_replay() -> None:
    async with served(pool()) as api, browsing() as browser, open_page(browser, api.url) as tab:
        page = tab.page
        assert page.url == f"{api.url}/console/", "the address of the server leads to the page"
        await page.locator(".examples button").first.click()
        await expect(page).to_have_url(f"{api.url}/console/#/ask/{next(iter(api.service.sessions.running))}")
        await expect(page.get_by_label("Your question", exact=True)).to_be_visible()
        await expect(node(page, 1)).to_contain_text("running")
        await expect(node(page, 2)).to_contain_text("running")
        await expect(node(page, 3)).to_contain_text("waiting")
        await expect(page.locator(".answer .said")).to_contain_text("alpha beta")
        await until_finished(page)
        await expect(page.locator(".answer .said")).to_contain_text(LETTERS)
        await expect(page.locator(".facts")).to_contain_text("¢")
        await expect(page.locator(".question")).to_contain_text("Which planet")
        assert await page.title() == "Ask · Podium"
        await page.reload()
        await until_finished(page)
        await page.get_by_role("link", name="Open the run").click()
        await until_finished(page)
        assert await page.title() == "Runs · Podium"

        slider = page.get_by_label("Replay position")
        await slider.focus()
        await page.keyboard.press("Home")
        await expect(page.locator(".node")).to_have_count(0)
        await page.get_by_role("button", name="Replay 1×").click()
        await expect(node(page, 1)).to_contain_text("running")
        await expect(node(page, 3)).to_contain_text("done")

        await page.reload()
        await until_finished(page)
        assert tab.faults == []


async def test_texts_of_models_and_users_are_escaped_and_load_nothing() -> None:
    async with served(pool()) as api, browsing() as browser, open_page(browser, api.url) as tab:
        page = tab.page
        await ask(page, f"Is this inert? {EVIL}")
        await until_finished(page)
        for number in (1, 3):
            await node(page, number).click()
            await page.get_by_text("Prompt", exact=True).click()
            await expect(page.locator(".details .said")).to_contain_text("<script>window.hacked=1</script>")
        await page.locator("nav").get_by_role("link", name="Runs").click()
        await page.locator("tbody a").first.click()
        await page.get_by_role("link", name="Ask again").click()
        await expect(page.get_by_label("Your question", exact=True)).to_have_value(f"Is this inert? {EVIL}")
        assert await page.evaluate("window.hacked") is None
        assert await page.locator("#console :is(img, script, iframe, object, a[href^='http'], a[href^='javascript'])").count() == 0  # fmt: skip
        assert tab.hosts == {api.url.removeprefix("http://")}
        assert tab.faults == []


async def test_the_content_security_policy_blocks_injected_scripts() -> None:
    async with served(pool()) as api, browsing() as browser, open_page(browser, api.url) as tab:
        await tab.page.evaluate(
            """() => { for (const html of ['<img src=x onerror="window.hacked=1">', '<img src="http://127.0.0.1:9/x.png">'])
                 document.body.insertAdjacentHTML('beforeend', html);
               const script = document.createElement('script'); script.textContent = 'window.hacked=1'; document.body.append(script); }"""
        )
        await asyncio.sleep(0.3)
        assert await tab.page.evaluate("window.hacked") is None
        assert len([fault for fault in tab.faults if fault.startswith("CSP: ")]) >= 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
async def test_every_page_passes_axe_and_fits_its_width(tmp_path: Path, scheme: Any, width: int) -> None:
    options = {
        "color_scheme": scheme,
        "viewport": {"width": width, "height": 800},
        "reduced_motion": "reduce",
    }
    async with keyed(tmp_path, pool()) as it, browsing() as browser, open_page(browser, it.api.url, **options) as tab:  # fmt: skip
        page = tab.page
        axe_faults = await violations(page)
        await enter_key(page, it.secrets["admin"])
        await ask(page, "Why?")
        await until_finished(page)
        await node(page, 3).click()
        axe_faults += await violations(page)
        id = page.url.rpartition("/")[2]
        for path, shows, dialog in PAGES_AND_DIALOGS:
            await page.goto(f"{it.api.url}/console/#/{path.format(id=id)}")
            await expect(page.locator("main")).to_contain_text(shows)
            axe_faults += await violations(page)
            assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path
            if dialog:
                await page.get_by_role("button", name=dialog).first.click()
                for summary in await page.locator("dialog summary").all():
                    await summary.click()
                axe_faults += await violations(page)
                wide = "(d => d.scrollWidth - d.clientWidth)(document.querySelector('dialog'))"
                assert await page.evaluate(wide) <= 0, dialog
                await page.keyboard.press("Escape")
                await expect(page.locator("dialog")).to_have_count(0)
        assert axe_faults == []
        assert tab.clean == []


async def test_every_control_works_with_the_keyboard() -> None:
    async with served(pool()) as api, browsing() as browser, open_page(browser, api.url) as tab:
        page = tab.page
        await tab_to(page, "Skip to content")
        await tab_to(page, "Your question")
        await page.keyboard.type("By keyboard?")
        await page.keyboard.press("Control+Enter")
        await until_finished(page)
        await tab_to(page, "Replay 1×")
        for number in (1, 2, 3):
            await tab_to(page, f"{number}")
            await page.keyboard.press("Enter")
            await expect(page.locator(".details h2")).to_contain_text(f"Step {number}")
            await page.keyboard.press("Escape")
            await expect(page.locator(".details")).to_have_count(0)
            assert await has_focus(page, f'[data-step="0.{number - 1}"]'), "the focus is back where it was"
        await tab_to(page, "Plan as written")
        await tab_to(page, "Ask again with another plan")
        await page.keyboard.press("Enter")
        for name in ("Your question", "Model", "Ask", "Remove step 1", "Add a step"):
            await tab_to(page, name)
        assert tab.faults == []


async def test_a_key_is_in_no_url_and_stored_for_the_tab_only_on_request(tmp_path: Path) -> None:
    async with keyed(tmp_path, pool()) as it, browsing() as browser, open_page(browser, it.api.url) as tab:
        page, secret = tab.page, it.secrets["mine"]
        await expect(page.locator(".sign-in")).to_contain_text("An API key is required")
        await enter_key(page, it.secrets["wrong"])
        await expect(page.get_by_role("alert").first).not_to_be_empty()
        await enter_key(page, secret)
        await expect(page.get_by_role("combobox", name="Model", exact=True)).to_contain_text("mini")
        await page.reload()
        await expect(page.locator(".sign-in")).to_contain_text("An API key is required")
        await enter_key(page, secret, keeps=True)
        await expect(page.get_by_role("combobox", name="Model", exact=True)).to_contain_text("mini")
        await page.reload()
        await expect(page.get_by_role("combobox", name="Model", exact=True)).to_contain_text("mini")
        await ask(page, "Why?")
        await until_finished(page)
        script = "[localStorage.length, document.cookie, Object.keys(sessionStorage).join(), document.documentElement.outerHTML]"
        n_local, cookies, session, html = await page.evaluate(script)
        assert (n_local, cookies, session) == (0, "", "podium.key")
        assert secret not in html
        assert not [url for url in (*tab.urls, page.url) if "pk_" in url]
        await page.goto(f"{it.api.url}/console/#/keys")
        await expect(page.locator("main")).to_contain_text(
            "Teams and keys are managed with a key that has the scope admin."
        )
        assert tab.clean == []


async def test_an_administrator_creates_changes_and_revokes_a_key_with_limits(
    tmp_path: Path,
) -> None:
    async with keyed(tmp_path, pool()) as it, browsing() as browser, open_page(browser, it.api.url) as tab:
        page = tab.page
        dialog = page.get_by_role("dialog")
        await enter_key(page, it.secrets["admin"])
        await page.locator("nav").get_by_role("link", name="Keys").click()
        await page.get_by_role("button", name="New team").click()
        await dialog.get_by_label("Name").fill("growth")
        await dialog.get_by_label("Per day ($)").fill("5")
        await dialog.get_by_label("Requests per minute").fill("600")
        await dialog.get_by_role("button", name="Create team").click()
        await expect(dialog).to_have_count(0)
        row = page.get_by_role("row").filter(has_text="growth")
        await expect(row).to_contain_text("of $5.00")
        await expect(row).to_contain_text("600 requests/min")

        await page.get_by_role("button", name="New key").click()
        await dialog.get_by_label("Name").fill("app")
        await dialog.get_by_role("combobox", name="Team").select_option("growth")
        await expect(dialog.get_by_label("Administrator")).to_be_disabled()
        await dialog.get_by_role("combobox", name="Expires").select_option("in 30 days")
        await dialog.get_by_role("button", name="Create key").click()
        secret = await dialog.get_by_role("status").locator("code").inner_text()
        assert await status_of(it, secret) == 200
        await dialog.get_by_role("button", name="Done").click()

        await page.get_by_role("button", name="Edit app").click()
        await dialog.get_by_label("Read runs").uncheck()
        await dialog.get_by_role("combobox", name="Expires").select_option("never")
        await dialog.get_by_label("Per day ($)").fill("2")
        await dialog.get_by_text("Policy: models, workers").click()
        await dialog.get_by_text("Workers: any").click()
        await dialog.get_by_role("group", name="Workers", exact=True).get_by_label("b", exact=True).uncheck()
        await dialog.get_by_label("Store texts of requests and answers").uncheck()
        await dialog.get_by_role("button", name="Save").click()
        await expect(dialog).to_have_count(0)
        key = (await it.ask("admin", "GET", "/v1/admin/keys/app")).json()
        assert (key["scopes"], key["expires_at"], key["team"]["name"]) == (["run"], None, "growth")
        budget = (await it.ask("admin", "GET", "/v1/admin/keys/app/budget")).json()
        assert (Decimal(budget["day"]["limit_usd"]), budget["month"]["limit_usd"]) == (2, None)
        policy = (await it.ask("admin", "GET", "/v1/admin/keys/app/policy")).json()["policy"]
        assert (sorted(policy["workers"]), policy["store_content"]) == (["a", "c", "conductor"], False)

        await page.get_by_role("button", name="Edit app").click()
        await dialog.get_by_role("button", name="Create a new secret").click()
        await dialog.get_by_role("button", name="Yes, create a new secret").click()
        await expect(dialog.get_by_role("status").locator("code")).to_contain_text("pk_")
        assert await status_of(it, secret) == 401
        await dialog.get_by_role("button", name="Revoke this key").click()
        await dialog.get_by_role("button", name="Yes, revoke this key").click()
        await expect(dialog).to_have_count(0)
        await expect(page.get_by_role("button", name="Edit app")).to_have_count(0)
        await page.get_by_label("Show revoked and expired").check()
        await expect(page.get_by_role("row").filter(has_text="app").filter(has_text="revoked")).to_have_count(
            1
        )
        assert tab.faults == []


async def status_of(it: Keyed, secret: str) -> int:
    answer = await it.api.http.get("/v1/models", headers={"authorization": f"Bearer {secret}"})
    return answer.status_code


@pytest.mark.parametrize("who", ["only run", "only read", "mine", None])
async def test_a_page_shows_only_what_the_keys_scopes_permit(tmp_path: Path, who: str | None) -> None:
    async with keyed(tmp_path, pool()) as it, browsing() as browser, open_page(browser, it.api.url) as tab:
        page = tab.page
        run = (await it.ask("mine", "POST", "/v1/chat/completions", ASK)).headers["x-podium-workflow-id"]
        if who is None:
            await expect(page.get_by_role("heading", name="Sign in to this server")).to_be_visible()
            assert (await page.locator("nav").count(), tab.faults) == (0, [])
            return
        await enter_key(page, it.secrets[who])
        missing = {"only run": "read", "only read": "run"}.get(who)
        for path in ("ask", "runs", f"runs/{run}", "overview", "costs", "pool", "evaluation", "keys"):
            await page.goto(f"{it.api.url}/console/#/{path}")
            await expect(page.locator("main")).not_to_be_empty()
            await page.wait_for_timeout(500)
        await page.goto(f"{it.api.url}/console/#/{'runs' if missing == 'read' else 'ask'}")
        if missing:
            await expect(page.locator(".empty")).to_contain_text(f"lacks the scope {missing}")
        if who == "only run":
            await page.goto(f"{it.api.url}/console/#/ask")
            await ask(page, "Why?")
            await expect(page.locator(".answer .said")).to_contain_text(LETTERS)
        if who == "only read":
            await page.goto(f"{it.api.url}/console/#/pool")
            await expect(page.get_by_role("button", name="Test a", exact=True)).to_be_disabled()
            await page.goto(f"{it.api.url}/console/#/runs/{run}")
            await until_finished(page)
            assert await page.get_by_role("button", name="Good answer").count() == 0
        assert tab.faults == []


async def test_a_worker_can_be_tested_and_its_circuit_state_is_explained() -> None:
    workers = [
        scripted("well", "Ready.", price=PRICE),
        scripted("ill", {"error": "unavailable"}, retry={"attempts": 1}),
    ]
    async with served(team(workers=workers, workflows={})) as api, browsing() as browser, open_page(browser, api.url) as tab:  # fmt: skip
        page = tab.page
        dialog = page.get_by_role("dialog")
        await page.locator("nav").get_by_role("link", name="Pool").click()
        for name, says in (("well", "well answered in"), ("ill", "")):
            await page.get_by_role("button", name=f"Test {name}").click()
            for _ in range(1 if says else 3):
                await dialog.get_by_role("button", name="Send").click()
                await expect(dialog.get_by_role("button", name="Send")).to_be_enabled()
            await expect(dialog.locator(".banner" if says else ".alert")).to_contain_text(says or "ill")
            await page.keyboard.press("Escape")
        cards = page.locator(".worker")
        await expect(cards.filter(has_text="3 calls failed in a row.")).to_contain_text(re.compile("Circuit open|Testing"))  # fmt: skip
        await expect(cards.filter(has_text="Healthy").filter(has_text="1 ok")).to_have_count(1)
        assert tab.clean == []


async def test_the_overview_counts_requests_calls_and_costs_and_plots_them() -> None:
    async with served(pool()) as api, browsing() as browser, open_page(browser, api.url) as tab:
        page = tab.page
        await page.locator("nav").get_by_role("link", name="Overview").click()
        await expect(page.locator(".empty")).to_contain_text("No requests yet.")
        for model in ("c", "c", "mini"):
            await api.ok({"model": model})
        await page.reload()
        await expect(page.locator(".figure").filter(has_text="Requests")).to_contain_text("3")
        await expect(page.locator(".figure").filter(has_text="Errors")).to_contain_text("0 of 3 failed")
        assert await page.locator(".plot .bar-fill").count() in (1, 2), "they may be in two half hours"
        await page.get_by_role("group", name="Group by").get_by_role("button", name="Worker").click()
        rows = page.locator("tbody tr")
        await expect(rows).to_have_count(4)
        await expect(rows.first).to_contain_text("c")
        await expect(page.locator(".plot-legend li")).to_have_count(4)
        for name in ("Cost", "Tokens", "Latency", "Errors", "Cached"):
            await page.get_by_role("button", name=re.compile(f"^{name}")).click()
            await expect(page.locator(".plot")).to_be_visible()
        await page.get_by_role("button", name="1 hour").click()
        await expect(rows).to_have_count(4)
        assert tab.faults == []


async def test_the_months_costs_are_plotted_by_model_worker_team_and_key(tmp_path: Path) -> None:
    async with spent(make_file(tmp_path / "podium.db")) as (api, secrets), browsing() as browser:
        headers = {"authorization": f"Bearer {secrets['admin']}"}
        days = (await api.http.get("/v1/costs?by=day", headers=headers)).json()["data"]
        cost, saved, estimate = (sum(Decimal(day[name]) for day in days) for name in ("cost_usd", "saved_usd", "baseline_usd"))  # fmt: skip
        async with open_page(browser, api.url) as tab:
            page = tab.page
            await enter_key(page, secrets["admin"])
            await page.locator("nav").get_by_role("link", name="Costs").click()
            figures = page.locator(".figure")
            await expect(figures.filter(has_text="per day")).to_contain_text(f"${cost:.2f}")
            await expect(figures.filter(has_text="Saved by caches")).to_contain_text(f"${saved:.2f}")
            await expect(figures.filter(has_text="Saved against claude-opus")).to_contain_text(re.compile(rf"\${estimate - cost:.2f}.*estimate: \${estimate:.2f}"))  # fmt: skip
            for group, names in (
                ("Worker", ["claude-sonnet", "gpt-5-mini", "haiku"]),
                ("Team", ["support", "engineering"]),
                ("Key", ["help desk", "chat widget", "coding agent"]),
                ("Model", ["podium-mini", "podium-ultra"]),
            ):
                await page.get_by_role("group", name="Group by").get_by_role("button", name=group).click()
                await expect(page.locator("tbody tr")).to_have_count(len(names))
                for name in names:
                    await expect(page.locator("tbody")).to_contain_text(name)
                await expect(page.locator(".plot .bar-fill").first).to_be_visible()
            for name, title in (("Cached", "Share of input"), ("Saved by", "per day"), ("Saved against", "(estimate)")):  # fmt: skip
                await page.get_by_role("button", name=re.compile(f"^{name}")).click()
                await expect(page.locator(".card h2")).to_contain_text(title)
                assert await violations(page) == []
            await expect(page.locator("main")).to_contain_text(
                f"The ledger has ${cost:.2f} for these requests."
            )
            await page.get_by_role("button", name="7 days").click()
            await expect(figures.filter(has_text="per day")).not_to_contain_text(f"${cost:.2f}")
            assert tab.faults == []
        async with open_page(browser, api.url) as tab:
            await enter_key(tab.page, secrets["help desk"])
            await tab.page.goto(f"{api.url}/console/#/costs")
            await tab.page.get_by_role("group", name="Group by").get_by_role("button", name="Team").click()
            await expect(tab.page.locator("tbody tr")).to_have_count(1)
            await expect(tab.page.locator("tbody tr")).to_contain_text("support")
            await expect(tab.page.locator("main")).not_to_contain_text("The ledger has")
            assert (tab.faults, [url for url in tab.urls if "/v1/admin" in url]) == ([], [])


async def test_the_costs_page_of_an_unused_server_is_empty() -> None:
    async with served(pool()) as api, browsing() as browser, open_page(browser, api.url) as tab:
        await tab.page.goto(f"{api.url}/console/#/costs")
        await expect(tab.page.locator(".empty")).to_contain_text("No costs in this time.")
        assert await tab.page.locator(".figure, table, .plot").count() == 0
        assert tab.faults == []


async def test_a_conversations_turn_shows_why_it_has_no_plan_and_its_cache_savings(
    tmp_path: Path,
) -> None:
    async with spent(make_file(tmp_path / "podium.db")) as (api, secrets), browsing() as browser:
        headers = {"authorization": f"Bearer {secrets['admin']}"}
        runs = (await api.http.get("/v1/workflows?limit=1000", headers=headers)).json()["data"]
        run = next(run for run in runs if run["cached_share"] and run["plans"][0]["source"] == "conversation")
        turns = [each for each in runs if each["conversation"] == run["conversation"]]
        async with open_page(browser, api.url) as tab:
            page = tab.page
            await enter_key(page, secrets["admin"])
            await page.goto(f"{api.url}/console/#/runs/{run['id']}")
            await expect(page.locator(".plan")).to_contain_text("answers without a plan. Reading this conversation again would cost")  # fmt: skip
            await expect(page.locator(".facts")).to_contain_text(re.compile(r"\d+ % cached, (saved|cost) "))
            await expect(node(page, 1)).to_contain_text("% cached")
            await node(page, 1).click()
            await expect(page.locator(".details")).to_contain_text(re.compile(r"Cache\s*\d+"))
            await page.get_by_role("link", name="runs of this conversation").click()
            await expect(page.locator("tbody tr")).to_have_count(len(turns))
            await expect(page.locator("tbody tr").first).to_contain_text(run["messages"][0]["content"])
            assert tab.faults == []


async def test_a_page_of_runs_needs_one_request() -> None:
    async with served(pool()) as api, browsing() as browser, open_page(browser, api.url) as tab:
        for n in range(5):
            await api.ok({"model": "c", "messages": [{"role": "user", "content": f"Question {n}?"}]})
        tab.urls.clear()
        await tab.page.locator("nav").get_by_role("link", name="Runs").click()
        await tab.page.get_by_role("button", name="Live").click()
        for n in range(5):
            await expect(tab.page.locator("tbody")).to_contain_text(f"Question {n}?")
        assert len([url for url in tab.urls if "/v1/workflows" in url]) == 1
        assert tab.faults == []


async def test_a_new_run_appears_in_the_list_without_a_reload() -> None:
    async with served(pool()) as api, browsing() as browser, open_page(browser, api.url) as tab:
        page = tab.page
        await page.locator("nav").get_by_role("link", name="Runs").click()
        await expect(page.locator(".empty")).to_contain_text("No runs yet.")
        await api.ok({"model": "c", "messages": [{"role": "user", "content": "Who is there?"}]})
        await expect(page.locator("tbody tr")).to_have_count(1, timeout=15_000)
        await expect(page.locator("tbody tr")).to_contain_text("Who is there?")
        await page.get_by_role("button", name="Live").click()
        await api.ok({"model": "c"})
        await asyncio.sleep(4)
        await expect(page.locator("tbody tr")).to_have_count(1)
        await page.get_by_role("button", name="Live").click()
        await expect(page.locator("tbody tr")).to_have_count(2, timeout=15_000)
        assert tab.faults == []


async def test_the_user_can_choose_the_colours() -> None:
    async with served(pool()) as api, browsing() as browser, open_page(browser, api.url, color_scheme="light") as tab:  # fmt: skip
        page = tab.page
        paper = "getComputedStyle(document.documentElement).backgroundColor"
        light = await page.evaluate(paper)
        for _ in range(2):
            await page.get_by_role("button", name="Colours").click()
        assert await page.evaluate(paper) != light
        await page.reload()
        assert await page.evaluate(paper) != light
        assert await page.evaluate("Object.keys(localStorage).join()") == "podium.theme"
        assert tab.faults == []


async def test_a_plan_is_discarded_when_the_question_changes() -> None:
    async with served(pool()) as api, browsing() as browser, open_page(browser, api.url) as tab:
        page = tab.page
        question = page.get_by_label("Your question", exact=True)
        for change in ("type", "press"):
            await question.fill("Iron or wool?")
            await page.get_by_role("button", name="Preview the plan").click()
            await expect(page.get_by_role("status")).to_contain_text("Maximum cost")
            await expect(page.locator(".plan-editor li")).to_have_count(3)
            if change == "type":
                await question.fill("Tea or coffee?")
                await expect(page.locator(".plan-editor")).to_have_count(0)
                await expect(page.get_by_role("status")).to_be_empty()
        await page.get_by_role("group", name="Examples").get_by_role("button").first.click()
        await until_finished(page)
        assert [each["source"] for each in (await api.newest())["plans"]] == ["conductor"]
        assert tab.clean == []


async def test_an_unknown_address_shows_the_first_page() -> None:
    async with served(pool()) as api, browsing() as browser, open_page(browser, api.url) as tab:
        await tab.page.goto(f"{api.url}/console/#/runs/%E0%A4%A")
        await tab.page.reload()
        await expect(tab.page.get_by_label("Your question", exact=True)).to_be_visible()
        assert tab.clean == []


async def test_a_spent_budget_and_a_rejected_question_are_explained(
    tmp_path: Path,
) -> None:
    async with keyed(tmp_path, pool()) as it, browsing() as browser, open_page(browser, it.api.url) as tab:
        page = tab.page
        await it.ask("admin", "POST", f"/v1/admin/teams/{it.ids['search']}/budget", {"day_usd": "0.000001"})
        await enter_key(page, it.secrets["mine"])
        await expect(page.get_by_role("combobox", name="Model", exact=True)).to_contain_text("mini")
        await ask(page, "Why?")
        fault = page.locator(".fault, .alert").filter(has_text="budget")
        await expect(fault.first).to_be_visible()
        assert tab.clean == []


async def test_an_interrupted_feed_resumes_without_repeated_text() -> None:
    async with AsyncExitStack() as stack:
        api: Served = await stack.enter_async_context(served(pool()))
        cutter = await stack.enter_async_context(Cutter.between(api.url, b"/events", cut_after=b'"answer"'))
        browser = await stack.enter_async_context(browsing())
        tab = await stack.enter_async_context(open_page(browser, cutter.url))
        page = tab.page
        await ask(page, "Why?")
        await until_finished(page)
        assert cutter.n_cut == 1
        assert (await page.locator(".answer .said").inner_text()).count("epsilon") == 1
        await cutter.close()
        await page.locator("nav").get_by_role("link", name="Runs").click()
        alert = page.get_by_role("alert").filter(has_text="The server cannot be reached")
        await expect(alert).to_be_visible()  # the page before has two other alerts


async def test_a_second_tab_can_watch_and_stop_a_run(tmp_path: Path) -> None:
    slow = scripted("c", {"text": "one two three", "stall_after_tokens": 2}, price=PRICE)
    workers = [scripted("a", "A."), scripted("b", "B."), slow]
    async with served(team(WIDE, workers=workers)) as api, browsing() as browser, open_page(browser, api.url) as tab:  # fmt: skip
        await ask(tab.page, "Why?")
        await expect(tab.page.locator(".answer .said")).to_contain_text("one")
        other = await tab.page.context.new_page()
        await other.goto(tab.page.url)
        await expect(other.locator(".answer .said")).to_contain_text("one")
        await other.get_by_role("button", name="Cancel this run").click()
        for page in (tab.page, other):
            await expect(page.locator(".run-head .chip").first).to_have_text("cancelled")
        assert tab.faults == []


async def test_the_same_question_can_be_compared_on_another_plan() -> None:
    async with served(pool()) as api, browsing() as browser, open_page(browser, api.url) as tab:
        page = tab.page
        await ask(page, "Why?")
        await until_finished(page)
        await page.get_by_role("link", name="Ask again").click()
        await page.get_by_role("button", name="Remove step 2").click()
        reads = page.get_by_role("group", name="Steps that step 2 reads").get_by_role("button", name="1")
        await reads.click()
        await expect(reads).to_have_attribute("aria-pressed", "false")
        await page.locator(".grip").nth(0).drag_to(page.locator(".plan-editor li").nth(1))
        await expect(reads).to_have_attribute("aria-pressed", "true")
        await page.locator(".plan-editor select").first.select_option("b")
        await page.get_by_role("button", name="Ask", exact=False).last.click()
        await expect(page.locator(".compare > section")).to_have_count(2)
        await expect(page.locator(".run-head .chip").nth(1)).to_have_text("finished", timeout=15_000)
        assert await page.locator(".compare > section").nth(0).locator(".node").count() == 3
        assert await page.locator(".compare > section").nth(1).locator(".node").count() == 2
        assert [(each["worker"], each["access"]) for each in (await api.newest())["steps"]] == [
            ("b", []),
            ("c", [0]),
        ]
        assert tab.faults == []


async def test_an_evaluation_report_is_shown_next_to_live_traffic(tmp_path: Path) -> None:
    outcome = RunOutcome(cost_usd=Decimal("0.001"), wall_s=1.5)
    results = [Result("alone", str(n), "made", "sums", "", n > 0, "1", "", outcome) for n in range(4)]
    figures = {"title": "Sums " + EVIL, "rows": [row("one model alone", "", results, 4, {}, "")], "comparisons": [], "date": "", "command": "", "machine": "", "questions": {}, "warnings": []}  # fmt: skip
    file, wrong = tmp_path / "report.json", tmp_path / "wrong.json"
    file.write_text(json.dumps(figures))
    wrong.write_text('{"rows": 3}')
    async with served(pool()) as api, browsing() as browser, open_page(browser, api.url) as tab:
        page = tab.page
        await api.ok({"model": "c"})
        await page.locator("nav").get_by_role("link", name="Compare").click()
        await expect(page.locator("tbody tr")).to_have_count(1)
        await page.locator("input[type=file]").set_input_files(wrong)
        await expect(page.get_by_role("alert")).to_contain_text("not a report.json")
        await page.locator("input[type=file]").set_input_files(file)
        await expect(page.locator("tbody tr").first).to_contain_text("75.0 %")
        await expect(page.locator(".plot circle")).to_have_count(1)
        assert await page.locator(".plot .cost").count() == 1
        axe_faults = await violations(page)
        assert (axe_faults, tab.faults, await page.evaluate("window.hacked")) == ([], [], None)
        assert not [url for url in tab.urls if "report" in url]


@pytest.mark.parametrize("slower", [4, 6])
async def test_the_page_loads_quickly_on_a_slow_computer(slower: int) -> None:
    async with served(pool()) as api, browsing() as browser, open_page(browser, api.url) as tab:
        page = tab.page
        await expect(page.locator(".composer select")).to_have_value("mini")
        cdp = await page.context.new_cdp_session(page)
        await cdp.send("Emulation.setCPUThrottlingRate", {"rate": slower})
        painted, usable = list[float](), list[float]()
        for _ in range(5):
            await page.reload(wait_until="load")
            await expect(page.locator(".composer select")).to_have_value("mini")
            usable.append(float(await page.evaluate("performance.now()")))
            painted.append(float(await page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")))  # fmt: skip
        weight = sum(
            len(gzip.compress((FOLDER / name).read_bytes())) for name in ("console.js", "console.css")
        )
        print(
            f"CPU {slower}x slower: painted {sorted(painted)[2]:.0f} ms, usable {sorted(usable)[2]:.0f} ms; {weight / 1000:.1f} kB gzip"
        )
        assert weight < 60_000
        assert sorted(usable)[2] < 5_000


async def test_a_hundred_runs_can_be_watched_at_the_same_time() -> None:
    async with served(team(workers=[scripted("slow", LETTERS, tokens_per_s=6)], workflows={})) as api:
        body = {"model": "slow", "stream": True, "podium": {"keep": True}}
        runs = [asyncio.create_task(api.post(body)) for _ in range(100)]
        began_s = time.perf_counter()
        while (
            len(listed := (await api.http.get("/v1/workflows", params={"limit": 100})).json()["data"]) < 100
        ):
            await asyncio.sleep(0.05)
        texts = await asyncio.gather(*(api.http.get(f"/v1/workflows/{each['id']}/events") for each in listed))
        print(f"100 runs watched to their end in {time.perf_counter() - began_s:.1f} s")
        assert [text.text.count("event: end") for text in texts] == [1] * 100
        await asyncio.gather(*runs)


async def test_runs_are_filtered_by_status_model_worker_words_and_cost() -> None:
    async with served(pool()) as api, browsing() as browser:
        for model in ("c", "a"):
            await api.ok({"model": model})
        async with open_page(browser, f"{api.url}") as tab:
            page = tab.page
            await page.locator("nav").get_by_role("link", name="Runs").click()
            rows = page.locator("tbody tr")
            await expect(rows).to_have_count(2)
            await page.get_by_role("searchbox", name="Text in question or answer").fill("epsilon zeta")
            await expect(rows).to_have_count(1)
            await expect(rows).to_contain_text("finished")
            await page.get_by_text("More filters").click()
            await page.get_by_role("combobox", name="Worker").select_option("a")
            await expect(page.get_by_text("No run matches.")).to_be_visible()
            await page.get_by_role("searchbox", name="Text in question or answer").fill("")
            await expect(rows).to_have_count(1)
            await page.get_by_role("combobox", name="Status").select_option("failed")
            await expect(rows).to_have_count(0)
            assert tab.faults == []


async def test_a_run_that_waits_for_client_tools_shows_calls_and_results() -> None:
    team_of_tools = calling_team(arguments=json.dumps({"city": EVIL}))
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    options: Any = {"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce"}
    async with served(team_of_tools) as api, browsing() as browser, open_page(browser, api.url, **options) as tab:  # fmt: skip
        page = tab.page
        body = {"messages": [{"role": "user", "content": "Rome?"}], "tools": tools}
        turn = (await api.ok(body))["choices"][0]["message"]
        id = (await api.newest())["id"]
        await page.goto(f"{api.url}/console/#/runs/{id}")
        await expect(node(page, 1)).to_contain_text("waiting for tools")
        await expect(page.locator(".timeline")).to_contain_text("so far")
        await node(page, 1).click()
        await expect(page.locator(".tool-call")).to_contain_text("<script>window.hacked=1</script>")
        await expect(page.locator(".tool-call .chip")).to_have_text("no result yet")
        axe_faults = await violations(page)
        result = {"role": "tool", "tool_call_id": turn["tool_calls"][0]["id"], "content": f"Sun. {EVIL}"}
        await api.ok(body | {"messages": [*body["messages"], turn, result]})
        await until_finished(page)
        await expect(page.locator(".tool-result")).to_contain_text("Sun. <img src=x")
        await expect(page.locator(".timeline")).not_to_contain_text("so far")
        assert await page.locator(".bar.tools").count() == 2, "one in the legend, one of the step"
        width = "document.querySelector('.row-bars .bar.tools').getBoundingClientRect().width"
        assert float(await page.evaluate(width)) > 20, "the client's time is drawn, and it is long"
        await page.reload()
        await until_finished(page)
        assert await page.locator(".bar.tools").count() == 2
        axe_faults += await violations(page)
        assert await page.evaluate("window.hacked") is None
        assert (axe_faults, tab.faults) == ([], [])


async def test_a_rating_and_its_expected_answer_are_stored_with_the_run() -> None:
    async with served(pool()) as api, browsing() as browser, open_page(browser, api.url) as tab:
        page = tab.page
        await ask(page, "Why?")
        await until_finished(page)
        await page.get_by_role("button", name="Bad answer").click()
        await expect(page.get_by_role("button", name="Bad answer")).to_have_attribute("aria-pressed", "true")
        await page.get_by_text("Add details").click()
        await page.get_by_label("Right answer").fill(EVIL)
        await page.get_by_role("button", name="Save details").click()
        await expect(page.locator(".feedback [role=status]")).to_contain_text("Right answer: <img")
        axe_faults = await violations(page)
        await page.reload()
        await expect(page.locator(".feedback [role=status]")).to_contain_text("Rated 0 of 100.")
        [feedback] = (await api.newest())["feedback"]
        assert (feedback["score"], feedback["expected"]) == (0.0, EVIL)
        await page.goto(f"{api.url}/console/#/runs")
        await page.get_by_text("More filters").click()
        await page.get_by_label("Only rated runs").check()
        await expect(page.locator("tbody tr")).to_have_count(1)
        assert (axe_faults, tab.faults, await page.evaluate("window.hacked")) == ([], [], None)
