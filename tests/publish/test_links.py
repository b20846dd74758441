"""The addresses that `make ui` prints, as a person opens them in headless Chromium."""

import os
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from stages.publish.links import links
from tests.infra.servers import free_port
from tests.publish.conftest import BEST
from tests.report.test_ui import CHROMIUM, FLAGS

pytestmark = pytest.mark.xdist_group("publish")


@pytest.fixture(scope="module")
def port(sweep):
    port = free_port()
    address = sweep.client.tracking_uri
    command = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", address, "--workers", "1"]
    server = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port)],
        cwd=sweep.folder,
        env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        for _ in range(120):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2)
                break
            except OSError:
                time.sleep(1)
        yield port
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(20)


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: infra/system-packages chromium installs it")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    page = browser.new_page(viewport={"width": 1700, "height": 1000})
    page.set_default_timeout(60_000)
    yield page
    page.close()


def printed(sweep, port: int) -> dict[str, str]:
    lines = [line.rsplit(maxsplit=1) for line in links(sweep.client, port) if "http" in line]
    return {what.strip(): address for what, address in lines}


def test_the_printed_addresses_open_lists_with_their_scores(sweep, port, page):
    addresses = printed(sweep, port)
    page.goto(addresses["sweeps, with the best"], wait_until="domcontentloaded")
    page.get_by_text("best_accuracy_percent_eps_1").first.wait_for()
    page.locator(".ag-cell").filter(has_text="80").first.wait_for()

    page.goto("about:blank")
    page.goto(addresses["runs by score"], wait_until="domcontentloaded")
    page.get_by_text("epsilon 1, group, seed 0").first.wait_for()
    page.get_by_text("accuracy_percent").first.wait_for()
    names = [page.locator(f".ag-row[row-index='{i}']").first.inner_text() for i in range(4)]
    assert ["epsilon 10, batch" in names[0], "epsilon 1, group" in names[1]] == [True, True]


def test_the_best_private_model_under_epsilon_3_is_found_in_three_clicks(sweep, port, page):
    page.goto(printed(sweep, port)["sweeps, with the best"], wait_until="domcontentloaded")
    page.get_by_role("link", name="Model registry").first.click()
    page.get_by_role("button", name="Try it now").click()  # MLflow's own announcement, on a first visit
    page.get_by_role("link", name=BEST, exact=True).click()
    page.get_by_text("best-eps-3").first.wait_for()
    page.get_by_text("best-eps-1").first.wait_for()
    page.get_by_text("so that score is optimistic").first.wait_for()
