"""What models said, to look at: a page for each sweep with captions or answers, and the test images they are of.

The page is one file: pictures are in it, and it loads and runs nothing.
"""

from html import escape
from pathlib import Path
from string import Template

from stages import tasks
from stages.data.prepared import PreparedSplit
from stages.keys import data_dir
from stages.privacy.facts import round_up
from stages.report.inline import data_uri
from stages.report.statement import guarantee_tag, sound_epsilon
from stages.report.table import Outcome, epsilon_name
from stages.tasks.base.examples import Example, Examples, counted

SHOWN = 24  # test images
SIDE = 320  # pixels; larger pictures are made smaller
FOUND_SIDE = 96  # of pictures that a model answered with


def write(outcomes: list[Outcome], folder: Path) -> None:
    """A page a sweep in which models write, of its first seed."""
    sweeps: dict[str, dict[tuple[str, str], Outcome]] = {}
    for o in outcomes:
        if tasks.named(o.cell.task).page_title:
            sweeps.setdefault(o.cell.sweep, {}).setdefault((o.cell.method, o.cell.epsilon), o)
    for sweep, shown in sweeps.items():
        (folder / page_name(sweep)).write_text(page(shown), encoding="utf-8")
    links = "\n".join(f'<li><a href="{escape(page_name(sweep))}">{escape(sweep)}</a></li>' for sweep in sweeps)
    index = INDEX.substitute(links=links or "<li>none: in this sweep no model writes</li>")
    (folder / "index.html").write_text(index, encoding="utf-8")  # always: DVC warns of an empty folder


def page_name(sweep: str) -> str:
    return f"{sweep.replace('/', '-')}.html"


def page(shown: dict[tuple[str, str], Outcome]) -> str:
    """The models of one sweep, by method and epsilon."""
    first = next(iter(shown.values())).cell
    task = tasks.named(first.task)
    methods = list(dict.fromkeys(method for method, _ in shown))
    epsilons = sorted({epsilon for _, epsilon in shown}, key=float)
    data = PreparedSplit(data_dir(first.dataset), "test")
    said = {key: _said(o.cell.details_json) for key, o in shown.items()}
    items = list(next(iter(said.values())).values())
    heads = "".join(f'<th scope="col">epsilon {_two_lines(epsilon_name(e))}</th>' for e in epsilons)
    models = "\n".join(_models(method, epsilons, shown) for method in methods)
    score = task.title_of(next(iter(shown.values())).metrics.primary)
    images = "\n".join(_image(item, data, methods, epsilons, said, score) for item in items)
    title = f"{task.page_title}: {first.dataset}, {first.model}"
    return PAGE.substitute(
        title=escape(title), count=len(items), all=data.rows, seed=first.seed, heads=heads, models=models, images=images
    )


def _said(details: Path) -> dict[tuple[int, str | None], Example]:
    """By row of the test split and question."""
    found = Examples.model_validate_json(details.read_text(encoding="utf-8")).one_an_image(SHOWN)
    return {(example.row, example.question): example for example in found}


def _models(method: str, epsilons: list[str], shown: dict[tuple[str, str], Outcome]) -> str:
    """What is known of each model of a method, under its epsilon."""
    cells = []
    for epsilon in epsilons:
        if (o := shown.get((method, epsilon))) is None:
            cells.append("<td>-</td>")
            continue
        sound = f"sound epsilon <b>{round_up(sound_epsilon(o.training), 3)}</b>"
        score = f"{tasks.named(o.cell.task).title_of(o.metrics.primary)}: {100 * o.metrics.score:.1f}"
        facts = (sound, escape(guarantee_tag(o.training)), score)
        cells.append(_cell(method, epsilon, "".join(f"<span>{fact}</span>" for fact in facts)))
    return f'<tr><th scope="row">{escape(method)}</th>{"".join(cells)}</tr>'


def _image(item: Example, data: PreparedSplit, methods: list[str], epsilons: list[str], said: dict, score: str) -> str:
    """A test image with what people said, and a line of what models said for each method."""
    quoted = "".join(f"<li>{escape(text)}</li>" for text in counted(item.references))
    question = f"<b>{escape(item.question)}</b>" if item.question else ""
    uri = data_uri(data.row(item.row).pixels(), SIDE)
    picture = f'<img src="{uri}" alt="test image {item.row}"><small>image {item.row}</small>'
    span = f'rowspan="{len(methods)}"'
    head = f"<td {span}>{picture}</td><td {span}>{question}<ul>{quoted}</ul></td>"
    lines: list[str] = []
    for method in methods:
        found = [said.get((method, e), {}).get((item.row, item.question)) for e in epsilons]
        cells = [_cell(method, e, _one(example, score, data)) for e, example in zip(epsilons, found, strict=True)]
        lines.append(f'<tr>{head if not lines else ""}<th scope="row">{escape(method)}</th>{"".join(cells)}</tr>')
    return f"<tbody>{''.join(lines)}</tbody>"


def _one(example: Example | None, score: str, data: PreparedSplit) -> str:
    if example is None:
        return "-"
    said = escape(example.said) if example.said.strip() else "<i>(nothing)</i>"
    value = "" if example.score is None else f"<small>{score}: {100 * example.score:.0f}</small>"
    pictures = [(row, data_uri(data.row(row).pixels(), FOUND_SIDE)) for row in example.found]
    found = "".join(f'<img class="found" src="{uri}" alt="test image {row}">' for row, uri in pictures)
    return f'<div class="caption">{said}</div>{found}{value}'


def _cell(method: str, epsilon: str, content: str) -> str:
    return f'<td data-label="{escape(method)}, epsilon {escape(epsilon_name(epsilon))}">{content}</td>'


def _two_lines(epsilon: str) -> str:
    number, _, meaning = epsilon.partition(" ")
    return f"{number}<small>{meaning}</small>"


PAGE = Template(Path(__file__).with_name("gallery.html").read_text(encoding="utf-8"))
INDEX = Template(
    """<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>What models said</title></head>
<body style="font: 15px/1.4 system-ui, sans-serif; margin: 1.5rem"><h1>What models said</h1>
<ul>
$links
</ul></body>
</html>
"""
)
