"""Fill MLflow from the files of the sweep: an experiment a task, a parent run a sweep, a child run a cell.

Files are the truth: publishing twice adds nothing, publishing after the store was deleted restores everything, and a
cell that was trained again replaces its run. Of several publishers at once one works and the others wait. The store
is MLFLOW_TRACKING_URI, by default mlflow.db in this folder.

    python -m stages.report.publish
"""

import argparse
import os

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("DO_NOT_TRACK", "1")

import mlflow
from mlflow import MlflowClient
from tqdm import tqdm

from stages import params
from stages.atomic import write_json
from stages.errors import run
from stages.keys import Cell
from stages.report import gallery, store
from stages.report.paths import CSV, GALLERY, PAPER, PLOTS, PUBLISHED, TABLE
from stages.report.publisher import Publisher, alias
from stages.report.runs import parent_run
from stages.report.table import Outcome, read_outcome


def main() -> None:
    argparse.ArgumentParser(
        prog="python -m stages.report.publish",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    p = params.load()
    outcomes = [read_outcome(cell) for cell in p.cells()]
    with store.publishing():
        models = publish(outcomes, p.sweep.seed[0], every_seed=p.publish.models == "all")
    write_json(PUBLISHED, models)
    print(f"{len(models)} runs are in {store.hidden(mlflow.get_tracking_uri())}; look at them with: make ui")


def publish(outcomes: list[Outcome], first_seed: int, every_seed: bool = True) -> dict[str, str | None]:
    """Bring MLflow in line with the files; returns where each cell's model can be loaded from."""
    client = MlflowClient()
    models = {}
    for outcome in tqdm(outcomes, desc="publish to MLflow", unit=" runs", disable=None):
        publisher = Publisher(client, outcome, with_model=every_seed or outcome.cell.seed == first_seed)
        version = publisher.publish()
        models[str(outcome.cell)] = version and f"models:/{publisher.registered}/{version}"
        # An alias names one model: the first seed's. The best one's would be a choice made on the test split.
        if outcome.cell.seed == first_seed:
            client.set_registered_model_alias(publisher.registered, alias(outcome.cell), version)
    for sweep in {o.cell.sweep: o.cell for o in outcomes}.values():
        publish_report(client, sweep)
    return models


def publish_report(client: MlflowClient, cell: Cell) -> None:
    run_id = parent_run(client, cell).info.run_id
    said = [GALLERY / gallery.page_name(cell.sweep)] if cell.task in gallery.TITLES else []
    for path in (TABLE, CSV, PAPER, PLOTS / f"{cell.sweep.replace('/', '-')}.png", *said):
        client.log_artifact(run_id, str(path))
    client.set_tag(run_id, "mlflow.note.content", TABLE.read_text(encoding="utf-8"))


if __name__ == "__main__":
    run(main)
