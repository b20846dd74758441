"""The paper's tables: what was published is quoted exactly and marked, and ours is what was measured here."""

import dataclasses
import json
import re

import matplotlib.pyplot as plt
import pytest

from stages.privacy import secret
from stages.privacy.accounting import Plan, calibrate_rdp, epsilon_pld, epsilon_rdp, pld_interval
from stages.privacy.methods.batch import BatchClipping
from stages.privacy.sampling import PoissonSampling
from stages.report import paper, plot
from stages.report.table import Outcome, summarise
from tests.conftest import ROOT
from tests.report.test_table import outcome

TEX = ROOT.parent / "shared" / "paper.tex"
PUBLISHED = paper.published()
NAMES = {"MNIST": "mnist", "Fashion-MNIST": "fashion-mnist", "CIFAR-10": "cifar10", "SVHN": "svhn"}


def ours(dataset: str, epsilon: str, score: float, seed: int = 0, model: str = "tiny-clip", **more) -> Outcome:
    made = outcome(epsilon, score, seed, **more)
    return dataclasses.replace(made, cell=dataclasses.replace(made.cell, dataset=dataset, model=model))


def rows(text: str, kind: str) -> list[list[str]]:
    """The cells of the rows that are `ours` or `published`."""
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return [cells for cells in table if cells[1].strip("*").startswith(kind)]


def figures(number: int) -> set[tuple]:
    return {(f.dataset, f.method, f.epsilon, f.value, f.deviation) for f in PUBLISHED.tables[number - 1].figures}


# Published figures


@pytest.fixture(scope="module")
def tex() -> str:
    if not TEX.is_file():
        pytest.skip("the paper's source beside the project is not here")
    return TEX.read_text(encoding="utf-8")


def tabular(tex: str, start: str) -> list[list[str]]:
    """The cells of the first tabular after `start`, without markup."""
    body = tex[tex.index(start) :].split(r"\midrule" if "tab" in start else r"\begin{tabular}", 1)[1]
    lines = body.split(r"\end{tabular}", 1)[0].splitlines()
    return [[_plain(cell) for cell in line.split("&")] for line in lines if "&" in line]


def _plain(cell: str) -> str:
    cell = re.sub(r"\\cmidrule\S*|\\multicolumn\{3\}\{c\}|\\textbf|\\qquad|\\\\|[${}]", "", cell).strip()
    cell = cell.replace(r"\dpclip", "DP-CLIP").replace(r"\epsilon=", "").replace(r"\infty", "inf")
    return re.sub(r"(0 \()?[Zz]ero-?shot\)?", "0", cell).replace(r"\sim ", "~").replace(r"\%", "%")


def test_table_1_is_the_papers_with_the_deviations_of_its_appendix(tex):
    means = tabular(tex, r"\label{tab1:utilityprivacytradeoff}")
    full = tabular(tex, r"\label{tab:fullutilityprivacytradeoff}")
    assert len(means) == len(full) == 7
    expected = set()
    for (epsilon, *values), (again, *pairs) in zip(means, full, strict=True):
        assert epsilon == again
        for dataset, value, pair in zip(NAMES.values(), values, pairs, strict=True):
            assert pair.startswith(value)
            expected.add((dataset, "DP-CLIP", epsilon, value, pair.split(r"\pm ")[1]))
    assert figures(1) == expected and len(PUBLISHED.tables[0].figures) == len(expected) == 28


def test_table_2_is_the_papers(tex):
    expected, left, right = set(), "", ""
    for cells in tabular(tex, "Comparison with state-of-the-art DP methods"):
        if cells[0] in NAMES:
            left, right = NAMES[cells[0]], NAMES[cells[2]]
            continue
        for dataset, (method, epsilon, value) in ((left, cells[:3]), (right, (cells[4:7] + 3 * [""])[:3])):
            if method:
                expected.add((dataset, method, epsilon, value, None))
    assert figures(2) == expected and len(PUBLISHED.tables[1].figures) == len(expected) == 22


