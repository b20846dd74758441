"""Privacy against utility: one picture a sweep, log-x, with zero-shot and non-private as lines."""

import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd

from stages import tasks
from stages.report.paper import MODEL, published

COLOURS = {"batch": "tab:blue", "group": "tab:orange", "example": "tab:green"}


def draw(sweep: pd.DataFrame, path: Path) -> None:
    """`sweep` is the part of the summary for one (task, dataset, model)."""
    first = sweep.iloc[0]
    task, score = tasks.named(first["task"]), first["score"]
    unit = "%" if task.is_share(score) else ""
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for method, rows in sweep.groupby("method", sort=False):
        private = rows[~rows["epsilon"].isin(["0", "inf"]) & rows["epsilon_sound"].lt(math.inf)]
        private = private.sort_values("epsilon_sound")
        if private.empty:
            continue
        bars = [private["mean"] - private["low"], private["high"] - private["mean"]]
        axes.errorbar(
            private["epsilon_sound"],
            private["mean"],
            yerr=bars,
            marker="o",
            capsize=4,
            color=COLOURS.get(method),
            label=f"private, clip per {method}",
        )
    for epsilon, name, style in (("inf", "non-private", "--"), ("0", "zero-shot", ":")):
        for _, row in sweep[sweep["epsilon"] == epsilon].head(1).iterrows():
            name = f"{name}, {row['method']}" if epsilon == "inf" else name  # zero-shot is the same for all methods
            axes.axhline(row["mean"], color="gray", linestyle=style, label=f"{name}: {row['mean']:.1f}{unit}")
    axes.set_xscale("log")
    ticks = [e for e in sweep["epsilon_sound"].unique() if 0 < e < math.inf]
    # ours come first: a tick that would be written over one of them is left out
    curve = draw_published(axes, task.name, first["dataset"])
    ticks += [e for e in curve if all(abs(math.log(e / t)) > 0.2 for t in ticks)]
    axes.set_xticks(ticks, [f"{t:.3g}" for t in ticks], minor=False)
    axes.minorticks_off()
    trials = int(sweep["trials"].max())
    bars_mean = "± one standard deviation" if trials > 1 else "95% interval of the test split"
    axes.set(
        xlabel="epsilon (sound; smaller is more private)",
        ylabel=task.title_of(score),
        title=f"{first['dataset']}, {first['model']}   (bars: {bars_mean})",
    )
    axes.margins(x=0.07)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def draw_published(axes: plt.Axes, task: str, dataset: str) -> list[float]:
    """The paper's curve for a dataset of its own; returns the epsilons it is drawn at.

    The axis is the sound epsilon, so each figure is drawn where the paper's noise really is, with its claim beside it.
    Where that noise is not known the curve has no place on this axis: at the claimed epsilon it would look as private
    as ours, which it is not.
    """
    figures = published().curve(task, dataset)
    known = [(sound, figure) for figure in figures if (sound := published().sound_epsilon(figure)) is not None]
    if known:
        axes.plot(
            [sound for sound, _ in known],
            [float(figure.value) for _, figure in known],
            color="black",
            linestyle="-.",
            linewidth=1,
            marker="s",
            markersize=4,
            label=f"published, {MODEL} (claims: paper's convention)",
        )
    for sound, figure in known:
        point = (sound, float(figure.value))
        note = f"claims {figure.epsilon}"
        axes.annotate(note, point, (0, 5), textcoords="offset points", ha="center", fontsize="x-small")
    if figures and not known:
        axes.plot([], [], " ", label="published: not drawn, its sound epsilon is not known")
    return [sound for sound, _ in known]
