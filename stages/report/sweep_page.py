"""The page of a sweep, for whoever chooses a model and answers for it: which one, and what exactly it guarantees.

One file that loads nothing: drawing, table, statements and pictures are in it, and its one script shows the numbers of
a point of the drawing. What it says is what report/table.md and report/privacy say.

    python -m stages.report --show
"""

import base64
import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template

import pandas as pd

from stages import tasks
from stages.privacy.facts import round_up
from stages.report import drawing, models_on_page
from stages.report.best import Best, best
from stages.report.models_on_page import Listed
from stages.report.table import HOW_TO_READ, Outcome, epsilon_name, is_not_sound, not_sound, trials_in_words, value

WIDE, NARROW = (700, 400), (350, 330)  # pixels of the drawing on a laptop and on a phone
ANY = "any"  # method of a zero-shot row: nothing was trained


@dataclass(frozen=True)
class Sweep:
    """What is compared with each other: one task, dataset and model."""

    rows: pd.DataFrame
    of: Mapping[tuple[str, str], Listed]  # the first trial, by method and epsilon

    @property
    def title(self) -> str:
        first = self.rows.iloc[0]
        return f"{first['task']}: {first['dataset']}, {first['model']}"


def page(
    outcomes: Sequence[Outcome], summary: pd.DataFrame, joint: Mapping[str, str], private_tests: Collection[str] = ()
) -> str:
    """`joint`: by dataset, what is to be said of all models together; `private_tests`: whose test split is private."""
    listed = models_on_page.listed(outcomes)
    sweeps = []
    for (task, dataset, model), rows in summary.groupby(["task", "dataset", "model"], sort=False):
        firsts: dict[tuple[str, str], Listed] = {}
        for each in listed:
            cell = each.outcome.cell
            if cell.sweep == f"{task}/{dataset}/{model}":
                firsts.setdefault((cell.method, cell.epsilon), each)
        sweeps.append(Sweep(rows, firsts))
    return TEMPLATE.substitute(
        script_hash=SCRIPT_HASH,
        title=escape(f"Privacy and utility: {', '.join(sweep.title for sweep in sweeps[:3])}"),
        facts=_facts(outcomes),
        warnings=_warnings(summary, private_tests),
        sweeps="\n".join(_sweep(sweep) for sweep in sweeps),
        how_to_read=f"<b>Sound epsilon:</b> what bounds the weights of a row, {_code(HOW_TO_READ)}",
        joint=_joint(joint),
        models=models_on_page.details(listed, joint),
        not_run=models_on_page.not_run(listed),
    )


def _facts(outcomes: Sequence[Outcome]) -> str:
    cells = [o.cell for o in outcomes]
    epsilons = sorted({c.epsilon for c in cells}, key=float, reverse=True)
    of = {
        "task": dict.fromkeys(c.task for c in cells),
        "private data": dict.fromkeys(c.dataset for c in cells),
        "model": dict.fromkeys(c.model for c in cells),
        "clipping per": dict.fromkeys(c.method for c in cells),
        "epsilon": dict.fromkeys(epsilons),
        "seeds": dict.fromkeys(str(c.seed) for c in cells),
        "models made": [str(len(cells))],
    }
    return "".join(f"<div><dt>{name}</dt><dd>{escape(', '.join(values))}</dd></div>" for name, values in of.items())


def _warnings(summary: pd.DataFrame, private_tests: Collection[str]) -> str:
    said = [escape(warning) for warning in not_sound(summary)]
    if private_tests:
        names = ", ".join(sorted(private_tests))
        said.append(
            f"<b>The test split of {escape(names)} is private: its scores stay on this machine.</b> No epsilon covers "
            "them, nor a choice between models that was made by them. This page is sent to no server: send it to "
            "nobody either."
        )
    return "".join(f'<p class="warning" role="note">{text}</p>' for text in said)


def _sweep(sweep: Sweep) -> str:
    rows = sweep.rows
    task, score, trials = tasks.named(rows.iloc[0]["task"]), rows.iloc[0]["score"], int(rows["trials"].max())
    bars = "one standard deviation" if trials > 1 else "95% interval of the test split"
    wide, narrow = (drawing.svg(rows, *size) for size in (WIDE, NARROW))
    return f"""\
<section>
<h2>{escape(sweep.title)}</h2>
<p class="lead">{escape(task.title_of(score))} on the test split, {trials_in_words(trials)}.</p>
<div class="first-sight">
<figure>
<div class="wide">{wide}</div><div class="narrow">{narrow}</div>
{drawing.legend(rows)}
<figcaption>Bars: {bars}. Methods at one epsilon stand side by side. {_not_drawn(rows)}</figcaption>
</figure>
<div class="best">
<h3>The best private model at each epsilon</h3>
<ul>{"".join(_best(each, sweep) for each in best(rows))}</ul>
<p class="small">Best: by its score on the test split{", each method's mean over trials" if trials > 1 else ""}. What is
published under an epsilon's name is the first seed's model.</p>
</div>
</div>
{_table(sweep, trials)}
</section>"""