def test_table_3_is_the_papers(tex):
    expected = {
        (dataset, "DP-CLIP", epsilon, *pair.split(r" \pm "))
        for epsilon, *pairs in tabular(tex, r"\label{tab3:cifar100gtrsb}")
        for dataset, pair in zip(("cifar100", "gtsrb"), pairs, strict=True)
    }
    assert figures(3) == expected and len(PUBLISHED.tables[2].figures) == len(expected) == 12


def test_table_4_is_the_papers(tex):
    expected = set()
    for setting, dp_clip, pillar in tabular(tex, r"\label{tab4:gtsrb comparison}"):
        epsilon, percent = re.fullmatch(r"([\d.]+) at (\d+)% Train Data", setting).groups()
        expected.add((f"gtsrb-{percent}", "DP-CLIP", epsilon, *dp_clip.split(r" \pm ")))
        expected.add((f"gtsrb-{percent}", "PILLAR", epsilon, pillar, None))
    assert figures(4) == expected and len(PUBLISHED.tables[3].figures) == len(expected) == 8


def test_some_figures_typed_again_from_the_paper():
    assert {
        ("mnist", "DP-CLIP", "1", "98.40", "1.28e-03"),
        ("fashion-mnist", "DP-CLIP", "inf", "92.08", "2.55e-03"),
        ("cifar10", "DP-CLIP", "0.25", "93.19", "3.67e-03"),
        ("svhn", "DP-CLIP", "0", "24.86", "0.00"),
    } <= figures(1)
    assert {
        ("mnist", "DP-KIP", "10", "97.96", None),
        ("mnist", "DP-SGD (TS)", "2.93", "98.1", None),
        ("mnist", "Private-kNN", "0.47", "98.8", None),
        ("svhn", "Active Learning", "6", "85.0", None),
        ("cifar10", "DP-SGD (large)", "4", "96.1", None),
    } <= figures(2)
    assert ("gtsrb", "DP-CLIP", "0.25", "77.55", "7.64e-03") in figures(3)
    assert {("gtsrb-10", "PILLAR", "0.7", "~38", None), ("gtsrb-50", "DP-CLIP", "0.1", "45.43", "1.42e-02")} <= figures(
        4
    )


def test_every_method_has_a_source():
    methods = {figure.method for table in PUBLISHED.tables for figure in table.figures}
    assert methods == set(PUBLISHED.sources)


CLAIMS = ("0.25", "0.5", "1", "3", "10")
CONTRACT = {  # by RDP, as the privacy contract has it
    "mnist": (0.8, 2.7, 9.9, 59, 226),
    "fashion-mnist": (0.8, 2.7, 9.9, 59, 226),
    "cifar10": (0.7, 2.6, 9.7, 58, 219),
    "svhn": (1.2, 3.2, 10.0, 51, 193),
}


@pytest.mark.parametrize(("dataset", "claimed"), [("mnist", "1"), ("cifar10", "0.25"), ("svhn", "10")])
def test_the_sound_epsilon_of_the_papers_noise_is_what_the_accountants_say(dataset, claimed):
    noise = next(noise for noise in PUBLISHED.noise if dataset in noise.datasets)
    sampling, delta = PoissonSampling(noise.n, noise.batch_size), 1 / (2 * noise.n)
    plan = Plan(sampling, BatchClipping(clip_norm=1.0, sigma=1.0), sampling.steps(noise.epochs))
    found = calibrate_rdp(plan, float(claimed), delta)
    papers = found.with_z(found.z / found.factor)  # what the paper takes for z is sigma
    assert noise.rdp[claimed] == pytest.approx(epsilon_rdp(papers, delta), rel=1e-4)
    assert noise.pld[claimed] == pytest.approx(epsilon_pld(papers, delta, pld_interval(float(claimed))), rel=1e-4)


