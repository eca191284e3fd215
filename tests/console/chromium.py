"""System's Chromium, a page of the console in it, and common actions."""

import json
import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.async_api import Browser, BrowserContext, Locator, Page, async_playwright, expect

from serving.api.console import FOLDER
from tests.conftest import ROOT

AXE = ROOT / "build/console-source/node_modules/axe-core/axe.min.js"
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync"]  # fmt: skip


@dataclass
class ObservedPage:
    """A page and what it does.

    Args:
        page: the page.
        faults: errors on its console, exceptions and violations of its policy.
        urls: requested addresses.
    """

    page: Page
    faults: list[str] = field(default_factory=list[str])
    urls: list[str] = field(default_factory=list[str])

    @property
    def hosts(self) -> set[str]:
        return {url.split("/")[2] for url in self.urls}

    @property
    def clean(self) -> list[str]:
        """Return the faults without the browser's lines about 4xx and 5xx responses and unreachable servers."""
        return [fault for fault in self.faults if "Failed to load resource" not in fault]


@asynccontextmanager
async def browsing() -> AsyncGenerator[Browser]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert chromium, "there is no Chromium: apt install chromium"
    assert (FOLDER / "index.html").exists(), "the console is not built: make browser-test"
    assert AXE.exists(), "axe-core is not there: make browser-test"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield browser
        await browser.close()


@asynccontextmanager
async def open_page(browser: Browser, url: str, **options: Any) -> AsyncGenerator[ObservedPage]:
    context: BrowserContext = await browser.new_context(**options)
    await context.add_init_script(
        "addEventListener('securitypolicyviolation', (e) => console.error('CSP: ' + e.violatedDirective + ' ' + e.blockedURI))"
    )
    page = await context.new_page()
    page.set_default_timeout(10_000)
    tab = ObservedPage(page)
    page.on("console", lambda m: tab.faults.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: tab.faults.append(str(error)))
    page.on("request", lambda request: tab.urls.append(request.url))
    await page.goto(f"{url}/")
    yield tab
    await context.close()


async def ask(page: Page, question: str) -> None:
    await page.get_by_label("Your question", exact=True).fill(question)
    await page.keyboard.press("Control+Enter")


async def until_finished(page: Page) -> None:
    await expect(page.locator(".run-head .chip").first).to_have_text("finished", timeout=15_000)


async def enter_key(page: Page, secret: str, *, keeps: bool = False) -> None:
    box = page.locator("form.key")
    await box.locator("input[type=password]").fill(secret)
    if keeps:
        await box.get_by_label("Keep the key until this tab is closed").check()
    await box.get_by_role("button", name="Use key").click()


async def violations(page: Page) -> list[str]:
    """Return the violations that axe finds. Evaluate axe instead of adding a script, because the page's policy
    forbids that.
    """
    await page.evaluate(AXE.read_text())
    results = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['id']}: {[node['html'][:120] for node in each['nodes']]}" for each in results["violations"]
    ]


def node(page: Page, number: int) -> Locator:
    return page.locator(f'.node[data-step="0.{number - 1}"]')


async def tab_to(page: Page, text: str) -> None:
    """Press Tab until the text or label of the focused element starts with `text`."""
    shown = "(e => (e.labels?.[0] ?? e).innerText.trim() || e.getAttribute('aria-label') || '')(document.activeElement)"
    stops: list[str] = []
    for _ in range(60):
        await page.keyboard.press("Tab")
        stops.append(str(await page.evaluate(shown)))
        if stops[-1].startswith(text):
            return
    raise AssertionError(f"{text!r} is not reached: {stops}")


async def has_focus(page: Page, selector: str) -> bool:
    return bool(await page.evaluate(f"document.activeElement.matches({json.dumps(selector)})"))
