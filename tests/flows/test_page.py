"""The page of a sweep in Prefect's own pages, as a person sees it, in headless Chromium."""

import re

import pytest

from tests.report.test_ui import CHROMIUM, FLAGS

pytestmark = pytest.mark.xdist_group("flows")  # servers are started once

CELL = re.compile(r"classification: mnist5k, tiny-clip, batch, epsilon (0|10|inf), seed \d")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: infra/system-packages chromium installs it")
def test_names_on_the_page_of_a_sweep_read_without_explanation(swept, server, tmp_path):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(60_000)
        page.goto(f"{server.removesuffix('/api')}/runs/flow-run/{swept.sweep.id}", wait_until="domcontentloaded")
        page.get_by_text("whole sweep, on workers").first.wait_for()
        page.get_by_text("Subflow Runs").click()
        page.get_by_text(CELL).first.wait_for()
        subflows = page.inner_text("body")
        page.get_by_text("Task Runs", exact=True).click()
        page.get_by_text("publish").first.wait_for()
        tasks = page.inner_text("body")
        page.screenshot(path=str(tmp_path / "prefect-run.png"))
        browser.close()
    assert len(CELL.findall(subflows)) >= 5
    for words in ("Completed", "dp-clip-sweep", "publish", "report"):
        assert words in tasks, words