@pytest.mark.parametrize("dataset", CONTRACT)
def test_the_sound_epsilons_agree_with_the_contract(dataset):
    noise = next(noise for noise in PUBLISHED.noise if dataset in noise.datasets)
    figures = PUBLISHED.curve("classification", dataset)
    assert tuple(figure.epsilon for figure in figures) == tuple(noise.rdp) == tuple(noise.pld) == CLAIMS
    for figure, by_rdp in zip(figures, CONTRACT[dataset], strict=True):
        assert noise.rdp[figure.epsilon] == pytest.approx(by_rdp, abs=0.1 if by_rdp < 11 else 1.1)
        assert float(figure.epsilon) < PUBLISHED.sound_epsilon(figure) == noise.pld[figure.epsilon] < by_rdp


# Ours beside them


SEEDS = [ours("mnist", "1", 0.8123), ours("mnist", "1", 0.8323, 1)]


def test_a_cell_that_was_not_measured_is_a_dash_and_never_a_published_figure():
    text = paper.markdown(summarise([*SEEDS, ours("svhn", "10", 0.4321, model="other")]))
    table_1 = rows(text.split("## Table 2")[0], "ours")
    assert table_1 == [
        ["10", "**ours: other, batch**", *6 * ["-"], "43.21 (1 trial)", "10 / 4"],
        ["1", "**ours: tiny-clip, batch**", "82.23 ± 1.41 (2 trials)", "1 / 0.4", *6 * ["-"]],
    ]
    accuracies = {cell for row in rows(text, "ours") for cell in row[2::2]}
    assert accuracies == {"43.21 (1 trial)", "82.23 ± 1.41 (2 trials)", "-"}


def test_every_published_figure_is_marked_so_with_its_source():
    sweep = [ours(dataset, "1", 0.1234) for dataset in ("mnist", "gtsrb", "gtsrb-10")]
    text = paper.markdown(summarise(sweep))
    for table in PUBLISHED.tables:
        for figure in table.figures:
            shown = [
                row
                for row in rows(text, "published")
                if row[1] == f"published: {figure.method} ({PUBLISHED.sources[figure.method].short})"
                and row[0].split()[0] == figure.epsilon
                and figure.text in row
            ]
            assert shown, figure
    elsewhere = "\n".join(line for line in text.splitlines() if "| published: " not in line)
    for figure in (f for table in PUBLISHED.tables for f in table.figures):
        assert figure.value not in elsewhere, figure
    for source in PUBLISHED.sources.values():
        assert source.work in text


def test_deviations_are_in_points_of_accuracy():
    text = paper.markdown(summarise(SEEDS))
    assert "98.70 ± 0.06" in text and "its 6.45e-04 is 0.06 here" in text


def test_both_conventions_stand_beside_every_figure_of_dp_clip():
    mnist = next(row for row in rows(paper.markdown(summarise(SEEDS)), "published") if row[0] == "1")
    sound, claimed = mnist[3].split(" / ")
    assert claimed == "1" and 8 < float(sound) < 9
    table_3 = rows(paper.markdown(summarise([ours("gtsrb", "1", 0.5)])), "published")
    assert ["1", "published: DP-CLIP (Huang et al. 2024)", *table_3[2][2:]] == table_3[2]
    assert table_3[2][3] == table_3[2][5] == "not known / 1"  # the paper does not say how it was trained
    others = [row for row in rows(paper.markdown(summarise(SEEDS)), "published") if "DP-CLIP" not in row[1]]
    assert others and all(row[3] == "not checked" for row in others)


def test_the_reader_is_told_what_differs():
    text = paper.markdown(summarise([*SEEDS, ours("mnist", "1", 0.9, model="vit-b-32")]))
    assert "The same epsilon is not the same privacy" in text and "paper's\n  own convention" in text
    assert "Published DP-CLIP is a ViT-L/14-336px, ours is what its row names: tiny-clip, vit-b-32." in text


def test_what_is_not_sound_says_so_here_too():
    text = paper.markdown(summarise([ours("mnist", "1", 0.8, key="fixed")]))
    assert "NOT A SOUND GUARANTEE: none (fixed noise seed" in text and "inf / 0.4" in text


