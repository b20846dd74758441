"""The page of captions, from results written by hand: what is in it, that it is harmless, and how it looks."""

import base64
import dataclasses
import io
import json
import re
from html.parser import HTMLParser

import pytest
from PIL import Image

from stages.data.prepared import PreparedSplit, write
from stages.data.rows import Row, png
from stages.privacy.ledger import Ledger
from stages.privacy.records import Records
from stages.report import gallery
from stages.report.table import Outcome
from stages.sources.scenes import Scenes
from tests.report import test_table
from tests.report.test_captioning import NAMES, REASON, SWEEP, TEST_IMAGES, captioned
from tests.report.test_joint import charge_for
from tests.report.test_ui import CHROMIUM, FLAGS


class Page(HTMLParser):
    """The texts of a page by the kind of cell they stand in, and all of its elements."""

    def __init__(self, text: str):
        super().__init__()
        self.elements, self.cells, self.images = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.elements.append(tag)
        if tag in ("td", "th", "li"):
            self.cells.append([attributes.get("data-label", tag), ""])
        if tag == "img":
            self.images.append(attributes["src"])

    def handle_data(self, data):
        if self.cells:
            self.cells[-1][1] += data.strip()


@pytest.fixture
def in_project(tmp_path, monkeypatch):
    """A folder with test images, in which `results` writes what was generated."""
    monkeypatch.chdir(tmp_path)
    made = Scenes(source="scenes", style="private", train=1, test=TEST_IMAGES - 1, seed=3).load()
    large = Row(png(Image.radial_gradient("L").resize((900, 600))), ("A big picture — <b>café</b>",), None, "large")
    write(tmp_path / "data/scenes", "scenes", dataclasses.replace(made, test=[large, *made.test]))
    return tmp_path


def results(outcomes: list[Outcome]) -> None:
    data = PreparedSplit(gallery.data_dir("scenes"), "test")
    for o in outcomes:
        examples = [
            {
                "row": i,
                "said": f"caption {i} of {o.cell.method} {o.cell.epsilon} seed {o.cell.seed}",
                "references": list(row.texts),
                "score": i / 10,
            }
            for i, row in enumerate(data)
        ]
        o.cell.details_json.parent.mkdir(parents=True)
        o.cell.details_json.write_text(json.dumps({"settings": {}, "examples": examples}))


def change(outcome: Outcome, row: int, caption: str) -> None:
    details = json.loads(outcome.cell.details_json.read_text())
    details["examples"][row]["said"] = caption
    outcome.cell.details_json.write_text(json.dumps(details))


def pages(outcomes: list[Outcome], folder) -> dict[str, str]:
    folder.mkdir()
    gallery.write(outcomes, folder)
    return {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}


def test_the_index_names_the_pages_and_is_there_without_any(in_project):
    """DVC warns of an empty folder."""
    results(SWEEP)
    assert 'href="captioning-scenes-tiny-blip.html"' in pages(SWEEP, in_project / "gallery")["index.html"]
    none = pages([test_table.outcome("1", 0.5)], in_project / "none")
    assert set(none) == {"index.html"} and "href" not in none["index.html"] and "no model writes" in none["index.html"]


def test_the_gallery_has_every_models_caption_of_the_first_images(in_project):
    methods = [captioned(e, 0.5, method="group") for e in ("1", "inf")]
    seeds = [captioned("1", 0.5, seed=1)]
    everything = [*SWEEP, *methods, *seeds, test_table.outcome("1", 0.5)]
    results(everything[:-1])
    made = pages(everything, in_project / "gallery")
    assert set(made) == {"captioning-scenes-tiny-blip.html", "index.html"}
    text = made["captioning-scenes-tiny-blip.html"]
    page = Page(text)
    assert len(page.images) == gallery.SHOWN == 24
    for o in [*SWEEP, *methods]:
        label = f"{o.cell.method}, epsilon {gallery.epsilon_name(o.cell.epsilon)}"
        for i in range(24):
            said = f"caption {i} of {o.cell.method} {o.cell.epsilon} seed 0CIDEr x 100: {10 * i}"
            assert [label, said] in page.cells
    assert "caption 24" not in text and "seed 1" not in text
    for row in list(PreparedSplit(gallery.data_dir("scenes"), "test"))[1:24]:
        assert all(["li", caption] in page.cells for caption in row.texts)


def test_epsilons_are_columns_from_zero_shot_to_non_private_with_what_bounds_each(in_project):
    results(SWEEP)
    text = pages(SWEEP, in_project / "gallery")["captioning-scenes-tiny-blip.html"]
    heads = [content for kind, content in Page(text).cells if kind == "th" and content.startswith("epsilon")]
    columns = ["epsilon 0 (zero-shot)", "epsilon 1", "epsilon 5", "epsilon inf (non-private)"]
    assert heads == 2 * [
        column.replace(" (", "(") for column in columns
    ]  # of what is known of the models, and of the captions
    facts = [(kind, content) for kind, content in Page(text).cells if content.startswith("sound epsilon")]
    assert [kind for kind, _ in facts] == [f"batch, {column}" for column in columns]
    assert facts[1][1] == "sound epsilon1(1, 0.000125)-DP, zero-outCIDEr x 100: 70.0"
    assert facts[0][1].startswith("sound epsilon0no private data used")
    assert facts[3][1].startswith("sound epsiloninfnone (non-private)")


