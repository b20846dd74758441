"""Fill MLflow from the files of the sweep: an experiment per task, a parent run per sweep, a child run per cell.

Files are the truth: publishing twice adds nothing, publishing after the store was deleted restores everything, and a
cell that was trained again replaces its run. Of several publishers at once one works and the others wait. The store
is MLFLOW_TRACKING_URI, by default mlflow.db in this folder.

    python -m stages.publish
    python -m stages.publish --links      the addresses to open while `make ui` runs; publishes nothing
"""

from mlflow import MlflowClient

from stages import commands, params
from stages.atomic import write_json
from stages.errors import run
from stages.publish import store
from stages.publish.links import links
from stages.publish.publishing import Wanted, publish
from stages.report.paths import PUBLISHED
from stages.report.table import read_outcome


def main() -> None:
    parser = commands.parser("stages.publish", __doc__)
    parser.add_argument(
        "--links", action="store_true", help="print where to look on MLflow's page, and publish nothing"
    )
    parser.add_argument("--port", type=int, default=5000, help="of that page (default: 5000)")
    given = parser.parse_args()
    if given.links:
        store.quiet()
        store.connect()
        print("\n".join(links(MlflowClient(), given.port)))
        return
    p = params.load()
    outcomes = [read_outcome(cell) for cell in p.cells()]
    with store.publishing():
        every_seed = p.publish.models == "all"
        models = publish(outcomes, Wanted(p.sweep.seed[0], every_seed, p.publish.not_private, p.publish.costs))
    write_json(PUBLISHED, models)
    print(f"{len(models)} runs are in {store.shown()}; look at them with: make ui")


if __name__ == "__main__":
    run(main)