@pytest.mark.parametrize(
    ("datasets", "tables"),
    [
        (["digits"], []),
        (["mnist5k", "fashion-mnist"], ["1", "2"]),
        (["gtsrb"], ["3"]),
        (["gtsrb-50", "cifar100"], ["3", "4"]),
    ],
)
def test_a_table_is_there_if_the_sweep_has_a_dataset_of_it(datasets, tables):
    text = paper.markdown(summarise([ours(dataset, "1", 0.5) for dataset in datasets]))
    assert re.findall(r"^## Table (\d)", text, re.MULTILINE) == tables
    assert (text == paper.NO_TABLES) == (tables == [])


def test_ours_without_privacy_is_not_in_a_table_of_private_methods():
    text = paper.markdown(summarise([ours("mnist", "inf", 0.99), ours("mnist", "0", 0.6), *SEEDS]))
    first, second = text.split("## Table 2")
    assert [row[0] for row in rows(first, "ours")] == ["inf (non-private)", "1", "0 (zero-shot)"]
    assert [row[0] for row in rows(second, "ours")] == ["1"]


# Plots and files


def test_the_papers_curve_is_drawn_at_its_sound_epsilons():
    figure, axes = plt.subplots()
    drawn = plot.draw_published(axes, "classification", "mnist")
    line = axes.get_lines()[0]
    assert list(line.get_xdata()) == drawn == list(PUBLISHED.noise[0].pld.values())
    assert list(line.get_ydata()) == [97.66, 98.12, 98.40, 98.67, 98.70]
    assert line.get_label().startswith("published, ViT-L/14-336px") and "paper's convention" in line.get_label()
    assert [text.get_text() for text in axes.texts] == [f"claims {e}" for e in CLAIMS]
    plt.close(figure)


def test_the_plot_of_a_sweep_has_the_papers_curve_beside_ours(tmp_path, monkeypatch):
    monkeypatch.setattr(plt, "close", lambda _: None)
    plot.draw(summarise(SEEDS), tmp_path / "mnist.png")
    drawn = {line.get_label().split(",")[0]: list(line.get_ydata()) for line in plt.gca().get_lines()}
    assert drawn["published"][-1] == 98.70
    assert [bars.get_label() for bars in plt.gca().containers] == ["private, clip per batch"]


@pytest.mark.parametrize(("dataset", "labels"), [("gtsrb", ["published: not drawn"]), ("mnist5k", [])])
def test_no_curve_is_drawn_where_its_place_is_not_known(dataset, labels):
    figure, axes = plt.subplots()
    assert plot.draw_published(axes, "classification", dataset) == []
    assert [line.get_label().split(",")[0] for line in axes.get_lines()] == labels
    assert not any(len(line.get_xdata()) for line in axes.get_lines())
    plt.close(figure)


def test_the_report_writes_and_shows_the_papers_tables(project, monkeypatch):
    params = project.params()
    # Initial weights: a claim that no training made is refused before any table.
    params["sweep"] |= {"dataset": ["mnist"], "epsilon": [0]}
    params["prepare"]["mnist"] = {"source": "mnist"}
    project.write_params(params)
    made = ours("mnist", "0", 0.8123)
    model = project.folder / made.cell.model_dir
    model.mkdir(parents=True)
    (model / "weights").write_text("as they were")
    monkeypatch.setenv("LEDGER_DIR", str(project.folder / "ledger"))
    made = dataclasses.replace(made, training=made.training.model_copy(update={"weights": secret.digest_of(model)}))
    for path, content in ((made.cell.metrics_json, made.metrics), (made.cell.training_json, made.training)):
        (project.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (project.folder / path).write_text(json.dumps(content.model_dump()))
    done = project.stage("report")
    assert done.returncode == 0, done.stderr
    text = (project.folder / "report/paper.md").read_text()
    assert text == f"{paper.markdown(summarise([made]))}\n{paper.of_all({})}"
    assert text in project.stage("report", "--show").stdout


def test_a_sweep_without_the_papers_datasets_has_the_file_and_shows_nothing_of_it(finished):
    assert (finished.folder / "report/paper.md").read_text() == paper.NO_TABLES
    assert paper.NO_TABLES.strip() not in finished.stage("report", "--show").stdout
