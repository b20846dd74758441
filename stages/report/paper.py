"""Tables 1-4 of the paper with our results in them, and the paper's curve for the plots.

What others published is in published.yaml. A row is either `published`, with its source, or `ours`; a cell of ours is
what was measured here, or a dash.
"""

import math
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict
from ruamel.yaml import YAML

from stages.privacy.facts import round_up
from stages.report.table import epsilon_name, not_sound

MODEL = "ViT-L/14-336px"  # of the paper's DP-CLIP
NO_TABLES = "None of the paper's datasets is in this sweep, so there is no table of the paper to compare with.\n"


class Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Source(Part):
    short: str
    work: str
    key: str | None = None


class Noise(Part):
    """A training of the paper, and what its noise really gives, by the epsilon that was claimed for it."""

    datasets: list[str]
    n: int
    batch_size: int
    epochs: float
    rdp: dict[str, float]
    pld: dict[str, float]


class Figure(Part):
    dataset: str
    method: str
    epsilon: str
    value: str
    deviation: str | None = None

    @property
    def text(self) -> str:
        # printed as a fraction beside a value in %; see published.yaml
        return self.value if self.deviation is None else f"{self.value} ± {100 * float(self.deviation):.2f}"


class Table(Part):
    task: str
    title: str
    spread: str
    blocks: list[list[str]]
    figures: list[Figure]

    @property
    def datasets(self) -> list[str]:
        return [dataset for block in self.blocks for dataset in block]

    def ours(self, summary: pd.DataFrame) -> pd.Series:
        """Which rows of the summary belong in it."""
        return (summary["task"] == self.task) & summary["dataset"].isin(self.datasets)


class ScoreTable(Part):
    """Each score has a figure for each of the epsilons, as printed."""

    task: str
    title: str
    data: str
    epsilons: list[str]
    scores: dict[str, list[str]]


class Published(Part):
    sources: dict[str, Source]
    noise: list[Noise]
    tables: list[Table]
    scores: list[ScoreTable]

    def sound_epsilon(self, figure: Figure) -> float | None:
        """Of a figure of DP-CLIP; None where its noise is not known."""
        if figure.epsilon in ("0", "inf"):
            return float(figure.epsilon)
        epsilon = figure.epsilon
        return next((min(n.rdp[epsilon], n.pld[epsilon]) for n in self.noise if figure.dataset in n.datasets), None)

    def curve(self, task: str, dataset: str) -> list[Figure]:
        """DP-CLIP's private figures for a dataset, if there are any; Table 2 repeats some of Table 1."""
        figures = {
            figure.epsilon: figure
            for table in self.tables
            if table.task == task
            for figure in table.figures
            if figure.dataset == dataset and figure.method == "DP-CLIP" and figure.epsilon not in ("0", "inf")
        }
        return sorted(figures.values(), key=lambda figure: float(figure.epsilon))


def of_all(joint: dict[str, str]) -> str:
    """What holds for ours together."""
    lines = [f"- {dataset}: {sentence}." for dataset, sentence in joint.items()]
    return "\n".join(["A mean over trials has the epsilon of all of them together (report/table.md).", *lines]) + "\n"


@cache
def published() -> Published:
    return Published.model_validate(YAML(typ="safe").load(Path(__file__).with_name("published.yaml")))


def markdown(summary: pd.DataFrame) -> str:
    """Those of the tables of which the sweep has a dataset."""
    tables = [table for table in published().tables if table.ours(summary).any()]
    if not tables:
        return NO_TABLES
    ours = summary[np.logical_or.reduce([table.ours(summary) for table in tables])]
    parts = ["# The paper's tables, with ours", *not_sound(ours), _how_to_read(ours)]
    for table in tables:
        parts += [f"## {table.title}", f"Accuracy in % on the test split. Published: {table.spread}."]
        parts += [_block(datasets, table, ours[table.ours(ours)]) for datasets in table.blocks]
    return "\n\n".join([*parts, "## Sources", _sources(tables)]) + "\n"