def _not_drawn(rows: pd.DataFrame) -> str:
    private = rows[~rows["epsilon"].isin(["0", "inf"])]
    left_out = private.drop(drawing.drawn(private).index)
    if left_out.empty:
        return ""
    names = ", ".join(f"{row['method']} at {row['epsilon']}" for _, row in left_out.iterrows())
    return f"<b>Not drawn, since no epsilon bounds them: {escape(names)}.</b>"


def _best(each: Best, sweep: Sweep) -> str:
    head = f'<span class="epsilon">epsilon {escape(each.epsilon)}</span>'
    if each.row is None:
        return f"<li>{head} <b>none that may be called private</b><small>{escape(each.why_none)}</small></li>"
    row, about = each.row, []
    if each.above_zero_shot is not None and each.above_zero_shot <= 0:
        about.append("<b>no better than zero-shot, which costs no privacy</b>")
    elif each.above_zero_shot is not None:
        about.append(f"{each.above_zero_shot:.2f} above zero-shot")
    if each.below_non_private is not None:
        side = "below" if each.below_non_private >= 0 else "above"
        about.append(f"{abs(each.below_non_private):.2f} {side} the best non-private model")
    as_good = f"not clearly better than {' and '.join(each.as_good)}: their intervals overlap" if each.as_good else ""
    its = sweep.of[row["method"], row["epsilon"]]
    return (
        f"<li>{head} {drawing.swatch(row['method'])} <b>{escape(row['method'])}</b> "
        f'<span class="score">{value(row)}</span>'
        f'<small class="guarantee">{escape(row["guarantee"])}</small>'
        f"<small>{', '.join(about)}</small><small>{escape(as_good)}</small>"
        f'<small><a href="#{its.anchor}">what exactly is guaranteed</a></small></li>'
    )


def _table(sweep: Sweep, trials: int) -> str:
    several = trials > 1
    heads = ["score", "one standard deviation" if several else "95% interval", "sound epsilon"]
    heads += [*([f"of the mean of {trials}"] if several else []), "paper's epsilon", "delta", "sigma", "trials"]
    lines = []
    for epsilon in sorted(sweep.rows["epsilon"].unique(), key=float, reverse=True):
        of_it = sweep.rows[sweep.rows["epsilon"] == epsilon]
        if epsilon == "0" and of_it["mean"].nunique() == 1:
            of_it = of_it.head(1).assign(method=ANY)
        unsound = is_not_sound(of_it)
        lines += [_line(row, several, bool(unsound[place])) for place, row in of_it.iterrows()]
    columns = "".join(f'<th scope="col" class="n">{escape(head)}</th>' for head in heads)
    columns = f'<th scope="col">epsilon (target)</th><th scope="col">method</th>{columns}<th scope="col">guarantee</th>'
    name = escape(f"all numbers of {sweep.title}")
    return (
        f'<div class="scroll" role="region" aria-label="{name}" tabindex="0"><table class="numbers">'
        f"<thead><tr>{columns}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _line(row: pd.Series, several: bool, unsound: bool) -> str:
    bounds = [round_up(row["epsilon_sound"], 3), *([_or_dash(row["epsilon_of_mean"])] if several else [])]
    cells = [value(row), f"{row['low']:.2f} to {row['high']:.2f}", *bounds]
    cells += [round_up(row["epsilon_paper"], 3), _or_dash(row["delta"])]
    cells += ["–" if pd.isna(row["sigma"]) else f"{row['sigma']:.4g}", str(row["trials"])]
    kind, guarantee = "", escape(row["guarantee"])
    if row["epsilon"] == "inf":
        kind, guarantee = "uncovered", f"{guarantee}, <b>covered by no epsilon</b>"
    elif unsound:
        kind, guarantee = "unsound", f"<b>{guarantee}</b>"
    head = f'<th scope="row">{escape(epsilon_name(row["epsilon"]))}</th>'
    method = f"<td>{'' if row['method'] == ANY else drawing.swatch(row['method'])} {escape(row['method'])}</td>"
    inner = "".join(f'<td class="n">{cell}</td>' for cell in cells)
    return f'<tr class="{kind}">{head}{method}{inner}<td class="words">{guarantee}</td></tr>'


def _or_dash(number: float) -> str:
    """Rounded as a bound is."""
    return "–" if pd.isna(number) else round_up(number, 3)


def _joint(joint: Mapping[str, str]) -> str:
    if not joint:
        return "<p>Nothing private was trained in this sweep.</p>"
    return "".join(f"<p><b>{escape(dataset)}</b>: {escape(sentence)}.</p>" for dataset, sentence in joint.items())


def _code(text: str) -> str:
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))


_TEXT = Path(__file__).with_name("sweep.html").read_text(encoding="utf-8")
_SCRIPT = re.findall(r"<script>(.*?)</script>", _TEXT, re.DOTALL)[0]
SCRIPT_HASH = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()  # no other script may run
TEMPLATE = Template(_TEXT)
