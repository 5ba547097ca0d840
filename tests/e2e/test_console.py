"""The console in a real Chromium: what an operator does, live parts, keyboard, both palettes, phone width, accessibility."""

import asyncio
import json
import os
import shutil
import time
from collections.abc import AsyncIterator
from importlib.resources import files
from typing import Any

import pytest
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

from gateway.demo import Stage

pytestmark = pytest.mark.e2e
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SECRET_WORDS = ("Nightly import drops rows", "Ada", "55555555-5555", "acme/issue/ENG-123")  # stand in the sample's body
PAGES = ("/", "/deliveries", "/subscriptions", "/dead", "/asks", "/sources/slack-acme", "/sources/confluence-acme")


@pytest.fixture(scope="module")
async def stage() -> AsyncIterator[Stage]:
    async with Stage() as running:
        yield running


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Browser]:
    if CHROMIUM is None and not os.environ.get("CI"):
        pytest.skip("no Chromium here: apt-get install chromium (CI has one)")
    assert CHROMIUM is not None, "CI must have a Chromium: apt-get install chromium"
    async with async_playwright() as playwright:
        yield await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


class Complaints(list[str]):
    """What the browser complained about: scripts that failed, a policy that was violated."""

    def watch(self, page: Page) -> Page:
        page.on("pageerror", lambda error: self.append(str(error)))
        page.on("console", lambda message: self.append(message.text) if message.type == "error" else None)
        return page


async def log_in(stage: Stage, context: BrowserContext, complaints: Complaints) -> Page:
    page = complaints.watch(await context.new_page())
    await page.goto(stage.admin + "/")
    assert page.url == stage.admin + "/login"
    await page.get_by_label("Operator token").fill(stage.operator_token)
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    return page


async def problems(page: Page) -> list[str]:
    """What axe-core finds, run as the page's own script would not be allowed to be."""
    await page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text())
    found: Any = await page.evaluate(
        "axe.run(document, {runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice']})"
    )
    return [
        f"{one['id']}: {one['nodes'][0]['html']} {one['nodes'][0]['failureSummary']}" for one in found["violations"]
    ]


async def test_what_an_operator_does(stage: Stage, browser: Browser) -> None:
    complaints, context = Complaints(), await browser.new_context()
    page = await log_in(stage, context, complaints)
    await expect(page.get_by_text("Nothing has arrived yet.")).to_be_visible()
    await expect(page.get_by_text("new", exact=True).first).to_be_visible()

    # live: a delivery of the provider appears without a reload
    sample = next(s for s in stage.samples if s["source"] == "linear-acme")
    headers, body = stage.signed(sample, time.time())
    async with stage.session.post(f"{stage.public}/hooks/linear-acme", data=body, headers=headers) as response:
        assert response.status == 200
        delivery = response.headers["gateway-delivery"]
    row = page.get_by_role("row", name="linear-acme")
    await expect(row.get_by_text("flowing", exact=True)).to_be_visible(timeout=15_000)
    await expect(page.get_by_role("img", name="1 forwarded")).to_be_visible()

    # a source that fails says why
    slack = next(s for s in stage.samples if s["source"] == "slack-acme")
    for _ in range(3):
        forged, bad = stage.signed(slack, time.time(), forged=True)
        async with stage.session.post(f"{stage.public}/hooks/slack-acme", data=bad, headers=forged) as response:
            assert response.status == 401
    await expect(page.get_by_text("Needs a look: 1 failing.")).to_be_visible(timeout=15_000)
    await page.get_by_role("link", name="slack-acme").click()
    await expect(page.get_by_text("3 refused in the last hour")).to_be_visible()
    await expect(page.get_by_text("Compare the secret with the provider's")).to_be_visible()

    # a test event takes the whole path
    await page.goto(f"{stage.admin}/sources/github-acme")
    await page.get_by_role("button", name="Send a test event").click()
    await expect(page.get_by_role("heading", name="Delivery")).to_be_visible()
    await expect(page.get_by_text("GitHub took it")).to_be_visible(timeout=15_000)

    # filters, and the explain view of one
    await page.goto(f"{stage.admin}/deliveries")
    await page.get_by_label("Outcome").select_option("rejected")
    await page.get_by_role("button", name="Show").click()
    await expect(page.get_by_role("row")).to_have_count(4)
    await page.goto(f"{stage.admin}/deliveries/{delivery}")
    await expect(page.get_by_role("listitem").filter(has_text="matched")).to_contain_text("done")

    # logged out is out
    await page.get_by_role("button", name="Log out").click()
    await page.goto(stage.admin + "/deliveries")
    assert page.url == stage.admin + "/login"
    assert complaints == []
    await context.close()


