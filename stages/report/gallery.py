"""Captions to look at: a page for each captioning sweep, with test images, references and what every model generated.

The page is one file: pictures are in it, and it loads and runs nothing.
"""

import base64
import io
import json
from html import escape
from pathlib import Path
from string import Template

from stages.keys import data_dir
from stages.prepare.format import PreparedSplit, Row
from stages.privacy.facts import round_up
from stages.report.statement import guarantee_tag, sound_epsilon
from stages.report.table import Outcome, epsilon_name, score_name

SHOWN = 24  # test images
SIDE = 320  # pixels; larger pictures are made smaller
CIDER = score_name("cider")


def write(outcomes: list[Outcome], folder: Path) -> None:
    """A page a sweep that has captions, of its first seed."""
    sweeps: dict[str, dict[tuple[str, str], Outcome]] = {}
    for o in outcomes:
        if o.cell.task == "captioning":
            sweeps.setdefault(o.cell.sweep, {}).setdefault((o.cell.method, o.cell.epsilon), o)
    for sweep, shown in sweeps.items():
        (folder / page_name(sweep)).write_text(page(shown), encoding="utf-8")
    links = "\n".join(f'<li><a href="{escape(page_name(sweep))}">{escape(sweep)}</a></li>' for sweep in sweeps)
    index = INDEX.substitute(links=links or "<li>none: this sweep has no captioning</li>")
    (folder / "index.html").write_text(index, encoding="utf-8")  # always: DVC warns of an empty folder


def page_name(sweep: str) -> str:
    return f"{sweep.replace('/', '-')}.html"


def page(shown: dict[tuple[str, str], Outcome]) -> str:
    """The models of one sweep, by method and epsilon."""
    first = next(iter(shown.values())).cell
    methods = list(dict.fromkeys(method for method, _ in shown))
    epsilons = sorted({epsilon for _, epsilon in shown}, key=float)
    data = PreparedSplit(data_dir(first.dataset), "test")
    captions = {key: _captions(o.cell.details_json) for key, o in shown.items()}
    rows = list(next(iter(captions.values())))
    heads = "".join(f'<th scope="col">epsilon {_two_lines(epsilon_name(e))}</th>' for e in epsilons)
    models = "\n".join(_models(method, epsilons, shown) for method in methods)
    images = "\n".join(_image(row, data.row(row), methods, epsilons, captions) for row in rows)
    title = f"Captions: {first.dataset}, {first.model}"
    return PAGE.substitute(
        title=escape(title), count=len(rows), all=data.rows, seed=first.seed, heads=heads, models=models, images=images
    )


def _captions(details: Path) -> dict[int, dict]:
    """By row of the test split."""
    found = json.loads(details.read_text(encoding="utf-8"))["captions"][:SHOWN]
    return {caption["row"]: caption for caption in found}


def _models(method: str, epsilons: list[str], shown: dict[tuple[str, str], Outcome]) -> str:
    """What is known of each model of a method, under its epsilon."""
    cells = []
    for epsilon in epsilons:
        if (o := shown.get((method, epsilon))) is None:
            cells.append("<td>-</td>")
            continue
        sound = f"sound epsilon <b>{round_up(sound_epsilon(o.training), 3)}</b>"
        facts = (sound, escape(guarantee_tag(o.training)), f"{CIDER}: {100 * o.metrics.score:.1f}")
        cells.append(_cell(method, epsilon, "".join(f"<span>{fact}</span>" for fact in facts)))
    return f'<tr><th scope="row">{escape(method)}</th>{"".join(cells)}</tr>'


def _image(row: int, record: Row, methods: list[str], epsilons: list[str], captions: dict) -> str:
    """A test image with its references, and a line of captions for each method."""
    references = next(found[row]["references"] for found in captions.values() if row in found)
    quoted = "".join(f"<li>{escape(text)}</li>" for text in references)
    picture = f'<img src="{_data_uri(record)}" alt="test image {row}"><small>image {row}</small>'
    head = f'<td rowspan="{len(methods)}">{picture}</td><td rowspan="{len(methods)}"><ul>{quoted}</ul></td>'
    lines = []
    for method in methods:
        cells = [_cell(method, e, _caption(captions.get((method, e), {}).get(row))) for e in epsilons]
        lines.append(f'<tr>{head if not lines else ""}<th scope="row">{escape(method)}</th>{"".join(cells)}</tr>')
    return f"<tbody>{''.join(lines)}</tbody>"


def _caption(found: dict | None) -> str:
    if found is None:
        return "-"
    said = escape(found["caption"]) if found["caption"].strip() else "<i>(nothing)</i>"
    return f'<div class="caption">{said}</div><small>{CIDER}: {100 * found["cider"]:.0f}</small>'


def _cell(method: str, epsilon: str, content: str) -> str:
    return f'<td data-label="{escape(method)}, epsilon {escape(epsilon_name(epsilon))}">{content}</td>'


def _two_lines(epsilon: str) -> str:
    number, _, meaning = epsilon.partition(" ")
    return f"{number}<small>{meaning}</small>"


def _data_uri(record: Row) -> str:
    """Written anew, so that nothing but the picture is in it: photos may say where they were taken."""
    image, buffer = record.pixels(), io.BytesIO()
    image.thumbnail((SIDE, SIDE))
    image.save(buffer, format="WEBP", quality=90)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"


PAGE = Template(Path(__file__).with_name("gallery.html").read_text(encoding="utf-8"))
INDEX = Template(
    """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Captions</title></head>
<body style="font: 15px/1.4 system-ui, sans-serif; margin: 1.5rem"><h1>Captions to look at</h1>
<ul>
$links
</ul></body>
</html>
"""
)
