"""Privacy against utility as a drawing that stands in a page: what plot.py draws, with the numbers of each point.

A point and a level have their numbers as `<title>`, which a browser shows; the script of the page shows it better.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import pandas as pd
from matplotlib.colors import to_hex

from stages import tasks
from stages.privacy.facts import round_up
from stages.report.plot import COLOURS
from stages.report.table import epsilon_name, value

LEFT, RIGHT, TOP, BOTTOM = 52, 16, 14, 46  # pixels around the field
SHAPES = {"batch": "circle", "group": "square", "example": "diamond"}  # for whoever sees no difference in the colours
APART = 13  # pixels between methods at one epsilon


@dataclass(frozen=True)
class Scale:
    """From numbers to pixels. Epsilons are spaced by their logarithm."""

    width: int
    height: int
    epsilons: tuple[float, float]
    scores: tuple[float, float]

    def x(self, epsilon: float) -> float:
        low, high = map(math.log, self.epsilons)
        return LEFT + (math.log(epsilon) - low) / (high - low) * (self.width - LEFT - RIGHT)

    def y(self, score: float) -> float:
        low, high = self.scores
        return self.height - BOTTOM - (score - low) / (high - low) * (self.height - TOP - BOTTOM)


def drawn(sweep: pd.DataFrame) -> pd.DataFrame:
    """The private rows that have a place on the axis: those that an epsilon bounds."""
    return sweep[~sweep["epsilon"].isin(["0", "inf"]) & sweep["epsilon_sound"].lt(math.inf)]


def svg(sweep: pd.DataFrame, width: int, height: int) -> str:
    """`sweep` is the part of the summary for one (task, dataset, model)."""
    task, score = tasks.named(sweep.iloc[0]["task"]), sweep.iloc[0]["score"]
    points, levels = drawn(sweep), levels_of(sweep)
    scale = Scale(width, height, _epsilons(points), _scores(points, levels))
    title = f"{task.title_of(score)} against the sound epsilon: {sweep.iloc[0]['dataset']}, {sweep.iloc[0]['model']}"
    parts = [
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="group" '
        f'aria-label="{escape(title)}">',
        *_axes(scale, points, task.title_of(score)),
        *(_level(scale, row) for _, row in levels.iterrows()),
        *_points(scale, points),
    ]
    return "\n".join([*parts, "</svg>"])


def levels_of(sweep: pd.DataFrame) -> pd.DataFrame:
    """Drawn as lines: non-private for each method, and zero-shot, which is the same for all of them."""
    return pd.concat([sweep[sweep["epsilon"] == "inf"], sweep[sweep["epsilon"] == "0"].head(1)])


def legend(sweep: pd.DataFrame) -> str:
    methods = [m for m in dict.fromkeys(sweep["method"]) if (drawn(sweep)["method"] == m).any()]
    items = [f"{swatch(method)} private, clip per {escape(method)}" for method in methods]
    for _, row in levels_of(sweep).iterrows():
        name = f"non-private, {row['method']}" if row["epsilon"] == "inf" else "zero-shot"
        line = f'<line x1="1" y1="7" x2="25" y2="7" {_stroke(row)}/>'
        items.append(
            f'<svg class="swatch" width="26" height="14" aria-hidden="true">{line}</svg> {escape(name)}: {value(row)}'
        )
    return f'<ul class="legend">{"".join(f"<li>{item}</li>" for item in items)}</ul>'


def swatch(method: str) -> str:
    return f'<svg class="swatch" width="14" height="14" aria-hidden="true">{_mark(method, 7, 7)}</svg>'


def numbers(row: pd.Series) -> str:
    """Of a point, as text of a few lines."""
    score = tasks.named(row["task"]).title_of(row["score"])
    lines = [f"{row['method']}, epsilon {epsilon_name(row['epsilon'])}", f"{score}: {value(row)} ({interval(row)})"]
    if row["epsilon"] == "inf":
        lines.append("trained without privacy: covered by no epsilon")
    elif row["epsilon"] == "0":
        lines.append("before any private record was seen: epsilon 0")
    else:
        lines.append(f"sound epsilon {round_up(row['epsilon_sound'], 3)} at delta {round_up(row['delta'], 3)}")
        lines.append(row["guarantee"])
    return "\n".join([*lines, f"{row['trials']} trial{'s' if row['trials'] > 1 else ''}"])


def interval(row: pd.Series) -> str:
    kind = "one standard deviation" if row["trials"] > 1 else "95% interval"
    return f"{kind}: {row['low']:.2f} to {row['high']:.2f}"


def ticks(low: float, high: float, about: int = 6) -> list[float]:
    """Round numbers between two, not many more than `about`.

    >>> ticks(57.8, 95.2), ticks(0.1, 0.34, 3)
    ([60, 70, 80, 90], [0.1, 0.2, 0.3])
    """
    step = 10 ** math.floor(math.log10((high - low) / about))
    step *= next(m for m in (1, 2, 5, 10) if (high - low) / (step * m) <= about)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


def _epsilons(points: pd.DataFrame) -> tuple[float, float]:
    """Of the axis: a little more than there are, and something where there are none."""
    if points.empty:
        return 0.1, 10.0
    low, high = points["epsilon_sound"].min(), points["epsilon_sound"].max()
    room = max(1.25, (high / low) ** 0.08)
    return low / room, high * room


def _scores(points: pd.DataFrame, levels: pd.DataFrame) -> tuple[float, float]:
    values = [*points["low"], *points["high"], *levels["mean"]] or [0.0, 100.0]
    room = 0.06 * (max(values) - min(values)) or 1.0
    return min(values) - room, max(values) + room


def _axes(scale: Scale, points: pd.DataFrame, score: str) -> list[str]:
    right, bottom, parts = scale.width - RIGHT, scale.height - BOTTOM, []
    for tick in ticks(*scale.scores):
        y = scale.y(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    last = -math.inf
    for epsilon in sorted(set(points["epsilon_sound"])):
        x = scale.x(epsilon)
        if x - last > 34:  # else one would be written over the other
            last = x
            parts.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}"/>')
            parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{round_up(epsilon, 3)}</text>')
    middle = (LEFT + right) / 2
    about = "sound epsilon, log scale (smaller is more private)"
    parts.append(f'<line class="axis" x1="{LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}"/>')
    parts.append(f'<text x="{middle:.1f}" y="{scale.height - 8}" text-anchor="middle">{about}</text>')
    across = f'transform="translate(13 {(TOP + bottom) / 2:.1f}) rotate(-90)" text-anchor="middle"'
    parts.append(f"<text {across}>{escape(score)}</text>")
    if points.empty:
        none = "no private model here has a sound epsilon"
        parts.append(f'<text class="none" x="{middle:.1f}" y="{bottom - 14}" text-anchor="middle">{none}</text>')
    return parts


def _level(scale: Scale, row: pd.Series) -> str:
    ends = f'x1="{LEFT}" x2="{scale.width - RIGHT}" y1="{scale.y(row["mean"]):.1f}" y2="{scale.y(row["mean"]):.1f}"'
    return (
        f'<g class="level" tabindex="0" role="img"><title>{escape(numbers(row))}</title>'
        f'<line {ends} {_stroke(row)}/><line class="reach" {ends}/></g>'
    )


def _points(scale: Scale, points: pd.DataFrame) -> list[str]:
    """Lines under the marks, so that a mark is never covered by the line of another method."""
    lines, marks = [], []
    methods: Sequence[str] = list(dict.fromkeys(points["method"]))
    for i, method in enumerate(methods):
        aside = (i - (len(methods) - 1) / 2) * APART
        rows = points[points["method"] == method].sort_values("epsilon_sound")
        places = [(scale.x(row["epsilon_sound"]) + aside, row) for _, row in rows.iterrows()]
        path = " ".join(f"{x:.1f},{scale.y(row['mean']):.1f}" for x, row in places)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour(method)}" stroke-width="1.5"/>')
        marks += [_point(scale, x, row) for x, row in places]
    return [*lines, *marks]


def _point(scale: Scale, x: float, row: pd.Series) -> str:
    y, low, high = (scale.y(row[name]) for name in ("mean", "low", "high"))
    bar = f"M{x:.1f} {low:.1f}V{high:.1f}M{x - 4:.1f} {low:.1f}h8M{x - 4:.1f} {high:.1f}h8"
    return (
        f'<g class="point" tabindex="0" role="img"><title>{escape(numbers(row))}</title>'
        f'<path d="{bar}" fill="none" stroke="{colour(row["method"])}" stroke-width="1.5"/>'
        f'{_mark(row["method"], x, y)}<circle class="reach" cx="{x:.1f}" cy="{y:.1f}" r="9"/></g>'
    )


def _mark(method: str, x: float, y: float) -> str:
    fill = f'class="mark" fill="{colour(method)}"'
    match SHAPES.get(method):
        case "square":
            return f'<rect {fill} x="{x - 4.5:.1f}" y="{y - 4.5:.1f}" width="9" height="9"/>'
        case "diamond":
            return f'<path {fill} d="M{x:.1f} {y - 6:.1f}l6 6l-6 6l-6 -6z"/>'
    return f'<circle {fill} cx="{x:.1f}" cy="{y:.1f}" r="5"/>'


def _stroke(row: pd.Series) -> str:
    if row["epsilon"] == "0":
        return 'stroke="#555" stroke-width="1.5" stroke-dasharray="2 4"'
    return f'stroke="{colour(row["method"])}" stroke-width="1.5" stroke-dasharray="7 4"'


def colour(method: str) -> str:
    return to_hex(COLOURS.get(method, "black"))
