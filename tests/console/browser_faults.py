"""Faults during a run, inner runs, and runs of another router, in a real Chromium: part of `make browser-test`."""

from pathlib import Path

from playwright.async_api import Page, expect

from serving.database.address import sqlite_address
from tests.console.chromium import ask, browsing, node, open_page, until_finished, violations
from tests.serving.api.served import Json, plan, scripted, served, step, team
from tests.serving.store.stores import replicas
from tests.serving.workers.subjects import Behaviour, ScriptedEngine

LETTERS = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda my"
BREAKS: Json = {"text": LETTERS, "fail_after_tokens": 4}


def fault_team() -> Json:
    """Return a team whose first step fails at first, whose second breaks off before its text is shown, and whose
    answer breaks off visibly.
    """
    workers = [
        scripted("flaky", {"error": "unavailable"}, LETTERS, tokens_per_s=8),
        scripted("breaks", BREAKS, LETTERS, tokens_per_s=6),
        scripted("last", BREAKS, LETTERS, tokens_per_s=8, on_broken_stream="continue"),
    ]
    text = plan(step("flaky", "Say it."), step("breaks", "Say it too."), step("last", "Conclude.", [0, 1]))
    return team(text, workers=workers, workflows={}, models={"mini": {}})


async def record_deltas(page: Page) -> None:
    """Record the type of each event that the page receives in `window.events`."""
    await page.add_init_script(
        """window.events = []; const parse = JSON.parse;
        JSON.parse = (text, ...rest) => { const value = parse(text, ...rest); if (value?.type) window.events.push(value.type); return value; };"""
    )
    await page.reload()


async def test_faults_during_a_run_are_shown_and_no_text_is_repeated() -> None:
    async with served(fault_team()) as api, browsing() as browser, open_page(browser, api.url) as tab:
        page = tab.page
        await record_deltas(page)
        await ask(page, "Does it go on?")
        await node(page, 1).click()
        await expect(page.locator(".details")).to_contain_text("Earlier attempts")
        await expect(node(page, 1)).to_contain_text("running")
        await node(page, 2).click()
        await expect(page.locator(".details")).to_contain_text("The step restarts.")
        await node(page, 3).click()
        await expect(page.locator(".details")).to_contain_text("The step continues.")
        await until_finished(page)
        await expect(page.locator(".answer .said")).to_have_text(LETTERS)
        events = await page.evaluate("window.events")
        assert {"call_failed", "step_restarted", "step_continued"} <= {*events}
        for number in (1, 2, 3):
            await expect(node(page, number)).to_contain_text("2 attempts")
            await node(page, number).click()
            await expect(page.locator(".details .said")).to_have_text(LETTERS)
        axe_faults = await violations(page)
        assert (axe_faults, tab.faults) == ([], [])


async def test_a_second_routers_page_can_watch_a_run(tmp_path: Path) -> None:
    settings = team(workers=[scripted("slow", LETTERS, tokens_per_s=5)], workflows={})
    address = sqlite_address(tmp_path / "podium.db")
    async with (
        replicas(address, settings) as (one, other),
        browsing() as browser,
        open_page(browser, one.api.url) as tab,
        open_page(browser, other.api.url) as there,
    ):
        await tab.page.get_by_role("combobox", name="Model", exact=True).select_option("slow")
        await ask(tab.page, "Who is watching?")
        await expect(tab.page.locator(".answer .said")).to_contain_text("alpha")
        await there.page.goto(tab.page.url.replace(one.api.url, other.api.url))
        await expect(there.page.locator(".answer .said")).to_contain_text("beta")
        await expect(there.page.locator(".run-head .chip").first).to_have_text("running")
        for page in (tab.page, there.page):
            await until_finished(page)
            await expect(page.locator(".answer .said")).to_have_text(LETTERS)
        metadata = (await other.api.ok({"model": "slow"}))["podium"]
        await there.page.goto(other.api.url + metadata["console_url"])
        await expect(there.page.locator(".run-head code")).to_have_text(metadata["workflow_id"])
        assert (tab.faults, there.faults) == ([], [])


async def test_an_inner_run_is_shown_in_the_panel_of_its_step() -> None:
    outer, inner = plan(step("team")), plan(step("a", "Look into it."), step("b", "Conclude.", [0]))
    workers = [scripted("a", "Looked into."), scripted("b", "Concluded.")]
    settings = team(outer, inner, workers=workers, workflows={}, models={"mini": {"depth": 2}})
    async with served(settings) as api, browsing() as browser, open_page(browser, api.url) as tab:
        await ask(tab.page, "Why?")
        await until_finished(tab.page)
        await node(tab.page, 1).click()
        await expect(tab.page.locator(".details .inner > li")).to_have_count(2)
        await expect(tab.page.locator(".details .inner")).to_contain_text("Looked into.")
        assert (await violations(tab.page), tab.faults) == ([], [])


async def test_a_plan_and_its_price_are_shown_before_it_runs() -> None:
    price = {"input_usd_per_mtok": 1, "output_usd_per_mtok": 2}
    workers = [scripted("a", "A.", price=price), scripted("b", "B.", price=price)]
    settings = team(plan(step("a", "Look."), step("b", "Conclude.", [0])), workers=workers, workflows={})
    async with served(settings) as api, browsing() as browser, open_page(browser, api.url) as tab:
        page = tab.page
        await page.get_by_label("Your question", exact=True).fill("What would it cost?")
        await page.get_by_role("button", name="Preview the plan").click()
        await expect(page.get_by_role("status")).to_contain_text("Maximum cost of this plan: ")
        await expect(page.get_by_role("status")).to_contain_text("¢")
        await expect(page.locator(".plan-editor li")).to_have_count(2)
        assert not api.worker("a").calls
        axe_faults = await violations(page)
        await ask(page, "What would it cost?")
        await until_finished(page)
        assert (await api.newest())["plans"][0]["source"] == "client"
        assert (axe_faults, tab.faults) == ([], [])


async def test_the_pool_names_the_adapter_that_a_worker_answers_with() -> None:
    engines = {"local": ScriptedEngine(Behaviour(text="It is so."))}
    over = {"name": "tuned", "kind": "vllm", "deployment": "local", "adapter": "adapters/sums@1a2b3c4d"}
    local = {"name": "local", "kind": "vllm", "model": "m", "engine": {"enable_lora": True}}
    settings = {"workers": [local, over], "models": {}}
    async with (
        served(settings, engines=engines) as api,
        browsing() as browser,
        open_page(browser, api.url) as tab,
    ):
        await tab.page.locator("nav").get_by_role("link", name="Pool").click()
        await expect(tab.page.locator(".cards li").nth(1)).to_contain_text("the adapter sums@1a2b3c4d")
        await expect(tab.page.locator(".cards li").nth(0)).not_to_contain_text("adapter")
        assert (await violations(tab.page), tab.faults) == ([], [])
