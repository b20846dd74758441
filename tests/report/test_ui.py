"""The MLflow page as a person uses it, in headless Chromium: open the sweep, choose the runs, compare them."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest

pytestmark = pytest.mark.xdist_group("pipeline")  # the finished project is made once

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture
def page_address(finished):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", "sqlite:///mlflow.db"]
    server = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"],
        cwd=finished.folder,
        env=finished.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(120):
            try:
                urllib.request.urlopen(f"{address}/health", timeout=2)  # noqa: S310
                break
            except OSError:
                time.sleep(1)
        yield address
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(20)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: infra/system-packages chromium installs it")
def test_the_epsilon_runs_can_be_selected_and_compared(page_address, tmp_path):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1700, "height": 1000})
        page.set_default_timeout(60_000)
        page.goto(f"{page_address}/#/experiments/1/runs", wait_until="domcontentloaded")
        page.get_by_text("mnist5k, tiny-clip").first.wait_for()
        page.locator(".ag-row").first.locator("button").first.click()  # unfold the sweep
        page.get_by_text("epsilon 10, batch").first.wait_for()
        for epsilon in ("0", "1", "10", "inf"):
            row = page.locator(".ag-row").filter(has_text=f"epsilon {epsilon}, batch").first
            row.locator("input.ag-checkbox-input").check()
        page.get_by_role("button", name="Compare").click()
        page.get_by_text("Comparing 4 Runs from 1 Experiment").wait_for()
        page.get_by_text("accuracy_high").first.wait_for()
        text = page.inner_text("body")
        page.screenshot(path=str(tmp_path / "compare.png"), full_page=True)
        browser.close()
    for words in ("epsilon_paper", "privacy.sigma", "Parallel Coordinates", "epsilon inf, batch"):
        assert words in text, words
