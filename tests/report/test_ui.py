"""The MLflow page as a person uses it, in headless Chromium: open the sweep, choose the runs, compare them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from tests.infra.servers import free_port

pytestmark = pytest.mark.xdist_group("ui")  # one server and one browser

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


EPSILONS = ("0", "1", "10", "inf")
PLOTS = """() => [...document.querySelectorAll('.js-plotly-plot')].map(plot => plot.data.map(d => ({
    type: d.type, x: d.x, y: d.y, axes: Object.fromEntries((d.dimensions || []).map(q => [q.label, q.values]))})))"""


@pytest.fixture(scope="module")
def page_address(finished):
    port = free_port()
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


@pytest.fixture(scope="module")
def page(page_address):
    """The page on which the runs of the sweep stand side by side, reached as a person does."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: infra/system-packages chromium installs it")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": 1700, "height": 1000})
        page.set_default_timeout(60_000)
        page.goto(f"{page_address}/#/experiments/1/runs", wait_until="domcontentloaded")
        page.get_by_text("mnist5k, tiny-clip").first.wait_for()
        page.locator(".ag-row").first.locator("button").first.click()  # unfold the sweep
        page.get_by_text("epsilon 10, batch").first.wait_for()
        for epsilon in EPSILONS:
            row = page.locator(".ag-row").filter(has_text=f"epsilon {epsilon}, batch").first
            row.locator("input.ag-checkbox-input").check()
        page.get_by_role("button", name="Compare").click()
        page.get_by_text("Comparing 4 Runs from 1 Experiment").wait_for()
        page.get_by_text("accuracy_percent_95_high").first.wait_for()
        yield page
        browser.close()


def plot(page, tab: str, kind: str) -> dict:
    """What a tab draws, untouched."""
    page.get_by_role("tab", name=tab).click()
    page.wait_for_function(f"() => ({PLOTS})().flat().some(d => d.type === '{kind}')")
    (drawn,) = [d for plot in page.evaluate(PLOTS) for d in plot if d["type"] == kind]
    return drawn


def accuracies(finished) -> list[float]:
    """In percent, by epsilon, from the files."""
    cells = finished.folder / "results/classification/mnist5k/tiny-clip/batch"
    return [100 * json.loads((cells / f"eps-{e}/seed-0/metrics.json").read_text())["accuracy"] for e in EPSILONS]


def test_the_epsilon_runs_can_be_selected_and_compared(page):
    text = page.inner_text("body")
    for words in ("epsilon_paper", "privacy.sigma", "Parallel Coordinates", "epsilon inf, batch", "private_dataset"):
        assert words in text, words


def test_parallel_coordinates_lead_from_epsilon_to_accuracy_in_percent(page, finished):
    axes = plot(page, "Parallel Coordinates", "parcoords")["axes"]
    assert list(axes) == ["epsilon", "epsilon_paper", "epsilon_sound", "accuracy_percent"]
    # A run without the parameter is drawn above all others, which is where infinity belongs.
    assert axes["epsilon"][:3] == [0, 1, 10] and axes["epsilon"][3] > 10
    assert axes["accuracy_percent"] == pytest.approx(accuracies(finished))


def test_the_scatter_plot_is_accuracy_against_epsilon_before_anything_is_chosen(page, finished):
    drawn = plot(page, "Scatter Plot", "scattergl")
    # The non-private run has no epsilon: it is not drawn at some number that it does not have.
    assert [float(x) for x in drawn["x"]] == [0, 1, 10]
    assert drawn["y"] == pytest.approx(accuracies(finished)[:3])
    chosen = [page.locator("button[role=combobox]").nth(i).inner_text() for i in range(2)]
    assert chosen == ["epsilon", "accuracy_percent"]


def test_models_stand_side_by_side_with_their_statements(page):
    page.get_by_text("privacy-statement.md", exact=True).first.dispatch_event("click")
    page.get_by_text("NO GUARANTEE").first.wait_for()  # the test sweep has a fixed noise seed
    text = page.inner_text("body")
    for words in ("accuracy_percent_95_low", "n_test", "epsilon 1, batch, seed 0", "Show diff only"):
        assert words in text, words
