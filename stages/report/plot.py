"""Privacy against utility: one picture a sweep, log-x, with zero-shot and non-private as lines."""

import math
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd

COLOURS = {"batch": "tab:blue", "group": "tab:orange", "example": "tab:green"}


def draw(sweep: pd.DataFrame, path: Path) -> None:
    """`sweep` is the part of the summary for one (task, dataset, model)."""
    first = sweep.iloc[0]
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
            axes.axhline(row["mean"], color="gray", linestyle=style, label=f"{name}: {row['mean']:.1f}%")
    axes.set_xscale("log")
    ticks = sorted(e for e in sweep["epsilon_sound"].unique() if 0 < e < math.inf)
    axes.set_xticks(ticks, [f"{t:.3g}" for t in ticks], minor=False)
    axes.minorticks_off()
    trials = int(sweep["trials"].max())
    bars_mean = "± one standard deviation" if trials > 1 else "95% interval of the test split"
    axes.set(
        xlabel="epsilon (sound; smaller is more private)",
        ylabel=f"{first['score']} in %",
        title=f"{first['dataset']}, {first['model']}   (bars: {bars_mean})",
    )
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")
    figure.savefig(path, dpi=120)
    plt.close(figure)
