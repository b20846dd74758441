"""Captions in the report, from results written by hand: the paper's Table 5, the main table and the plot."""

import dataclasses
import re

import matplotlib.pyplot as plt
import pytest

from stages.report import __main__ as report
from stages.report import paper, plot, scores
from stages.report.table import Outcome, markdown, summarise
from stages.tasks import captioning
from stages.tasks.base.results import Metrics
from tests.report import test_table
from tests.report.test_paper import TEX

REASON = "stanford-corenlp-3.6.0.jar is not in pycocoevalcap's folder spice/lib"
PUBLISHED = next(table for table in paper.published().scores if table.task == "captioning")
NAMES = ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "rouge_l", "cider", "meteor")
TEST_IMAGES = 26


def captioned(epsilon: str, cider: float, seed: int = 0, method: str = "batch", spice=None, **more) -> Outcome:
    made = test_table.outcome(epsilon, 0.5, seed, **more)
    cell = dataclasses.replace(made.cell, task="captioning", dataset="scenes", model="tiny-blip", method=method)
    values = {name: cider + i / 100 for i, name in enumerate(NAMES)} | {"cider": cider}
    values |= {} if spice is None else {"spice": spice}
    not_run = {"spice": REASON} if spice is None else {}
    metrics = Metrics(primary="cider", n=TEST_IMAGES, low=cider - 0.1, high=cider + 0.1, not_run=not_run, **values)
    return dataclasses.replace(made, cell=cell, metrics=metrics)


SWEEP = [captioned("inf", 1.25), captioned("5", 0.8), captioned("1", 0.7), captioned("0", 0.4)]


def block(text: str, whose: str) -> dict[str, list[str]]:
    """The rows of a block, by their first cell."""
    lines = text[text.index(f"**{whose}") :].split("\n\n")[1].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in cells}


# Table 5


@pytest.mark.skipif(not TEX.is_file(), reason="the paper's source beside the project is not here")
def test_the_published_figures_are_the_papers():
    tex = TEX.read_text(encoding="utf-8")
    table = tex[tex.index(r"\label{tbl: comparison}") :].split(r"\end{tabular}")[0]
    assert re.findall(r"\\epsilon=([\d.]+|\\infty)", table) == [*PUBLISHED.epsilons[:-1], r"\infty"]
    rows = [
        [cell.strip(" \\\t\n") for cell in line.split("&")]
        for line in table.splitlines()
        if "_" in line or "& 0." in line
    ]
    expected = {
        name.replace("\\", "").lower(): values for name, *values in rows if values and "epsilon" not in values[0]
    }
    assert len(expected) == 7 and expected == PUBLISHED.scores


def test_a_sweep_without_captions_has_no_table_5():
    outcomes = [test_table.outcome("1", 0.5)]
    assert scores.markdown(outcomes) == ""
    assert report.papers_tables(outcomes, summarise(outcomes)) == paper.NO_TABLES


def test_table_5_has_the_papers_shape_and_figures_marked_as_published():
    text = scores.markdown(SWEEP)
    published = block(text, "published: DP-BLIP (Huang et al. 2024), VizWiz")
    heads = ["epsilon 0 (zero-shot)", "epsilon 0.5", "epsilon 1", "epsilon 5", "epsilon inf (non-private)"]
    assert published[""] == heads
    assert published["BLEU-4"] == ["0.171", "0.222", "0.222", "0.230", "0.231"]
    assert published["CIDEr"] == ["0.431", "0.584", "0.584", "0.690", "0.695"]
    assert published["SPICE"] == ["0.165", "0.189", "0.193", "0.210", "0.207"]
    assert published["sound epsilon"] == ["0", *3 * ["not known"], "inf"]
    elsewhere = text.replace(text[text.index("**published") : text.index("**ours")], "")
    for value in {value for row in PUBLISHED.scores.values() for value in row}:
        assert value not in elsewhere, value


def test_ours_stands_beside_it_with_sound_epsilons_and_every_score():
    ours = block(scores.markdown(SWEEP), "ours: scenes, tiny-blip, batch (26 test images)")
    assert ours["CIDEr"] == ["0.400", "-", "0.700", "0.800", "1.250"]
    assert ours["sound epsilon"] == ["0", "-", "1", "5", "inf"]
    assert ours["paper's epsilon"] == ["0", "-", "0.4", "2", "inf"]
    assert ours["METEOR (ours only)"] == ["0.460", "-", "0.760", "0.860", "1.310"]
    assert ours["trials"] == ["1", "-", "1", "1", "1"]
    assert list(ours)[4:] == [*captioning.TASK.in_paper.titles.values(), "trials"]


