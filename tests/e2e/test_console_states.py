"""The console where it is hardest to read: nothing yet, a thousand subscriptions, a store that does not answer."""

import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from gateway.demo import INSTALLATION, Stage
from gateway.environment import data_folder
from gateway.subscriptions import event_type_for, seal
from tests.e2e.test_console import Complaints, browser, log_in, problems

pytestmark = pytest.mark.e2e
__all__ = ["browser"]  # the fixture, for this module too
MANY = 1_000
PATHS = ("/", "/deliveries", "/subscriptions", "/dead", "/asks", "/sources/linear-acme", "/nowhere")


async def good(page: Page, stage: Stage, paths: tuple[str, ...], width: int) -> None:
    """Every page is accessible and fits."""
    for path in paths:
        await page.goto(stage.admin + path)
        assert await problems(page) == [], path
        assert await page.evaluate("document.documentElement.scrollWidth") <= width, path


class Empty(Stage):
    """Sources are configured, and that is all."""

    def _configure(self) -> None:
        super()._configure()
        shutil.rmtree(self.folder / "enrolled")
        (self.folder / "enrolled").mkdir()


async def test_an_empty_first_start_says_what_to_do_next(browser: Browser) -> None:
    async with Empty() as stage:
        for width in (1280, 360):
            context = await browser.new_context(viewport={"width": width, "height": 740})
            page = await log_in(stage, context, Complaints())
            await good(page, stage, PATHS, width)
            await page.goto(stage.admin + "/")
            for text in (
                "Nothing has arrived yet.",
                "What to do next",
                "gateway wire SOURCE",
                "every authentic delivery is ignored",
            ):
                await expect(page.get_by_text(text).first).to_be_visible()
            await page.get_by_role("link", name="Subscriptions", exact=True).first.click()
            await expect(page.get_by_text("gateway enroll FILE")).to_be_visible()
            await context.close()


class Many(Stage):
    """A thousand subscriptions with long names."""

    def _configure(self) -> None:
        super()._configure()
        document = json.loads((data_folder("subscriptions") / "examples" / "linear-issue-created.json").read_text())
        content = {name: value for name, value in document.items() if name != "digest"}
        for number in range(MANY):
            name = f"acme-platform-engineering/a-rather-long-repository-name-{number:04}"
            own = {"repository": name, "repository_id": number + 1000}
            sealed = seal({**content, **own, "event_type": event_type_for(name, content["workflow"])})
            file = self.folder / "enrolled" / f"many-{number}.json"
            file.write_text(json.dumps(sealed))
            entry = f'subscription = "{sealed["digest"]}"\nsource = "linear-acme"\ninstallation = {INSTALLATION}\n'
            file.with_suffix(".toml").write_text("[[enrollments]]\n" + entry)


@pytest.fixture(scope="module")
async def many() -> AsyncIterator[Many]:
    async with Many() as running:
        yield running


@pytest.mark.parametrize("width", [1280, 360])
async def test_a_thousand_subscriptions_are_read_page_by_page(many: Many, browser: Browser, width: int) -> None:
    context = await browser.new_context(viewport={"width": width, "height": 740})
    page = await log_in(many, context, Complaints())
    await good(page, many, ("/subscriptions", "/sources/linear-acme"), width)
    await page.get_by_role("link", name=f"All {MANY + 1} subscriptions of linear-acme").click()
    assert await page.get_by_label("Source").input_value() == "linear-acme"
    await expect(page.get_by_text(f"1 to 100 of {MANY + 1}")).to_be_visible()
    await page.get_by_role("link", name="After").click()
    await expect(page.get_by_text("101 to 200")).to_be_visible()
    await page.get_by_role("link", name="Before").click()
    await expect(page.get_by_text("1 to 100")).to_be_visible()
    await page.get_by_label("Repository or digest contains").fill("name-0777")
    await page.get_by_role("button", name="Show").click()
    await expect(page.get_by_role("row")).to_have_count(2)
    await page.get_by_label("State").select_option("mismatched")
    await page.get_by_role("button", name="Show").click()
    await expect(page.get_by_text("No subscription fits.")).to_be_visible()
    await context.close()


def stores_of(pid: int) -> list[int]:
    """The embedded store's process, a child of the receiver."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if b"valkey" in Path(f"/proc/{child}/cmdline").read_bytes()]


async def test_a_store_that_hangs_is_said_on_every_page(many: Many, browser: Browser) -> None:
    context = await browser.new_context(viewport={"width": 360, "height": 740})
    page = await log_in(many, context, Complaints())
    stores = stores_of(many.receiver.pid)
    assert len(stores) == 1
    os.kill(stores[0], signal.SIGSTOP)
    try:
        await page.goto(many.admin + "/")
        await expect(page.get_by_text("The store does not answer").first).to_be_visible()
        for path in PATHS[1:-1]:
            answer: Any = await page.goto(many.admin + path)
            assert answer.status == 503, path
            await expect(page.get_by_role("heading", name="The store is away")).to_be_visible()
            assert "Traceback" not in await page.content()
        assert await problems(page) == []
        await page.goto(many.admin + "/")
    finally:
        os.kill(stores[0], signal.SIGCONT)
    await expect(page.get_by_text("What to do next")).to_be_visible(timeout=20_000)  # live: it comes back by itself
    await context.close()