def _how_to_read(ours: pd.DataFrame) -> str:
    models = ", ".join(ours["model"].unique())
    mnist = next(noise for noise in published().noise if "mnist" in noise.datasets)
    by_rdp, by_pld = round_up(mnist.rdp["1"], 3), round_up(mnist.pld["1"], 3)
    return f"""\
- `ours` was measured here: mean ± standard deviation (trials). `published` is quoted from the paper, also for other
  methods: nothing of it was measured or checked here. A dash: not measured, or not published. Deviations are in
  points of accuracy (the paper prints fractions: its 6.45e-04 is 0.06 here).
- **The same epsilon is not the same privacy.** Published DP-CLIP stands under the epsilon that it claims by the paper's
  own convention (sensitivity C), which is not sound; ours stands under its target. So every accuracy has two epsilons
  beside it: the sound one (sensitivity 2C, or C for `example` under Poisson sampling; the better of RDP and PLD),
  which is the one to compare, and what the paper's convention claims for the same noise. (By RDP alone, the paper's
  accountant, sound epsilons are larger: {by_rdp} where the one claimed as 1 on MNIST is {by_pld}.)
- **Models.** Published DP-CLIP is a {MODEL}, ours is what its row names: {models}. Where they differ, so does what
  they can reach: a gap between two rows is then not the gap between two methods."""


def _block(datasets: list[str], table: Table, ours: pd.DataFrame) -> str:
    """Rows: an epsilon, largest first, and whose figures. Columns: for each dataset the accuracy and its epsilons."""
    rows: dict[tuple[str, str], dict[str, list[str]]] = {}
    for figure in table.figures:
        if figure.dataset in datasets:
            source = published().sources[figure.method].short
            cells = rows.setdefault((figure.epsilon, f"published: {figure.method} ({source})"), {})
            cells[figure.dataset] = [figure.text, _claimed(figure)]
    reaches = {epsilon for epsilon, _ in rows}
    for row in ours[ours["dataset"].isin(datasets)].itertuples():
        if row.epsilon in ("0", "inf") and not reaches & {"0", "inf"}:
            continue  # a table of private methods only
        cells = rows.setdefault((row.epsilon, f"**ours: {row.model}, {row.method}**"), {})
        cells[row.dataset] = [_measured(row), f"{round_up(row.epsilon_sound, 3)} / {round_up(row.epsilon_paper, 3)}"]
    header = ["epsilon (claimed, or our target)", "whose"]
    for dataset in datasets:
        header += [dataset, "sound / paper's epsilon"]
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    for epsilon, whose in sorted(rows, key=lambda row: float(row[0]), reverse=True):
        line = [epsilon_name(epsilon), whose]
        for dataset in datasets:
            line += rows[epsilon, whose].get(dataset, ["-", "-"])
        lines.append(f"| {' | '.join(line)} |")
    return "\n".join(lines)


def _claimed(figure: Figure) -> str:
    if figure.method != "DP-CLIP":
        return "not checked"
    sound = published().sound_epsilon(figure)
    return f"{'not known' if sound is None else round_up(sound, 3)} / {figure.epsilon}"


def _measured(row) -> str:
    deviation = "" if math.isnan(row.std) else f" ± {row.std:.2f}"
    return f"{row.mean:.2f}{deviation} ({row.trials} trial{'s' if row.trials > 1 else ''})"


def _sources(tables: list[Table]) -> str:
    """In the order of the file."""
    methods = {figure.method for table in tables for figure in table.figures}
    lines = []
    for method, source in published().sources.items():
        if method in methods:
            cited = f", quoted by the paper as `{source.key}`" if source.key else ", the paper"
            lines.append(f"- published: {method} ({source.short}){cited}: {source.work}.")
    return "\n".join(lines)