def test_seeds_become_mean_and_deviation_of_every_score():
    text = scores.markdown([captioned("1", value, seed, spice=value) for seed, value in enumerate((0.6, 0.7, 0.8))])
    ours = block(text, "ours")
    assert ours["BLEU-2"][2] == "0.710 ± 0.100" and ours["SPICE"][2] == "0.700 ± 0.100" and ours["trials"][2] == "3"
    assert "not run" not in text


def test_each_method_has_its_block():
    text = scores.markdown([*SWEEP, captioned("1", 0.9, method="group")])
    assert block(text, "ours: scenes, tiny-blip, group")["CIDEr"] == ["-", "-", "0.900", "-", "-"]


def test_spice_that_was_not_run_says_so_with_the_reason():
    text = scores.markdown([*SWEEP, captioned("0.5", 0.6), captioned("0.5", 0.6, seed=1, spice=0.2)])
    assert block(text, "ours")["SPICE"] == 5 * ["not run [1]"]  # also where one of the trials lacks it
    assert text.endswith(f"\n\n[1] SPICE was not run: {REASON}.\n")
    slow = SWEEP[2].metrics.model_copy(update={"not_run": {"spice": "its program failed: no memory"}})
    text = scores.markdown([*SWEEP[:2], dataclasses.replace(SWEEP[2], metrics=slow)])
    assert "[2] SPICE was not run: its program failed: no memory." in text
    assert block(text, "ours")["SPICE"] == ["-", "-", "not run [2]", "not run [1]", "not run [1]"]


def test_the_reader_is_told_what_does_not_compare():
    text = " ".join(scores.markdown(SWEEP).split())
    assert "the paper claims by its own convention (sensitivity C), which is not sound" in text
    assert "neither batch size nor epochs" in text and "5,000 image-caption pairs" in text


def test_what_is_not_sound_says_so_here_too():
    text = scores.markdown([captioned("1", 0.7), captioned("1", 0.7, seed=1, key="fixed")])  # one is enough
    assert "NOT A SOUND GUARANTEE: none (fixed noise seed" in text
    assert block(text, "ours")["sound epsilon"][2] == "inf"


def test_both_kinds_of_tables_fit_into_one_file():
    pictures = test_table.outcome("1", 0.5)
    pictures = dataclasses.replace(pictures, cell=dataclasses.replace(pictures.cell, dataset="mnist"))
    both = [pictures, *SWEEP]
    text = report.papers_tables(both, summarise(both))
    assert re.findall(r"^## Table (\d)", text, re.MULTILINE) == ["1", "2", "5"]
    assert report.papers_tables(SWEEP, summarise(SWEEP)) == scores.markdown(SWEEP)


def test_captions_of_a_dataset_of_the_papers_are_not_in_its_tables_of_accuracy():
    of_mnist = [dataclasses.replace(o, cell=dataclasses.replace(o.cell, dataset="mnist")) for o in SWEEP]
    assert paper.markdown(summarise(of_mnist)) == paper.NO_TABLES
    pictures = test_table.outcome("1", 0.5)
    pictures = dataclasses.replace(pictures, cell=dataclasses.replace(pictures.cell, dataset="mnist"))
    assert paper.markdown(summarise([pictures, *of_mnist])) == paper.markdown(summarise([pictures]))


# The table and the plot


def test_the_main_table_says_what_its_numbers_are():
    text = markdown(summarise([*SWEEP, test_table.outcome("1", 0.5)]))
    assert "**captioning, tiny-blip**: CIDEr x 100 on the test split, one trial" in text
    assert "| inf (non-private) | inf | 125.00 | inf |" in text
    assert "**classification, tiny-clip**: accuracy in % on the test split" in text


def test_the_plot_says_what_its_axis_is_and_has_no_published_curve(tmp_path, monkeypatch):
    monkeypatch.setattr(plt, "close", lambda _: None)
    of_mnist = [dataclasses.replace(o, cell=dataclasses.replace(o.cell, dataset="mnist")) for o in SWEEP]
    plot.draw(summarise(of_mnist), tmp_path / "mnist.png")  # the paper has its accuracy, not its captions
    axes = plt.gca()
    assert axes.get_ylabel() == "CIDEr x 100" and axes.get_title().startswith("mnist, tiny-blip")
    assert [line.get_label() for line in axes.get_lines() if not line.get_label().startswith("_")] == [
        "non-private, batch: 125.0",
        "zero-shot: 40.0",
    ]
