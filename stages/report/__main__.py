"""Results of the sweep -> report/: table, the paper's tables, plots, and what may be claimed of each model."""

import argparse

from stages import params
from stages.atomic import new_file, new_folder, write_text
from stages.errors import UserError, run
from stages.report import paper, plot
from stages.report.paths import CSV, PAPER, PLOTS, STATEMENTS, TABLE
from stages.report.statement import statement
from stages.report.table import markdown, read_outcome, summarise


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.report", description=__doc__)
    parser.add_argument("--show", action="store_true", help="print the report that is there and make nothing")
    if parser.parse_args().show:
        show()
        return
    outcomes = [read_outcome(cell) for cell in params.load().cells()]
    summary = summarise(outcomes)
    write_text(TABLE, markdown(summary))
    write_text(PAPER, paper.markdown(summary))
    with new_file(CSV) as path:
        summary.to_csv(path, index=False)
    with new_folder(PLOTS) as folder:
        for (task, dataset, model), sweep in summary.groupby(["task", "dataset", "model"]):
            plot.draw(sweep, folder / f"{task}-{dataset}-{model}.png")
    with new_folder(STATEMENTS) as folder:
        for outcome in outcomes:
            path = folder / f"{outcome.cell}.md"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(statement(outcome.training), encoding="utf-8")
    print(f"wrote {TABLE}, {CSV}, {PAPER}, {PLOTS} and {STATEMENTS}; see them with: python -m stages.report --show")


def show() -> None:
    for path in (TABLE, PAPER):
        if not path.is_file():
            raise UserError(f"there is no {path} yet; run: dvc repro")
    print(TABLE.read_text(encoding="utf-8"))
    if (tables := PAPER.read_text(encoding="utf-8")) != paper.NO_TABLES:
        print(tables)
    for path in sorted(PLOTS.glob("*.png")):
        print(f"plot: {path}")
    print(f"data: {CSV}\nprivacy statements: {STATEMENTS}")


if __name__ == "__main__":
    run(main)
