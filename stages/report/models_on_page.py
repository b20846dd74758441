"""Every model of a sweep on its page: what may be claimed of it, what was audited, and what it got right and wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from PIL import Image

from stages import tasks
from stages.report.gallery import page_name
from stages.report.inline import data_uri, html
from stages.report.paths import GALLERY
from stages.report.statement import guarantee_tag, has_guarantee, statement
from stages.report.table import Outcome, epsilon_name

ALL_PICTURES = 30  # models; of a larger sweep the page has the pictures of the first seed alone
SIDE = 640  # pixels; larger pictures are made smaller
ROOM = 2_000_000  # bytes of all pictures together
AUDITED = (
    "No audit of this model was run here: its guarantee is proven, not measured. What is measured is the code that "
    "adds the noise, one step of each method, by the tests of the project (tests/privacy/test_mutants.py)."
)


@dataclass(frozen=True)
class Listed:
    """A model with its place on the page."""

    outcome: Outcome
    anchor: str
    picture: str | None  # as a data URI; None where it is left out or was not made


def listed(outcomes: Sequence[Outcome]) -> list[Listed]:
    first_seeds: dict[tuple[str, ...], int] = {}
    found, room = [], ROOM
    for number, outcome in enumerate(outcomes):
        cell, picture = outcome.cell, None
        first = first_seeds.setdefault((cell.sweep, cell.method, cell.epsilon), cell.seed)
        if cell.picture.is_file() and (len(outcomes) <= ALL_PICTURES or cell.seed == first):
            with Image.open(cell.picture) as image:
                picture = data_uri(image, SIDE, quality=80)
            room -= len(picture)
        found.append(Listed(outcome, f"model-{number}", picture if room >= 0 else None))
    return found


def details(models: Sequence[Listed], joint: Mapping[str, str]) -> str:
    by_sweep: dict[str, list[Listed]] = {}
    for each in models:
        by_sweep.setdefault(each.outcome.cell.sweep, []).append(each)
    parts = [_left_out(models)]
    for sweep, its in by_sweep.items():
        cell = its[0].outcome.cell
        parts.append(f"<h3>{escape(f'{cell.task}: {cell.dataset}, {cell.model}')}</h3>{_gallery(sweep, cell.task)}")
        weakest_first = sorted(its, key=lambda each: -float(each.outcome.cell.epsilon))
        parts += [_model(each, joint.get(cell.dataset)) for each in weakest_first]
    return "\n".join(parts)


def not_run(models: Sequence[Listed]) -> str:
    """By score and reason, how many models it is so for."""
    counts: dict[tuple[str, str, str], int] = {}
    for each in models:
        for score, reason in each.outcome.metrics.not_run.items():
            key = (each.outcome.cell.sweep, score, reason)
            counts[key] = counts.get(key, 0) + 1
    lines = []
    for (sweep, score, reason), count in counts.items():
        of = f"{count} model{'s' if count > 1 else ''} of {sweep}"
        lines.append(f"<li><b>{escape(score)}</b>, {escape(of)}: {escape(reason)}</li>")
    return f"<ul>{''.join(lines)}</ul>" if lines else "<p>Every score of the tasks was computed for every model.</p>"


def _left_out(models: Sequence[Listed]) -> str:
    there = [each.outcome.cell.picture.is_file() for each in models]
    left_out = sum(there) - sum(each.picture is not None for each in models)
    if not left_out:
        return ""
    return (
        f'<p class="small">To keep this page small, {left_out} of {sum(there)} pictures are not in it; they are the '
        "files <code>results/CELL/picture.png</code>. All statements are here.</p>"
    )


def _gallery(sweep: str, task: str) -> str:
    """Beside this page in report/."""
    if not tasks.named(task).page_title:
        return ""
    path = f"{GALLERY.name}/{page_name(sweep)}"
    return f'<p>What the models said, beside the images: <a href="{escape(path)}">{escape(path)}</a></p>'


def _model(each: Listed, joint: str | None) -> str:
    o, cell = each.outcome, each.outcome.cell
    task, metrics = tasks.named(cell.task), o.metrics
    score = f"{task.title_of(metrics.primary)}: {100 * metrics.score:.2f}"
    within = f"95% interval {100 * metrics.low:.2f} to {100 * metrics.high:.2f}, {metrics.n} test items"
    missing = [f"{name} was not run: {reason}." for name, reason in metrics.not_run.items()]
    kind = "" if has_guarantee(o.training) and "not sound" not in guarantee_tag(o.training) else "uncovered"
    name = f"{cell.method}, epsilon {epsilon_name(cell.epsilon)}, seed {cell.seed}"
    uncovered = " <b>Score and picture are functions of the private data that no epsilon covers.</b>"
    return f"""\
<details class="{kind}"><summary><b>{escape(name)}</b> <span>{escape(guarantee_tag(o.training))}</span></summary>
<div class="model" id="{each.anchor}">
<div class="statement">{html(statement(o.training, joint))}</div>
<div class="found">
<h4>What was measured</h4>
<p>{escape(score)} ({escape(within)}).{"" if has_guarantee(o.training) else uncovered}</p>
{"".join(f"<p>{escape(text)}</p>" for text in missing)}
{_picture(each)}
<h4>What was audited</h4>
<p>{AUDITED if cell.is_private else "Nothing: there is no guarantee to audit." if cell.epsilon == "inf" else NONE}</p>
</div>
</div>
</details>"""


NONE = "Nothing: no private record was used."


def _picture(each: Listed) -> str:
    cell = each.outcome.cell
    if each.picture is not None:
        return f'<img src="{each.picture}" alt="results of {escape(str(cell))}">'
    return f"<p>Picture: <code>{escape(str(cell.picture))}</code></p>" if cell.picture.is_file() else ""
