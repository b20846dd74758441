"""The page of a sweep, from results written by hand: what it says, that it is harmless, and how it looks."""

import base64
import dataclasses
import io
import re
from html import escape, unescape
from html.parser import HTMLParser

import pytest
from PIL import Image

from stages.report import models_on_page, sweep_page
from stages.report.best import best
from stages.report.table import Outcome, markdown, summarise
from tests.report import test_table
from tests.report.test_captioning import REASON, captioned
from tests.report.test_ui import CHROMIUM, FLAGS

SCORES = {"inf": 0.94, "10": 0.9123, "3": 0.8456, "0.5": 0.7654, "0": 0.6}
BEHIND = {"batch": 0.1, "group": 0.02, "example": 0.0}
JOINT = {"digits": "the 9 private model(s) published together have epsilon 18.21, and 3 run(s) by no epsilon"}
VOID = {"meta", "img", "line", "path", "rect", "circle", "polyline", "br"}


class Page(HTMLParser):
    """The elements of a page with what they are given, and its text."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.text, self.open = "", []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.text += f"{data} "


def made(epsilon: str, method: str = "example", seed: int = 0, dataset: str = "digits", **more) -> Outcome:
    score = SCORES[epsilon] - BEHIND[method] * (epsilon not in ("0", "inf")) + 0.004 * seed
    o = test_table.outcome(epsilon, score, seed, **more)
    cell = dataclasses.replace(o.cell, method=method, dataset=dataset)
    privacy = o.training.privacy.model_copy(update={"method": method, "dataset": dataset})
    metrics = o.metrics.model_copy(update={"low": score - 0.015, "high": score + 0.014})
    return Outcome(cell, metrics, o.training.model_copy(update={"cell": str(cell), "privacy": privacy}))


SWEEP = [made(epsilon, method) for method in BEHIND for epsilon in SCORES]


@pytest.fixture(autouse=True)
def in_project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def page(outcomes: list[Outcome], private_tests=(), joint=JOINT) -> str:
    return sweep_page.page(outcomes, summarise(outcomes, lambda trials: 1.23 * len(trials)), joint, private_tests)


def pictures(outcomes: list[Outcome], side: int = 300) -> None:
    for number, o in enumerate(outcomes):
        o.cell.picture.parent.mkdir(parents=True)
        Image.effect_noise((side, side), 20 + number % 50).save(o.cell.picture)


def rows(text: str) -> list[str]:
    """Of the table of all numbers, as text."""
    table = re.findall(r'<table class="numbers">(.*?)</table>', text, re.DOTALL)[0]
    lines = re.findall(r"<tr.*?</tr>", table, re.DOTALL)[1:]
    return [" ".join(unescape(re.sub(r"<svg.*?</svg>|<[^>]*>", " ", line)).split()) for line in lines]


@pytest.mark.parametrize("seeds", [1, 3])
def test_every_number_of_the_table_and_of_what_holds_for_all_is_on_the_page(seeds):
    sweep = [made(e, m, seed) for m in BEHIND for e in SCORES for seed in range(seeds)]
    text = page(sweep)
    shown = set(re.findall(r"<t[dh][^>]*>([^<]*)", text.split("</table>")[0])) | {"0"}  # of 0 (zero-shot)
    table = markdown(summarise(sweep, lambda trials: 1.23 * len(trials)), JOINT)
    numbers = set(re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?: ± \d+\.\d+)?(?![\w.])", table.split("Sound epsilon")[0]))
    assert len(numbers) >= 18 and not numbers - shown
    assert JOINT["digits"] in text


def test_a_row_has_its_score_with_interval_both_epsilons_and_the_guarantee():
    lines = rows(page(SWEEP))
    assert "3 group 82.56 81.06 to 83.96 3 1.2 0.000125 2 1 (3, 0.000125)-DP, zero-out" in lines
    assert [line.split()[0] for line in lines] == ["inf"] * 3 + ["10"] * 3 + ["3"] * 3 + ["0.5"] * 3 + ["0"]
    assert lines[-1].startswith("0 (zero-shot) any 60.00")


def test_a_score_without_privacy_is_covered_by_no_epsilon_and_says_so():
    lines = rows(page(SWEEP))
    assert [line.startswith("inf") for line in lines] == ["covered by no epsilon" in line for line in lines]
    opened = page([made("inf")])
    assert "functions of the private data that no epsilon covers" in opened and '<details class="uncovered">' in opened


def test_the_best_private_model_is_named_for_each_epsilon_and_leads_to_its_statement():
    text = page(SWEEP)
    found = best(summarise(SWEEP))
    assert [(each.epsilon, each.row["method"]) for each in found] == [(e, "example") for e in ("10", "3", "0.5")]
    assert found[0].as_good == ["group"]  # 2 points apart, with intervals of 2.9
    assert found[1].above_zero_shot == pytest.approx(24.56) and found[1].below_non_private == pytest.approx(9.44)
    line = re.findall(r"<li><span class=\"epsilon\">epsilon 3</span>.*?</li>", text)[0]
    for words in ("example", "84.56", "(3, 0.000125)-DP, zero-out", "24.56 above zero-shot", "9.44 below"):
        assert words in line, words
    anchor = re.findall(r'href="#(.*?)"', line)[0]
    at = text.index(f'id="{anchor}"')
    assert "classification/digits/tiny-clip/example/eps-3/seed-0</code>" in text[at : at + 300]


def test_a_private_model_that_loses_to_the_public_one_is_not_recommended():
    sweep = [made("0.5"), made("0")]
    worse = dataclasses.replace(sweep[0], metrics=sweep[0].metrics.model_copy(update={"accuracy": 0.55}))
    assert "no better than zero-shot, which costs no privacy" in page([worse, sweep[1]])
    assert "no better than zero-shot" not in page(sweep)


@pytest.mark.parametrize(
    ("more", "tag"),
    [
        ({"key": "fixed"}, "none (fixed noise seed: for tests only)"),
        ({"convention": "paper"}, "paper-convention (not sound)"),
        ({"diagnostics": {"mean_loss": [1.0]}}, "none (unsafe_diagnostics: private figures are released)"),
    ],
)
def test_what_is_not_sound_is_flagged_everywhere_and_is_never_the_best(more, tag):
    unsound = made("3", **more)
    text = page([unsound, made("3", "batch"), made("0.5", **more)])
    assert f'<p class="warning" role="note">NOT A SOUND GUARANTEE: {tag}' in text
    assert sum(tag in line for line in rows(text)) == 2 and text.count('<tr class="unsound">') == 2
    at_3, at_half = best(summarise([unsound, made("3", "batch"), made("0.5", **more)]))
    assert at_3.row["method"] == "batch" and at_half.row is None and at_half.why_none == tag
    assert "none that may be called private" in text
    assert "NOT A SOUND" not in page(SWEEP)


def test_what_no_epsilon_bounds_has_no_place_in_the_drawing_and_is_named():
    text = page([made("3", key="fixed"), made("inf"), made("0")])
    assert 'class="point"' not in text and "no private model here has a sound epsilon" in text
    assert "no epsilon bounds them: example at 3." in text
    assert page(SWEEP).count('<g class="point"') == 2 * 9  # drawn wide and narrow
    assert "Not drawn" not in page(SWEEP)


def test_a_point_has_its_numbers():
    titles = [unescape(title) for title in re.findall(r"<title>(.*?)</title>", page(SWEEP), re.DOTALL)]
    assert (
        "group, epsilon 3\naccuracy in %: 82.56 (95% interval: 81.06 to 83.96)\n"
        "sound epsilon 3 at delta 0.000125\n(3, 0.000125)-DP, zero-out\n1 trial"
    ) in titles
    assert any("covered by no epsilon" in title for title in titles)


def test_every_statement_is_there_with_what_was_measured_and_audited():
    text = page(SWEEP)
    assert text.count("<details") == text.count('<div class="statement">') == len(SWEEP)
    for o in SWEEP:
        assert f"<code>{o.cell}</code>" in text
    assert "<strong>The released weights are (2.99988, 0.000125)-differentially private.</strong>" in text
    assert "<td>all models</td>\n<td>the 9 private model(s) published together" in text
    assert text.count("No audit of this model was run here") == 9
    assert text.count("there is no guarantee to audit") == 3


def test_names_are_text_and_nothing_else():
    name = "<b>x<script>alert(1)</script>\"'&"
    sweep = [made(e, dataset=name.replace("/", "")) for e in ("3", "inf", "0")]
    unit = sweep[0].training.model_copy(update={"unit": "<i>one</i> [image](http://evil.example) ![x](y)"})
    text = page([dataclasses.replace(sweep[0], training=unit), *sweep[1:]], [sweep[0].cell.dataset], {})
    parsed = Page(text)
    tags = [tag for tag, _ in parsed.elements]
    assert tags.count("script") == 1 and "i" not in tags and not parsed.open
    assert "<b>x" not in text and "<script>alert" not in text
    assert "<b>x<script>alert(1)" in parsed.text and "<i>one</i> [image]" in parsed.text


def test_the_page_is_one_file_that_loads_nothing():
    pictures(SWEEP)
    text = page(SWEEP)
    parsed = Page(text)
    given = [(name, value) for _, attributes in parsed.elements for name, value in attributes.items()]
    sources = [value for name, value in given if name in ("src", "srcset", "poster", "data", "action")]
    assert len(sources) == len(SWEEP) and all(source.startswith("data:image/webp;base64,") for source in sources)
    assert all(value.startswith("#") for name, value in given if name in ("href", "xlink:href"))
    assert not {"link", "iframe", "object", "embed", "base", "form"} & {tag for tag, _ in parsed.elements}
    assert not [name for name, _ in given if name.startswith("on")]
    assert "http:" not in text and "https:" not in text and "@import" not in text and "url(" not in text
    (policy,) = [a["content"] for tag, a in parsed.elements if tag == "meta" and "http-equiv" in a]
    assert policy.startswith("default-src 'none';") and "script-src 'sha256-" in policy


def test_a_private_test_split_says_that_its_scores_stay_here():
    assert "The test split of digits is private: its scores stay on this machine." in page(SWEEP, ["digits"])
    assert "stay on this machine" not in page(SWEEP)


def test_what_was_not_run_is_named_with_its_reason_and_what_models_said_is_linked():
    text = page([captioned("1", 0.7), captioned("0", 0.4)], joint={})
    assert f"<b>spice</b>, 2 models of captioning/scenes/tiny-blip: {escape(REASON)}" in text
    assert f"spice was not run: {escape(REASON)}." in text
    assert 'href="gallery/captioning-scenes-tiny-blip.html"' in text
    assert "CIDEr x 100" in text and "Nothing private was trained" in text
    assert "Every score of the tasks was computed" in page(SWEEP)


def test_a_large_sweep_has_all_statements_and_the_pictures_of_the_first_seed():
    sweep = [made(e, m, seed) for m in BEHIND for e in SCORES for seed in range(4, 7)]
    pictures(sweep)
    text = page(sweep)
    assert text.count('<div class="statement">') == len(sweep) == 45 and text.count("<img") == 15
    assert all(f'alt="results of {o.cell}"' in text for o in sweep if o.cell.seed == 4)
    assert "30 of 45 pictures are not in it" in text and "results/CELL/picture.png" in text
    assert f"<code>{sweep[1].cell.picture}</code>" in text


def test_pictures_that_are_too_much_are_left_out(monkeypatch):
    pictures(SWEEP)
    whole = page(SWEEP)
    assert whole.count("<img") == 15 and "pictures are not in it" not in whole
    monkeypatch.setattr(models_on_page, "ROOM", len(whole) // 2)
    text = page(SWEEP)
    assert 0 < text.count("<img") < 15 and f"{15 - text.count('<img')} of 15 pictures are not in it" in text


def test_a_picture_is_made_smaller():
    pictures([SWEEP[0]], side=1500)
    (source,) = re.findall(r'<img src="data:image/webp;base64,(.*?)"', page([SWEEP[0]]))
    assert Image.open(io.BytesIO(base64.b64decode(source))).size == (models_on_page.SIDE, models_on_page.SIDE)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: infra/system-packages chromium installs it")
def test_the_page_is_readable_on_a_laptop_and_on_a_phone(in_project):
    from playwright.sync_api import sync_playwright

    sweep = [*SWEEP, *(made(e, m, dataset="<b>a-dataset-with-quite-a-long-name") for m in BEHIND for e in SCORES)]
    pictures(sweep)
    (in_project / "index.html").write_text(page(sweep), encoding="utf-8")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for width in (1400, 390):
            page_shown = browser.new_page(viewport={"width": width, "height": 850})
            asked, wrong = [], []
            page_shown.on("request", lambda request, asked=asked: asked.append(request.url))
            page_shown.on("pageerror", lambda error, wrong=wrong: wrong.append(str(error)))
            page_shown.on("console", lambda said, wrong=wrong: wrong.append(said.text))
            page_shown.goto(f"file://{in_project}/index.html")

            def wide(page_shown=page_shown) -> int:
                return page_shown.evaluate("document.scrollingElement.scrollWidth")

            assert wide() <= width  # nothing to scroll sideways for
            tip, points = page_shown.locator("#tip"), page_shown.locator(".point:visible")
            assert points.count() == 18 and tip.is_hidden()
            points.nth(1).hover()
            assert "batch, epsilon 3\naccuracy in %: 74.56" in tip.inner_text()
            box = tip.bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= width
            page_shown.mouse.move(0, 0)
            assert tip.is_hidden()
            points.nth(8).focus()
            assert "example, epsilon 10" in tip.inner_text()
            page_shown.screenshot(path=str(in_project / f"{width}.png"))
            statement = page_shown.locator(".model").filter(has_text="digits/tiny-clip/example/eps-10/seed-0")
            assert statement.is_hidden()
            page_shown.locator(".best a").first.click()
            statement.wait_for(state="visible")
            page_shown.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
            image = page_shown.locator("img").first
            assert image.evaluate("async image => (await image.decode(), image.naturalWidth)") == 300
            assert wide() <= width and not wrong
            assert not [url for url in asked if not url.startswith(("file:", "data:"))]
        browser.close()