def test_what_a_model_or_a_person_wrote_is_text_and_nothing_else(in_project):
    results(SWEEP)
    change(SWEEP[0], 0, '<script>alert(1)</script> & $title "quoted" </td><img src=x onerror=y>')
    change(SWEEP[1], 1, " ")
    text = pages(SWEEP, in_project / "gallery")["captioning-scenes-tiny-blip.html"]
    page = Page(text)
    assert "script" not in page.elements and len(page.images) == 24
    assert any("<script>alert(1)</script> & $title" in content for _, content in page.cells)
    assert ["li", "A big picture — <b>café</b>"] in page.cells
    assert ["batch, epsilon 5", "(nothing)CIDEr x 100: 10"] in page.cells


def test_the_page_is_one_file_that_loads_nothing(in_project):
    results(SWEEP)
    text = pages(SWEEP, in_project / "gallery")["captioning-scenes-tiny-blip.html"]
    page = Page(text)
    assert all(source.startswith("data:image/") for source in page.images)
    first = Image.open(io.BytesIO(base64.b64decode(page.images[0].split(",")[1])))
    assert first.size == (gallery.SIDE, gallery.SIDE * 600 // 900)  # was 900 pixels wide
    assert not {"script", "link", "iframe", "object"} & set(page.elements)
    assert "http" not in re.sub(r"data:[^\"]*", "", text).replace("http-equiv", "")


def test_a_caption_that_is_missing_is_a_dash(in_project):
    results(SWEEP)
    details = SWEEP[1].cell.details_json
    there = json.loads(details.read_text())
    details.write_text(json.dumps(there | {"examples": there["examples"][1:]}))
    text = pages(SWEEP, in_project / "gallery")["captioning-scenes-tiny-blip.html"]
    assert ["batch, epsilon 5", "-"] in Page(text).cells


@pytest.mark.slow
def test_mlflow_gets_the_page_every_score_and_what_was_not_run(in_project):
    import mlflow

    from stages.keys import initial_model_dir
    from stages.publish import publishing
    from stages.report.paths import CSV, GALLERY, PAGE, PAPER, PLOTS, TABLE

    made = captioned("1", 0.7)
    results([made])
    for path in (PAGE, TABLE, CSV, PAPER, PLOTS / "captioning-scenes-tiny-blip.png", made.cell.picture):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("made here")
    GALLERY.mkdir()
    gallery.write([made], GALLERY)
    made.cell.metrics_json.write_text(made.metrics.model_dump_json())
    for folder in (made.cell.model_dir, initial_model_dir("tiny-blip")):
        folder.mkdir(parents=True)
    made.cell.training_json.write_text(made.training.model_dump_json())
    made = Outcome(made.cell, made.metrics, made.training.model_copy(update={"run": "one", "cell": str(made.cell)}))
    Ledger().charge("one", charge_for(made), Records.read(in_project / "data/scenes"), 1 / 8000)
    mlflow.set_tracking_uri(f"sqlite:///{in_project / 'mlflow.db'}")
    try:
        publishing.publish([made], publishing.Wanted(first_seed=7, every_seed=False))
        client = mlflow.MlflowClient()
        runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
        (child,) = [run for run in runs if "cell" in run.data.tags]
        (parent,) = [run for run in runs if "sweep" in run.data.tags]
        assert child.data.tags["not_run.spice"] == REASON and "spice" not in child.data.metrics
        assert child.data.metrics["cider"] == 0.7 and set(NAMES) < set(child.data.metrics)
        assert "captioning-scenes-tiny-blip.html" in {a.path for a in client.list_artifacts(parent.info.run_id)}
    finally:
        mlflow.set_tracking_uri(None)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: infra/system-packages chromium installs it")
def test_the_page_is_readable_on_a_laptop_and_on_a_phone(in_project):
    from playwright.sync_api import sync_playwright

    sweep = [*SWEEP, captioned("1", 0.5, method="group"), captioned("5", 0.5, method="group")]
    results(sweep)
    change(SWEEP[0], 0, "<script>document.title = 'harmed'</script>")
    pages(sweep, in_project / "gallery")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for width in (1366, 390):
            page = browser.new_page(viewport={"width": width, "height": 800})
            asked = []
            page.on("request", lambda request, asked=asked: asked.append(request.url))
            page.goto(f"file://{in_project}/gallery/captioning-scenes-tiny-blip.html")
            assert page.title() == "Captions: scenes, tiny-blip"
            assert page.evaluate("document.documentElement.scrollWidth") <= width  # nothing to scroll sideways for
            assert page.locator("img").evaluate_all("images => images.every(image => image.naturalWidth > 0)")
            said = [page.get_by_text(f"caption 3 of group {epsilon} seed 0").bounding_box() for epsilon in ("1", "5")]
            assert min(box["width"] for box in said) > 100
            assert (said[0]["y"] == said[1]["y"]) == (width == 1366)  # side by side, or one below the other
            assert not [url for url in asked if not url.startswith(("file:", "data:"))]
            page.screenshot(path=str(in_project / f"{width}.png"), full_page=width > 1000)
        browser.close()
