"""Brings MLflow in line with the files of a sweep: an experiment per task, a parent run per sweep, a child per cell."""

from collections.abc import Sequence

from mlflow import MlflowClient

from stages import progress, tasks
from stages.data.manifest import Manifest
from stages.keys import Cell, data_dir
from stages.publish.publisher import Publisher, alias, together_tags
from stages.publish.runs import all_runs, parent_run
from stages.report import gallery
from stages.report.joint import Joint, Spending
from stages.report.paths import CSV, GALLERY, PAGE, PAPER, PLOTS, TABLE
from stages.report.statement import has_guarantee
from stages.report.table import Outcome


def publish(
    outcomes: list[Outcome], first_seed: int, every_seed: bool = True, not_private: Sequence[str] = ()
) -> dict[str, str | None]:
    """Bring MLflow in line with the files; returns where each cell's model can be loaded from.

    Weights without a guarantee are published only of the cells that `not_private` names.
    """
    client, models = MlflowClient(), {}
    spending = Spending(outcomes, published_before(client))
    joint = {name: spending.joint(name) for name in {o.cell.dataset for o in outcomes}}
    for outcome in progress.bar(outcomes, "publish to MLflow", "runs"):
        cell = outcome.cell
        allowed = has_guarantee(outcome.training) or str(cell) in not_private
        wanted = every_seed or cell.seed == first_seed
        publisher = Publisher(client, outcome, allowed and wanted, joint[cell.dataset])
        version = publisher.publish()
        models[str(cell)] = version and f"models:/{publisher.registered}/{version}"
        # An alias names one model: the first seed's. The best one's would be a choice made on the test split.
        if version and cell.seed == first_seed:
            client.set_registered_model_alias(publisher.registered, alias(cell), version)
    update_others(client, joint)
    stay = any(Manifest.read(data_dir(name)).private_test for name in joint)
    for sweep in {o.cell.sweep: o.cell for o in outcomes}.values():
        publish_report(client, sweep, stay)
    return models


def published_before(client: MlflowClient) -> set[str]:
    """The charges of the runs that are in the store, of this sweep or of others."""
    return {each.data.tags["charge"] for each in all_runs(client) if "charge" in each.data.tags}


def update_others(client: MlflowClient, joint: dict[str, Joint | None]) -> None:
    """What is true of all models together is so for those of other sweeps on the same data, and for the parents."""
    for each in all_runs(client):
        for name, value in together_tags(joint.get(each.data.params.get("private_dataset", ""))).items():
            client.set_tag(each.info.run_id, name, value)


def publish_report(client: MlflowClient, cell: Cell, scores_stay: bool) -> None:
    """Tables and pages have all datasets of the sweep: if the scores of one must stay with its data, none is sent."""
    run_id = parent_run(client, cell).info.run_id
    if scores_stay:
        client.set_tag(run_id, "mlflow.note.content", "The scores on a private test split stay with the data.")
        return
    said = [GALLERY / gallery.page_name(cell.sweep)] if tasks.named(cell.task).page_title else []
    for path in (PAGE, TABLE, CSV, PAPER, PLOTS / f"{cell.sweep.replace('/', '-')}.png", *said):
        client.log_artifact(run_id, str(path))
    page = f"The whole sweep on one page: `{PAGE.name}`, among the artifacts of this run."
    client.set_tag(run_id, "mlflow.note.content", f"{page}\n\n{TABLE.read_text(encoding='utf-8')}")
