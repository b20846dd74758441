"""Where to look: addresses of MLflow's page that open with the scores as columns, sorted by them.

MLflow hides scores in its list of runs, and opens an experiment as one of chats, unless the address says otherwise.
The columns are in a tag of the experiment, as the page's own button *Share* makes it.

    python -m stages.publish --links --port 5000
"""

import json

from mlflow import MlflowClient
from mlflow.entities import Experiment

VIEW = "mlflow.sharedViewState."
KIND = "workflowType=machine_learning"
SHOWN = ("params.`method`", "metrics.`sound_epsilon`", "tags.`guarantee`")


def set_views(client: MlflowClient, experiment_id: str, score: str, epsilons: list[str]) -> None:
    """`sweeps` has the best of each epsilon; `scores` has every run, the best first."""
    best = [f"metrics.`best_{score}_eps_{epsilon.replace('.', '_')}`" for epsilon in epsilons]
    views = {
        "sweeps": ("", "attributes.start_time", best),
        "scores": ("tags.cell LIKE '%'", f"metrics.`{score}`", [f"metrics.`{score}`", *SHOWN]),
    }
    for name, (searched, order, columns) in views.items():
        state = {"searchFilter": searched, "orderByKey": order, "orderByAsc": False, "selectedColumns": columns}
        client.set_experiment_tag(experiment_id, f"{VIEW}{name}", json.dumps(state))


def links(client: MlflowClient, port: int) -> list[str]:
    page = f"http://127.0.0.1:{port}/#"
    lines = []
    for experiment in client.search_experiments(filter_string="name LIKE 'dp-clip %'", order_by=["name ASC"]):
        lines.append(f"{experiment.name}")
        lines += [f"  {what:<22}{page}/experiments/{experiment.experiment_id}/{end}" for what, end in _ends(experiment)]
    return [*lines, "the best private models", f"  {'by epsilon':<22}{page}/models?{KIND}"]


def _ends(experiment: Experiment) -> list[tuple[str, str]]:
    if f"{VIEW}sweeps" not in experiment.tags:
        return [("runs", f"runs?{KIND}")]
    return [
        ("sweeps, with the best", f"runs?viewStateShareKey=sweeps&{KIND}"),
        ("runs by score", f"runs?viewStateShareKey=scores&{KIND}"),
        ("models", f"models?{KIND}"),
    ]
