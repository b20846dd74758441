"""Fill MLflow from the files of the sweep: an experiment per task, a parent run per sweep, a child run per cell.

Files are the truth: publishing twice adds nothing, publishing after the store was deleted restores everything, and a
cell that was trained again replaces its run. Of several publishers at once one works and the others wait. The store
is MLFLOW_TRACKING_URI, by default mlflow.db in this folder.

    python -m stages.publish
"""

from stages import commands, params
from stages.atomic import write_json
from stages.errors import run
from stages.publish import store
from stages.publish.publishing import publish
from stages.report.paths import PUBLISHED
from stages.report.table import read_outcome


def main() -> None:
    commands.parser("stages.publish", __doc__).parse_args()
    p = params.load()
    outcomes = [read_outcome(cell) for cell in p.cells()]
    with store.publishing():
        models = publish(outcomes, p.sweep.seed[0], p.publish.models == "all", p.publish.not_private)
    write_json(PUBLISHED, models)
    print(f"{len(models)} runs are in {store.shown()}; look at them with: make ui")


if __name__ == "__main__":
    run(main)
