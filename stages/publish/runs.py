"""Where the runs of a sweep are in MLflow: an experiment per task, a parent run per sweep."""

import mlflow
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.tracking.context.registry import resolve_tags

from stages.errors import UserError
from stages.home import home
from stages.keys import Cell
from stages.publish.inputs import dataset_input, source


def experiment_id(client: MlflowClient, cell: Cell) -> str:
    return experiment_named(client, f"dp-clip {cell.task}")


def experiment_named(client: MlflowClient, name: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is not None and found.lifecycle_stage == "deleted":
        raise UserError(
            f"the experiment {name!r} was deleted in MLflow; bring it back with: "
            f"mlflow experiments restore --experiment-id {found.experiment_id} (or erase it with: mlflow gc)"
        )
    if found is not None:
        return found.experiment_id
    # A local store keeps its artifacts beside it; a server decides for itself.
    local = mlflow.get_tracking_uri().startswith("sqlite:")
    location = (home() / "mlartifacts").as_uri() if local else None
    kind = {"mlflow.experimentKind": "custom_model_development"}  # the page opens on runs, not on chat traces
    return client.create_experiment(name, location, tags=kind)


def find_runs(client: MlflowClient, cell: Cell, tags: dict[str, str]) -> list[Run]:
    query = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
    return list(client.search_runs([experiment_id(client, cell)], query))


def parent_run(client: MlflowClient, cell: Cell) -> Run:
    """The run that holds the sweep together; its children are the cells."""
    if found := find_runs(client, cell, {"sweep": cell.sweep}):
        return found[0]
    return _make_parent(client, cell)


def _make_parent(client: MlflowClient, cell: Cell) -> Run:
    tags = resolve_tags({"sweep": cell.sweep, **source("publish")})
    created = client.create_run(experiment_id(client, cell), run_name=f"{cell.dataset}, {cell.model}", tags=tags)
    client.log_param(created.info.run_id, "private_dataset", cell.dataset)
    client.log_param(created.info.run_id, "model", cell.model)
    client.log_inputs(created.info.run_id, [dataset_input(cell.dataset)])
    client.set_terminated(created.info.run_id)
    return created


def children(client: MlflowClient, cell: Cell) -> list[Run]:
    """All that were ever published of the cell's sweep."""
    parent = parent_run(client, cell).info.run_id
    return [run for run in all_runs(client) if run.data.tags.get("mlflow.parentRunId") == parent]


def replace_parent(client: MlflowClient, cell: Cell, parent: Run) -> Run:
    """By one without scores, where some must go: MLflow takes no metric back."""
    its = children(client, cell)
    created = _make_parent(client, cell)
    for run in its:
        client.set_tag(run.info.run_id, "mlflow.parentRunId", created.info.run_id)
    client.delete_run(parent.info.run_id)
    return created


def remove(client: MlflowClient, stale: Run) -> None:
    """Weights of an earlier training must not stay beside the new ones (`mlflow gc` erases what is deleted)."""
    for version in client.search_model_versions(f"run_id = '{stale.info.run_id}'"):  # under whatever name
        client.delete_model_version(version.name, version.version)
    for model in stale.outputs.model_outputs if stale.outputs else []:
        client.delete_logged_model(model.model_id)
    client.delete_run(stale.info.run_id)


def all_runs(client: MlflowClient) -> list[Run]:
    """Of every sweep that was ever published to this store."""
    experiments = [e.experiment_id for e in client.search_experiments(filter_string="name LIKE 'dp-clip %'")]
    found: list[Run] = []
    token = None
    while experiments:
        page = client.search_runs(experiments, page_token=token, max_results=1000)
        found, token = [*found, *page], page.token
        if not token:
            break
    return found
