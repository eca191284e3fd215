"""Visit to a running server's console in a real Chromium: `python -m tests.console.visit URL`, with PODIUM_API_KEY if
a key is needed. It runs the first example, views the run live, replayed, after a reload and in a second tab, and
opens the other pages. Prints the faults as JSON, and exits with 1 if there are any.
"""

import asyncio
import json
import os
import sys
import time
from typing import Any

from playwright.async_api import Page, expect

from tests.console.chromium import ObservedPage, browsing, enter_key, open_page, violations

WITHIN_MS = 240_000.0
"""Milliseconds that the example may take: the default's models run on a CPU."""
PAGES = (
    ("runs", "finished"),
    ("overview", "over time"),
    ("pool", "Workers"),
    ("evaluation", "live traffic"),
    ("keys", "Keys"),
)


async def visit(url: str, key: str) -> dict[str, Any]:
    async with browsing() as browser, open_page(browser, url) as tab:
        page = tab.page
        if key:
            await enter_key(page, key)
        axe = await violations(page)
        began_s = time.monotonic()
        await page.locator(".examples button").first.click()
        chip = page.locator(".run-head .chip").first
        await expect(chip).to_have_text("running", timeout=WITHIN_MS)
        shown_s = time.monotonic() - began_s
        other = await page.context.new_page()
        await other.goto(page.url)
        for each in (page, other):
            await expect(each.locator(".run-head .chip").first).to_have_text("finished", timeout=WITHIN_MS)
        took_s = time.monotonic() - began_s
        axe += await violations(page)
        n_nodes, answer = (
            await page.locator(".node").count(),
            await page.locator(".answer .said").inner_text(),
        )
        axe += await play_again(page)
        await page.reload()
        await expect(page.locator(".answer .said")).to_have_text(answer)
        for path, shows in PAGES:
            await page.goto(f"{url}/console/#/{path}")
            await expect(page.locator("main")).to_contain_text(shows)
            axe += await violations(page)
        return found_of(tab, axe) | {"shown_s": round(shown_s, 2), "took_s": round(took_s, 1), "nodes": n_nodes, "answer_chars": len(answer)}  # fmt: skip


async def play_again(page: Page) -> list[str]:
    """Replay the run from its beginning, and open its first step."""
    await page.get_by_label("Replay position").focus()
    await page.keyboard.press("Home")
    await expect(page.locator(".run-head .chip").first).to_have_text("running")
    await page.get_by_label("Replay speed").fill("50")
    await page.keyboard.press("Enter")
    await expect(page.locator(".run-head .chip").first).to_have_text("finished", timeout=30_000)
    await page.locator(".node").first.click()
    await expect(page.locator(".details dl")).to_contain_text("Time to first token")
    return await violations(page)


def found_of(tab: ObservedPage, axe: list[str]) -> dict[str, Any]:
    """Group the faults by kind."""
    policy = [fault for fault in tab.faults if fault.startswith("CSP: ")]
    others = [fault for fault in tab.faults if fault not in policy]
    return {"axe": axe, "csp": policy, "console": others, "hosts": sorted(tab.hosts)}


def main() -> int:
    report = asyncio.run(visit(sys.argv[1].rstrip("/"), os.environ.get("PODIUM_API_KEY", "")))
    print(json.dumps(report, indent=1, ensure_ascii=False))
    return int(bool(report["axe"] or report["csp"] or report["console"]))


if __name__ == "__main__":
    sys.exit(main())
