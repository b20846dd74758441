"""The study as pictures. Points that miss a condition of the theorem are hollow."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from stages.theory.fit import Exponent
from stages.theory.study import Point

COLOURS = {"group": "tab:blue", "batch": "tab:red", "none": "tab:green"}
TERMS = {"optimisation": ":", "privacy": "--", "statistical": "-."}
HOLLOW = "hollow: a condition of the theorem is not met (theory/table.md says which)"


def line(points: Sequence[Point], exponents: Sequence[Exponent], label: str, path: Path) -> None:
    """Error against one quantity, for each method, with the terms of the bound and the fitted lines."""
    figure, axes = plt.subplots(figsize=(7, 6), layout="constrained")
    for method in dict.fromkeys(p.setting.method for p in points):
        its = sorted((p for p in points if p.setting.method == method), key=lambda p: p.setting.x)
        x = np.array([p.setting.x for p in its])
        _errors(axes, x, its, COLOURS[method], {"none": "sample minimiser (no privacy)"}.get(method, method))
        if its[0].setting.series == "n epsilon":  # the statistical term is of n alone: one n makes a line
            its = [p for p in its if p.setting.n == max(q.setting.n for q in its)]
        for term in its[0].terms:
            values = [p.terms[term] for p in its]
            (drawn,) = axes.plot([p.setting.x for p in its], values, label=f"bound: {term} ({method})")
            drawn.set(linestyle=TERMS[term], color=COLOURS[method], alpha=0.4)
    for exponent in exponents:
        axes.plot([], [], " ", label=f"{exponent.of}: {exponent.fitted:.2f} (theorem {exponent.predicted:g})")
    errors = [float(np.mean(p.error)) for p in points]
    axes.set(xscale="log", yscale="log", xlabel=label, ylabel="error")
    axes.set_ylim(min(errors) / 3, 3 * max([*errors, *(v for p in points for v in p.terms.values())]))
    _finish(figure, axes, path)


def _errors(axes, x: np.ndarray, points: list[Point], colour: str, label: str) -> None:
    mean = np.array([np.mean(p.error) for p in points])
    spread = np.array([np.std(p.error, ddof=1) / len(p.error) ** 0.5 * 1.96 for p in points])
    axes.errorbar(x, mean, yerr=spread, fmt="none", color=colour, capsize=3)
    axes.plot([], [], "o", color=colour, label=label)
    for there, face in ((False, "white"), (True, colour)):
        keep = np.array([not p.unmet for p in points]) == there
        axes.plot(x[keep], mean[keep], "o", color=colour, markerfacecolor=face)


def trace(point: Point, path: Path) -> None:
    """The linear phase, and the floor that the noise leaves."""
    figure, axes = plt.subplots(figsize=(7, 5), layout="constrained")
    steps, distance, bound = np.array(point.trace).T
    axes.plot(steps, distance, color=COLOURS["group"], label=f"group, mean of {len(point.distance)} trials")
    axes.plot(steps, bound, "--", color="grey", label="theorem, constants 1: contraction and noise floor")
    axes.axhline(np.mean(distance[len(distance) // 2 :]), color=COLOURS["group"], alpha=0.4, label="measured floor")
    axes.set(yscale="log", xlabel="step t", ylabel="dist(G, minimiser of the sample)")
    _finish(figure, axes, path)


def clips(points: Sequence[Point], path: Path) -> None:
    """Clipping active (left) and inactive (right)."""
    figure, (top, bottom) = plt.subplots(2, 1, figsize=(7, 6.5), sharex=True, layout="constrained")
    for method in ("batch", "group"):
        its = [p for p in points if p.setting.method == method]
        x = np.array([p.setting.x for p in its])
        _errors(top, x, its, COLOURS[method], method)
        bottom.plot(x, [p.clipped for p in its], "o-", color=COLOURS[method], label=method)
    top.set(xscale="log", yscale="log", ylabel="dist(G, minimiser of the sample)")
    bottom.set(xlabel="clip norm c", ylabel="share of gradients clipped")
    _finish(figure, top, path)


def _finish(figure, axes, path: Path) -> None:
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=7)
    figure.suptitle(HOLLOW, fontsize=8, color="grey")
    figure.savefig(path, dpi=120, metadata={"Software": None})
    plt.close(figure)
