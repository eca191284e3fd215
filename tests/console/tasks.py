"""Count of the actions for fourteen everyday tasks in the console: `python -m tests.console.tasks`. Filling a field,
choosing an option, and pressing a button or link count as one action each. Reading does not count.
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.async_api import Locator, Page, expect

from tests.console.browser_faults import LETTERS
from tests.console.chromium import browsing, enter_key, open_page, until_finished
from tests.serving.api.keyed import Keyed, keyed
from tests.serving.api.served import PRICE, Json, plan, scripted, step, team


def settings() -> Json:
    """Return a team of three workers, one that always fails and one that is slow."""
    workers = [
        scripted("a", "A.", price=PRICE),
        scripted("b", "B.", price=PRICE, delay_s=0.5),
        scripted("c", LETTERS, price=PRICE, tokens_per_s=30),
        scripted("broken", {"error": "unavailable"}, in_pool=False),
        scripted("slow", LETTERS, tokens_per_s=2, in_pool=False),
    ]
    written = plan(step("a", "For."), step("b", "Against."), step("c", "Conclude.", [0, 1]))
    return team(written, workers=workers, workflows={})


class Hand:
    """Counted actions of a user."""

    def __init__(self, page: Page) -> None:
        self.page, self.acts = page, 0

    async def press(self, name: str, kind: str = "button") -> None:
        self.acts += 1
        await self.page.get_by_role(kind, name=name).first.click()  # pyright: ignore[reportArgumentType]

    async def fill(self, field: Locator, text: str) -> None:
        self.acts += 1
        await field.fill(text)

    async def choose(self, label: str, option: str) -> None:
        self.acts += 1
        await self.page.get_by_role("combobox", name=label).select_option(option)

    async def open(self, summary: str) -> None:
        self.acts += 1
        await self.page.get_by_text(summary).first.click()

    async def go(self, name: str) -> None:
        self.acts += 1
        await self.page.locator("nav").get_by_role("link", name=name).click()

    async def open_run(self) -> None:
        self.acts += 1
        await self.page.locator("tbody tr").first.get_by_role("link").first.click()


async def dearest(hand: Hand) -> None:
    await hand.go("Runs")
    await hand.open_run()
    await expect(hand.page.locator(".node-foot").nth(2)).to_contain_text("¢")


async def why_so_long(hand: Hand) -> None:
    await hand.go("Runs")
    await hand.open_run()
    await expect(hand.page.locator(".row.critical")).to_have_count(2)


async def who_failed(hand: Hand) -> None:
    await hand.go("Runs")
    await hand.choose("Status", "failed")
    await expect(hand.page.locator("tbody tr")).to_have_count(1)
    await hand.open_run()
    await expect(hand.page.locator(".fault").first).to_contain_text("broken")


async def price(hand: Hand) -> None:
    await hand.fill(hand.page.get_by_label("Your question", exact=True), "Worth it?")
    await hand.press("Preview the plan")
    await expect(hand.page.get_by_role("status")).to_contain_text("Maximum cost")


async def no_more_than(hand: Hand) -> None:
    await hand.fill(hand.page.get_by_label("Your question", exact=True), "Worth it?")
    await hand.open("Effort, limits and workers")
    await hand.fill(hand.page.get_by_label("Maximum cost ($)"), "0.05")
    await hand.press("Ask Ctrl Enter")
    await until_finished(hand.page)


async def watch(hand: Hand) -> None:
    await hand.go("Runs")
    await hand.choose("Status", "running")
    await expect(hand.page.locator("tbody tr")).to_have_count(1)
    await hand.open_run()
    await expect(hand.page.locator(".answer .said")).to_contain_text("alpha")


async def without_a_worker(hand: Hand) -> None:
    await hand.fill(hand.page.get_by_label("Your question", exact=True), "Worth it?")
    await hand.open("Effort, limits and workers")
    hand.acts += 1
    await hand.page.get_by_role("group", name="Workers").get_by_label("b", exact=True).uncheck()
    await hand.press("Ask Ctrl Enter")
    await expect(hand.page.locator(".run-head")).to_be_visible()


async def own_plan(hand: Hand) -> None:
    await hand.go("Runs")
    await hand.open_run()
    await hand.press("Ask again with another plan", "link")
    await hand.press("Remove step 2")
    await hand.press("Ask Ctrl Enter")
    await expect(hand.page.locator(".compare > section")).to_have_count(2)


async def key_for_a_team(hand: Hand) -> None:
    await hand.go("Keys")
    dialog = hand.page.get_by_role("dialog")
    await hand.press("New team")
    await hand.fill(dialog.get_by_label("Name"), "A")
    await hand.fill(dialog.get_by_label("Per day ($)"), "5")
    await hand.press("Create team")
    await expect(dialog).to_have_count(0)
    await hand.press("New key")
    await hand.fill(dialog.get_by_label("Name"), "app")
    await hand.choose("Team", "A")
    await hand.press("Create key")
    await expect(dialog.get_by_role("status").locator("code")).to_contain_text("pk_")
    await hand.press("Done")
    await expect(hand.page.get_by_label("Teams")).to_contain_text("of $5")


async def who_runs_out(hand: Hand) -> None:
    await hand.go("Keys")
    await expect(hand.page.get_by_label("Teams")).to_contain_text("of $5")


async def new_secret(hand: Hand) -> None:
    await hand.go("Keys")
    await hand.press("Edit app")
    await hand.press("Create a new secret")
    await hand.press("Yes, create a new secret")
    await expect(hand.page.get_by_role("dialog").locator("code").first).to_contain_text("pk_")


async def what_it_cost(hand: Hand) -> None:
    await hand.go("Overview")
    await hand.press("Worker")
    await expect(hand.page.locator("tbody tr").first).to_be_visible()


async def is_it_well(hand: Hand) -> None:
    await hand.go("Pool")
    await hand.press("Test a")
    await hand.press("Send")
    await expect(hand.page.locator(".banner.good").last).to_contain_text("answered in")


async def of_a_worker_over_a_cent(hand: Hand) -> None:
    await hand.go("Runs")
    await hand.open("More filters")
    await hand.choose("Worker", "c")
    await hand.fill(hand.page.get_by_label("Minimum cost ($)"), "0.00001")
    await expect(hand.page.locator("tbody tr").first).to_be_visible()


TASKS = (dearest, why_so_long, who_failed, price, no_more_than, own_plan, without_a_worker, key_for_a_team, who_runs_out, new_secret, of_a_worker_over_a_cent, watch, what_it_cost, is_it_well)  # fmt: skip


async def prepare(it: Keyed) -> None:
    """Create a failed run and a finished one."""
    for model in ("broken", "mini"):
        body = {"model": model, "messages": [{"role": "user", "content": "Why?"}]}
        await it.ask("mine", "POST", "/v1/chat/completions", body)


async def main() -> None:
    """Do all tasks and print the number of actions of each."""
    with TemporaryDirectory() as folder:
        async with keyed(Path(folder), settings()) as it, browsing() as browser:
            await prepare(it)
            async with open_page(browser, it.api.url) as tab:
                await enter_key(tab.page, it.secrets["admin"])
                for task in TASKS:
                    body = {"model": "slow", "messages": [{"role": "user", "content": "Slowly?"}]}
                    under_way = [asyncio.create_task(it.ask("mine", "POST", "/v1/chat/completions", body))] if task is watch else []  # fmt: skip
                    await tab.page.goto(f"{it.api.url}/console/#/ask")
                    hand = Hand(tab.page)
                    await task(hand)
                    print(f"{task.__name__}: {hand.acts}", flush=True)
                    await asyncio.gather(*under_way)


if __name__ == "__main__":
    asyncio.run(main())
