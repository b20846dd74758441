"""From points to exponents, tables and pictures."""

import math
from collections.abc import Sequence
from pathlib import Path

from stages import markdown
from stages.atomic import write_json
from stages.params import Theory
from stages.theory import draw, slips
from stages.theory.fit import FEWEST, Exponent, fit
from stages.theory.study import Point

FOLDER = Path("theory")
LINES = {  # series, method: (name, the theorem's exponent)
    ("n epsilon", "group"): ("privacy cost in n epsilon, group", -0.5),
    ("epsilon", "group"): ("privacy cost in epsilon, group", -0.5),
    ("n", "group"): ("privacy cost in n, group of fixed size", -0.5),
    ("epsilon", "batch"): ("privacy cost in epsilon, batch", -0.5),
    ("n", "batch"): ("privacy cost in n, batch", -0.5),
    ("rd", "group"): ("privacy cost in r d, group", 0.25),
    ("log(1/delta)", "group"): ("privacy cost in log(1/delta), group", 0.25),
    ("n", "none"): ("statistical error in n, epsilon inf", -0.5),
}
AXES = {"n epsilon": "n epsilon", "epsilon": "epsilon", "n": "n", "rd": "r d", "log(1/delta)": "log(1/delta)"}


def write(folder: Path, points: Sequence[Point], config: Theory) -> str:
    """All files but points.json; returns the table of exponents."""
    both = [p for p in points if p.setting.series == "n epsilon"]  # of these some vary epsilon, the others n
    points = [
        *points,
        *(p.on("epsilon") for p in both if p.setting.n == config.n),
        *(p.on("n") for p in both if p.setting.epsilon == config.epsilon),
    ]
    everywhere, within = exponents(points), exponents([p for p in points if not p.unmet])
    table = exponent_table(everywhere, within)
    write_json(
        folder / "exponents.json",
        {e.of.replace(" ", "_").replace("(1/delta)", "").replace(",", ""): e.fitted for e in everywhere},
    )
    pictures(folder / "plots", points, everywhere)
    (folder / "table.md").write_text("\n".join(_pages(table, points, config)), encoding="utf-8")
    return table


def exponents(points: Sequence[Point]) -> list[Exponent]:
    found = []
    for (series, method), (name, predicted) in LINES.items():
        its = [p for p in points if (p.setting.series, p.setting.method) == (series, method)]
        if len(its) >= FEWEST:
            found.append(fit(name, predicted, [p.setting.x for p in its], [p.error for p in its]))
    return found


def exponent_table(everywhere: list[Exponent], within: list[Exponent]) -> str:
    kept = {e.of: e for e in within}
    header = ["exponent of the", "theorem", "fitted", "95% interval", "points, decades", "agrees"]
    rows = []
    for e in everywhere:
        also = kept.get(e.of)
        there = f"{also.fitted:.3f} ({also.low:.3f} to {also.high:.3f}), {also.points} points" if also else "-"
        interval = f"{e.low:.3f} to {e.high:.3f}"
        agrees = "yes" if e.agrees else "**no**"
        size = f"{e.points}, {e.decades:g}"
        rows.append((e.of, f"{e.predicted:g}", f"{e.fitted:.3f}", interval, size, agrees, there))
    return markdown.table([*header, "where all conditions hold"], rows)


def pictures(folder: Path, points: Sequence[Point], fitted: list[Exponent]) -> None:
    folder.mkdir()
    for series, label in AXES.items():
        its = [p for p in points if p.setting.series == series]
        names = {LINES[key][0] for key in LINES if key[0] == series}
        if its:
            draw.line(its, [e for e in fitted if e.of in names], label, folder / f"{_file(series)}.png")
    for point in points:
        if point.trace:
            draw.trace(point, folder / "steps.png")
    draw.clips([p for p in points if p.setting.series == "clip norm"], folder / "clip-norm.png")


def point_table(points: Sequence[Point], config: Theory) -> str:
    header = ["series", "method", "x", "n", "epsilon", "T", "sigma", "C", "eta", "clipped", "error"]
    rows = []
    for p in points:
        s, error = p.setting, f"{sum(p.error) / len(p.error):.4f}"
        where = (s.series, s.method, f"{s.x:.4g}", f"{s.n:,}")
        if s.method == "none":
            rows.append((*where, "inf", *5 * "-", error, "none"))
            continue
        constant = p.sigma * s.epsilon / (config.sampling_rate * math.sqrt(p.steps * math.log(1 / s.delta)))
        noise = (f"{s.epsilon:g}", f"{p.steps:,}", f"{p.sigma:.3g}", f"{constant:.2f}")
        rows.append((*where, *noise, f"{p.eta:.3g}", f"{p.clipped:.1%}", error, "; ".join(p.unmet) or "none"))
    return markdown.table([*header, "conditions not met"], rows)


def _file(series: str) -> str:
    return series.replace("log(1/delta)", "delta").replace(" ", "-")


def _pages(table: str, points: Sequence[Point], config: Theory):
    yield f"# The theorem, measured\n\n{config.trials} trials a point; intervals: bootstrap over trials.\n\n{table}\n"
    yield "## Points\n"
    yield "C is the constant of sigma = C q sqrt(T log(1/delta)) / epsilon with the accountant's sigma.\n"
    yield point_table(points, config)
    yield "\n## Slips of the paper\n"
    yield "The proposition's noise does not depend on the batch size b, and the sensitivity 2c does not either:\n"
    yield slips.sigma_table(config.sampling_rate, config.epsilon, config.delta)
    yield "\nThe ratio grows with b, so with b = nu n no constant repairs it. Others:\n"
    yield from (f"- {slip}" for slip in slips.OTHERS)
    yield ""
