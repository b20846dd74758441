"""Brings MLflow in line with the files of a sweep: an experiment per task, a parent run per sweep, a child per cell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from mlflow import MlflowClient

from stages import progress, tasks
from stages.data.manifest import Manifest
from stages.keys import data_dir
from stages.publish import best, descriptions, figures, links
from stages.publish.inputs import fingerprint
from stages.publish.publisher import Publisher, alias, together_tags
from stages.publish.runs import all_runs, children, experiment_id, parent_run, remove, replace_parent
from stages.report import gallery
from stages.report.joint import Joint, Spending
from stages.report.paths import CSV, GALLERY, PAGE, PAPER, PLOTS, TABLE
from stages.report.statement import has_guarantee
from stages.report.table import Outcome, markdown, summarise

NOTE = "mlflow.note.content"


@dataclass(frozen=True)
class Wanted:
    """What is published beside the figures of each cell."""

    first_seed: int
    every_seed: bool = True  # whose models
    not_private: Sequence[str] = ()  # cells without a guarantee whose weights are published all the same
    costs: bool = False


def publish(outcomes: list[Outcome], wanted: Wanted) -> dict[str, str | None]:
    """Bring MLflow in line with the files; returns where each cell's model can be loaded from."""
    client, models = MlflowClient(), {}
    spending = Spending(outcomes, published_before(client))
    joint = {name: spending.joint(name) for name in {o.cell.dataset for o in outcomes}}
    for outcome in progress.bar(outcomes, "publish to MLflow", "runs"):
        cell = outcome.cell
        allowed = has_guarantee(outcome.training) or str(cell) in wanted.not_private
        with_model = allowed and (wanted.every_seed or cell.seed == wanted.first_seed)
        publisher = Publisher(client, outcome, with_model, joint[cell.dataset], wanted.costs)
        version = publisher.publish()
        models[str(cell)] = version and f"models:/{publisher.registered}/{version}"
        # An alias names one model: the first seed's. The best one's are in best.py.
        if version and cell.seed == wanted.first_seed:
            client.set_registered_model_alias(publisher.registered, alias(cell), version)
    stays = {name: Manifest.read(data_dir(name)).private_test for name in joint}
    summary = summarise(outcomes, spending.together)
    for outcome in {o.cell.sweep: o for o in outcomes}.values():
        publish_sweep(client, outcome, summary, joint, stays)
    for outcome in {o.cell.task: o for o in outcomes}.values():
        describe_experiment(client, outcome, summary, joint, stays)
    update_others(client, joint)
    return models


def published_before(client: MlflowClient) -> set[str]:
    """The charges of the runs that are in the store, of this sweep or of others."""
    return {each.data.tags["charge"] for each in all_runs(client) if "charge" in each.data.tags}


def publish_sweep(
    client: MlflowClient,
    outcome: Outcome,
    summary: pd.DataFrame,
    joint: Mapping[str, Joint | None],
    stays: Mapping[str, bool],
) -> None:
    """The parent run. The report has all datasets: if the scores of one must stay with its data, none is sent."""
    cell, stay, score = outcome.cell, stays[outcome.cell.dataset], figures.primary(outcome)
    for run in children(client, cell) if stay else []:
        if score in run.data.metrics:  # of another sweep, from before the test split was declared private
            remove(client, run)
    best.update(client, cell, score, fingerprint(cell.dataset), joint[cell.dataset], stay)
    parent, picture = parent_run(client, cell), None
    if any(stays.values()) and client.list_artifacts(parent.info.run_id):
        parent = replace_parent(client, cell, parent)
    run_id = parent.info.run_id
    if not any(stays.values()):
        picture = f"{cell.sweep.replace('/', '-')}.png"
        said = [GALLERY / gallery.page_name(cell.sweep)] if tasks.named(cell.task).page_title else []
        for path in (PAGE, TABLE, CSV, PAPER, PLOTS / picture, *said):
            client.log_artifact(run_id, str(path))
    of_cell = summary[(summary.task == cell.task) & (summary.dataset == cell.dataset) & (summary.model == cell.model)]
    table = None if stay else markdown(of_cell)
    client.set_tag(run_id, NOTE, descriptions.of_sweep(cell, joint[cell.dataset], table, picture))


def describe_experiment(
    client: MlflowClient,
    outcome: Outcome,
    summary: pd.DataFrame,
    joint: Mapping[str, Joint | None],
    stays: Mapping[str, bool],
) -> None:
    task, score, experiment = outcome.cell.task, figures.primary(outcome), experiment_id(client, outcome.cell)
    public = summary[(summary.task == task) & ~summary.dataset.map(stays)]
    sentences = {name: descriptions.together(joint[name]) for name in joint}
    table = markdown(public) if len(public) else None
    client.set_experiment_tag(experiment, NOTE, descriptions.of_experiment(task, sentences, table, score))
    runs = [r.data.tags for r in all_runs(client) if r.info.experiment_id == experiment]
    private = {tags["epsilon"] for tags in runs if tags.get("sound") == "yes"} - {"0"}
    links.set_views(client, experiment, score, sorted(private, key=float))


def update_others(client: MlflowClient, joint: Mapping[str, Joint | None]) -> None:
    """What is true of all models together is so for those of other sweeps on the same data, and for the parents."""
    for each in all_runs(client):
        its, tags = joint.get(each.data.params.get("private_dataset", "")), each.data.tags
        said = {NOTE: descriptions.renewed(tags[NOTE], its)} if NOTE in tags else {}
        for name, value in (together_tags(its) | said).items():
            if tags.get(name) != value:
                client.set_tag(each.info.run_id, name, value)
        if its and "cell" in tags:
            _renew_versions(client, each.info.run_id, its)


def _renew_versions(client: MlflowClient, run_id: str, joint: Joint) -> None:
    for version in client.search_model_versions(f"run_id = '{run_id}'"):
        text = descriptions.renewed(version.description or "", joint)
        if text != version.description:
            client.update_model_version(version.name, version.version, text)
            about = client.get_registered_model(version.name).description or ""
            client.update_registered_model(version.name, descriptions.renewed(about, joint))