async def test_dead_letters_are_replayed_from_the_page(stage: Stage, browser: Browser) -> None:
    complaints, context = Complaints(), await browser.new_context()
    page = await log_in(stage, context, complaints)
    await script(stage, {"repo": "acme/app", "on": "dispatch", "answers": [{"status": 422}]})
    sample = next(s for s in stage.samples if s["source"] == "gitlab-acme")
    headers, body = stage.signed(sample, time.time())
    async with stage.session.post(f"{stage.public}/hooks/gitlab-acme", data=body, headers=headers) as response:
        assert response.status < 300
    await page.goto(stage.admin + "/dead")
    await expect(page.get_by_text("unprocessable")).to_be_visible(timeout=15_000)
    assert await problems(page) == []
    await page.get_by_role("button", name="Choose all shown").click()
    await page.get_by_role("button", name="Replay the chosen").click()
    await expect(page.get_by_text("None.")).to_be_visible(timeout=15_000)
    assert complaints == []
    await context.close()


async def script(stage: Stage, faults: dict[str, Any]) -> None:
    async with stage.session.post(f"{stage.github}/_double/script", data=json.dumps(faults)) as response:
        assert response.status < 300, await response.text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360, 320])
async def test_every_page_is_accessible_and_fits(stage: Stage, browser: Browser, scheme: Any, width: int) -> None:
    complaints = Complaints()
    context = await browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 844})
    page = await log_in(stage, context, complaints)
    async with stage.session.get(f"{stage.admin}/api/v1/deliveries", params={"limit": "3"}) as response:
        ids = [row["id"] for row in (await response.json())["deliveries"]]
    for path in (*PAGES, *(f"/deliveries/{ident}" for ident in ids), "/nowhere"):
        await page.goto(stage.admin + path)
        assert await problems(page) == [], path
        assert await page.evaluate("document.documentElement.scrollWidth") <= width, path
        text = await page.content()
        assert [word for word in SECRET_WORDS if word in text] == [], path
    await page.get_by_role("button", name="Log out").click()
    await expect(page.get_by_label("Operator token")).to_be_visible()
    assert await problems(page) == []
    assert await page.evaluate("document.documentElement.scrollWidth") <= width, "/login"
    await context.close()


async def test_the_keyboard_reaches_what_matters(stage: Stage, browser: Browser) -> None:
    context = await browser.new_context()
    page = await log_in(stage, context, Complaints())
    await page.goto(stage.admin + "/")
    await page.keyboard.press("Tab")
    assert await page.evaluate("document.activeElement.textContent") == "Skip to the content"
    await page.keyboard.press("Enter")
    await page.keyboard.press("Tab")
    focused = await page.evaluate("document.activeElement.getAttribute('href')")
    assert focused == "/subscriptions"  # the first link of the content
    await asyncio.sleep(4)  # a refresh must not take the focus away
    assert await page.evaluate("document.activeElement.getAttribute('href')") == focused
    await context.close()


async def test_without_scripts_the_pages_work(stage: Stage, browser: Browser) -> None:
    context = await browser.new_context(java_script_enabled=False)
    page = await log_in(stage, context, Complaints())
    await page.goto(f"{stage.admin}/sources/linear-acme")
    await page.get_by_role("button", name="Send a test event").click()
    await expect(page.get_by_role("heading", name="Delivery")).to_be_visible()
    await context.close()
