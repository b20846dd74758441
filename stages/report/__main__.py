"""Results of the sweep -> report/: page, table, the paper's tables, plots, what models said, what may be claimed."""

import pandas as pd

from stages import commands, params
from stages.atomic import new_file, new_folder, write_json, write_text
from stages.data.manifest import Manifest
from stages.errors import UserError, run
from stages.keys import Cell, data_dir
from stages.report import curves, gallery, paper, plot, scores, sweep_page
from stages.report.best import best
from stages.report.joint import Spending
from stages.report.paths import CSV, GALLERY, PAGE, PAPER, PLOTS, SCORES, STATEMENTS, TABLE
from stages.report.statement import statement
from stages.report.table import Outcome, by_sweep, markdown, read_outcome, summarise


def main() -> None:
    parser = commands.parser("stages.report", __doc__)
    parser.add_argument("--show", action="store_true", help="print the report that is there and make nothing")
    if parser.parse_args().show:
        show()
        return
    outcomes = [read_outcome(cell) for cell in params.load().cells()]
    spending = Spending(outcomes)
    joint = {name: spending.joint(name) for name in dict.fromkeys(o.cell.dataset for o in outcomes)}
    summary = summarise(outcomes, spending.together)
    sentences = {name: its.sentence() for name, its in joint.items() if its}
    write_text(TABLE, markdown(summary, sentences))
    tables = papers_tables(outcomes, summary)
    write_text(PAPER, tables if tables == paper.NO_TABLES else f"{tables}\n{paper.of_all(sentences)}")
    with new_file(CSV) as path:
        summary.to_csv(path, index=False)
    write_json(SCORES, by_sweep(summary))
    with new_folder(PLOTS) as folder:
        for (task, dataset, model), sweep in summary.groupby(["task", "dataset", "model"]):
            plot.draw(sweep, folder / f"{task}-{dataset}-{model}.png")
            of_sweep = [o for o in outcomes if o.cell.sweep == f"{task}/{dataset}/{model}"]
            curves.draw(of_sweep, folder / f"{task}-{dataset}-{model}-learning.png")
    with new_folder(GALLERY) as folder:
        gallery.write(outcomes, folder)
    with new_folder(STATEMENTS) as folder:
        for outcome in outcomes:
            path = folder / f"{outcome.cell}.md"
            path.parent.mkdir(parents=True, exist_ok=True)
            its = joint[outcome.cell.dataset]
            path.write_text(statement(outcome.training, its.sentence() if its else None), encoding="utf-8")
    private_tests = [name for name in joint if data_dir(name).is_dir() and Manifest.read(data_dir(name)).private_test]
    write_text(PAGE, sweep_page.page(outcomes, summary, sentences, private_tests))
    made = ", ".join(map(str, (PAGE, TABLE, CSV, PAPER, PLOTS, GALLERY)))
    print(f"wrote {made} and {STATEMENTS}; see them with: python -m stages.report --show")


def papers_tables(outcomes: list[Outcome], summary: pd.DataFrame) -> str:
    tables = [paper.markdown(summary), scores.markdown(outcomes)]
    return "\n".join(text for text in tables if text not in ("", paper.NO_TABLES)) or paper.NO_TABLES


def show() -> None:
    for path in (TABLE, PAPER, PAGE):
        if not path.is_file():
            raise UserError(f"there is no {path} yet; run: dvc repro")
    print(TABLE.read_text(encoding="utf-8"))
    if (tables := PAPER.read_text(encoding="utf-8")) != paper.NO_TABLES:
        print(tables)
    for path in sorted(PLOTS.glob("*.png")):
        print(f"plot: {path}")
    for path in sorted(GALLERY.glob("*-*.html")):
        print(f"what the models said: {path}")
    print(f"all of it as a page: {PAGE}")
    print(f"data: {CSV}\nprivacy statements: {STATEMENTS}")
    for command in releases(pd.read_csv(CSV, dtype={"epsilon": str}), params.load()):
        print(f"a folder of the best private model, to give away: {command}")


def releases(summary: pd.DataFrame, p: params.Params) -> list[str]:
    """By sweep, the command that releases its best private model. A private test split must not choose it."""
    found = []
    for (task, dataset, model), rows in summary.groupby(["task", "dataset", "model"], sort=False):
        private = [each.row for each in best(rows) if each.row is not None]
        if private and dataset in p.datasets and not p.datasets[dataset].private_test:
            row = max(private, key=lambda row: row["mean"])
            cell = Cell(task, dataset, model, row["method"], row["epsilon"], p.sweep.seed[0])
            found.append(f"python -m stages.release --cell {cell}")
    return found


if __name__ == "__main__":
    run(main)
