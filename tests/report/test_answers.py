"""Answers in the report, from results written by hand: the paper's Tables 7 and 8, and the page."""

import dataclasses
import json
import re

import matplotlib.pyplot as plt
import pytest
from PIL import Image

from stages.data.prepared import write
from stages.data.rows import Dataset, Question, Row, png
from stages.keys import data_dir
from stages.report import gallery, paper, plot, scores
from stages.report.table import Outcome, markdown, summarise
from stages.tasks import captioning, vqa
from stages.tasks.base.results import Metrics
from tests.report import test_table
from tests.report.test_captioning import SWEEP as CAPTIONED
from tests.report.test_captioning import block
from tests.report.test_gallery import Page, pages
from tests.report.test_paper import TEX

PUBLISHED = [table for table in paper.published().scores if table.task == "vqa"]
REASON = "it needs 10 answers to a question, and there are questions with 1"


def answered(epsilon: str, exact: float, seed: int = 0, ten_people: bool = True) -> Outcome:
    made = test_table.outcome(epsilon, 0.5, seed)
    cell = dataclasses.replace(made.cell, task="vqa", dataset="easy-vqa", model="tiny-blip")
    values = {"exact_match": exact, "exact_match_yes_no": exact + 0.1}
    values |= {"vqa_accuracy": exact + 0.2, "vqa_accuracy_official": exact + 0.15} if ten_people else {}
    not_run = {} if ten_people else {"vqa_accuracy": REASON, "vqa_accuracy_official": REASON}
    metrics = Metrics(primary="exact_match", n=40, low=exact - 0.1, high=exact + 0.1, not_run=not_run, **values)
    return dataclasses.replace(made, cell=cell, metrics=metrics)


SWEEP = [answered("inf", 0.7), answered("10", 0.6), answered("1", 0.5), answered("0", 0.4)]


@pytest.mark.skipif(not TEX.is_file(), reason="the paper's source beside the project is not here")
def test_the_published_figures_are_the_papers():
    tex = TEX.read_text(encoding="utf-8")
    for table, label, digits in zip(
        PUBLISHED, ("blipperformance", "blipvqamodified"), (r"(\d+\.\d+)\\%", r"(0\.\d{4})"), strict=True
    ):
        printed = tex[tex.index(rf"\label{{tab:{label}}}") :].split(r"\end{tabular}")[0]
        epsilons, figures = printed.split(r"\midrule")
        found = [e.replace(r"\infty", "inf") for e in re.findall(r"\\epsilon=([\d.]+|\\infty)", epsilons)]
        assert found == table.epsilons
        (ours,) = table.scores.values()
        values = [float(value) / (100 if label == "blipperformance" else 1) for value in re.findall(digits, figures)]
        assert [float(value) for value in ours] == pytest.approx(values)


def test_tables_7_and_8_stand_beside_ours():
    text = scores.markdown(SWEEP)
    assert re.findall(r"Table (\d)", text) == ["7", "8"]
    published = block(text, "published: DP-BLIP (Huang et al. 2024), abstract scenes of VQA v2")
    heads = ["0 (zero-shot)", "0.0001", "0.5", "1", "3", "5", "10", "50", "inf (non-private)"]
    assert published[""] == [f"epsilon {head}" for head in heads]
    assert published["exact match"] == ["-", "-", "0.5294", "0.5294", "0.5294", "-", "0.5295", "-", "0.5522"]
    assert published["min(1, people/3)"] == ["-", "0.4686", "0.4717", "-", "-", "0.4784", "-", "0.4924", "-"]
    ours = block(text, "ours: easy-vqa, tiny-blip, batch (40 test questions)")
    assert ours["exact match"] == ["0.400", "-", "-", "0.500", "-", "-", "0.600", "-", "0.700"]
    assert ours["VQA accuracy, official (ours only)"][0] == "0.550" and "official, number (ours only)" not in ours
    elsewhere = text.replace(text[text.index("**published") : text.index("**ours")], "")
    assert not [value for table in PUBLISHED for row in table.scores.values() for value in row if value in elsewhere]


def test_accuracies_that_need_ten_people_say_so():
    text = scores.markdown([answered("1", 0.5, ten_people=False)])
    assert block(text, "ours")["min(1, people/3)"][2] == "not run [1]"
    assert f"[1] min(1, people/3) was not run: {REASON}." in text


def test_captions_and_answers_each_have_their_section():
    text = scores.markdown([*SWEEP, *CAPTIONED])
    assert re.findall(r"^# (.*)", text, re.MULTILINE) == [task.TASK.in_paper.heading for task in (captioning, vqa)]
    assert "exact match in %" in markdown(summarise(SWEEP))


def test_the_plot_has_shares_in_percent(tmp_path, monkeypatch):
    monkeypatch.setattr(plt, "close", lambda _: None)
    plot.draw(summarise(SWEEP), tmp_path / "answers.png")
    labels = [line.get_label() for line in plt.gca().get_lines()]
    assert "zero-shot: 40.0%" in labels and plt.gca().get_ylabel() == "exact match in %"


def test_the_page_has_questions_with_what_people_and_models_answered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = [
        [Question(f"{i}-{k}", f"<what> {k} of {i}?", ("red",) * 9 + ("blue",)) for k in range(2)] for i in range(30)
    ]
    picture = png(Image.new("RGB", (64, 64), "red"))
    rows = [Row.asked(picture, tuple(questions), f"row-{i}") for i, questions in enumerate(asked)]
    train = [Row.asked(picture, rows[0].questions, "train")]
    write(data_dir("easy-vqa"), "easy-vqa", Dataset("made by the test", "none", None, train, rows))
    for o in SWEEP:
        examples = [
            {
                "row": i,
                "question": q.text,
                "said": f"{o.cell.epsilon} {q.id}",
                "references": list(q.answers),
                "score": 1.0,
            }
            for i, questions in enumerate(asked)
            for q in questions
        ]
        o.cell.details_json.parent.mkdir(parents=True)
        o.cell.details_json.write_text(json.dumps({"settings": {}, "examples": examples}))
    page = Page(pages(SWEEP, tmp_path / "gallery")["vqa-easy-vqa-tiny-blip.html"])
    assert len(page.images) == gallery.SHOWN
    shown = [content for _, content in page.cells]
    assert "<what> 0 of 0?" in shown and "<what> 1 of 1?" in shown and "<what> 1 of 0?" not in shown
    assert shown.count("red (9)") == shown.count("blue") == gallery.SHOWN
    assert ["batch, epsilon 1", "1 3-1exact match in %: 100"] in page.cells
