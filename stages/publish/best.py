"""The best private model at each epsilon, of all methods and seeds of a sweep: `dp-clip.TASK.DATASET.MODEL@best-eps-1`.

It is chosen by its score on the test split. Where that is public the choice costs no privacy, but the score of what was
chosen is optimistic, and its description says so. Where the test split is private there is none, and none of a model
without a sound guarantee. As they are found in the store, runs of earlier sweeps on the same data take part.
"""

import math
from dataclasses import dataclass

from mlflow import MlflowClient
from mlflow.entities import Run

from stages.keys import Cell
from stages.publish import descriptions
from stages.publish.runs import children, parent_run, replace_parent
from stages.report.joint import Joint

METRIC = "best_{score}_eps_{epsilon}"


@dataclass(frozen=True)
class Candidate:
    run: Run
    score: float

    @property
    def order(self) -> tuple[float, str]:
        return self.score, self.run.data.tags["cell"]


def candidates(client: MlflowClient, cell: Cell, score: str, data: str) -> dict[str, list[Candidate]]:
    """By epsilon: runs with a sound guarantee and a public score on the data as they are now (`data`: fingerprint)."""
    found: dict[str, list[Candidate]] = {}
    for run in children(client, cell):
        tags, value = run.data.tags, run.data.metrics.get(score, math.nan)
        complete = tags.get("sound") == "yes" and "content" in tags and tags.get("data_fingerprint") == data
        if complete and tags["epsilon"] != "0" and not math.isnan(value):
            found.setdefault(tags["epsilon"], []).append(Candidate(run, value))
    return found


def update(client: MlflowClient, cell: Cell, score: str, data: str, joint: Joint | None, scores_stay: bool) -> None:
    """Bring a sweep's best scores, and the models that have them, in line with the runs in the store."""
    found = {} if scores_stay else candidates(client, cell, score, data)
    metrics = {
        METRIC.format(score=score, epsilon=epsilon.replace(".", "_")): max(c.score for c in its)
        for epsilon, its in found.items()
    }
    parent = parent_run(client, cell)
    withdrawn = parent.data.metrics.keys() - metrics.keys()  # MLflow deletes no metric of a run
    if withdrawn:
        parent = replace_parent(client, cell, parent)
    for name, value in metrics.items():
        if parent.data.metrics.get(name) != value:
            client.log_metric(parent.info.run_id, name, value)
    _point(client, cell, found, score, joint)


def _point(
    client: MlflowClient, cell: Cell, found: dict[str, list[Candidate]], score: str, joint: Joint | None
) -> None:
    name = descriptions.sweep_name(cell)
    chosen = {epsilon: with_model for epsilon, its in found.items() if (with_model := _with_model(client, name, its))}
    known = client.search_registered_models(f"name = '{name}'")
    if not chosen:
        if known:
            client.delete_registered_model(name)
        return
    if not known:
        client.create_registered_model(name)
    client.update_registered_model(name, descriptions.of_best(cell, joint))
    there = {version.run_id: version for version in client.search_model_versions(f"name = '{name}'")}
    for epsilon, (best, model_id) in chosen.items():
        run, tags = best.run.info.run_id, best.run.data.tags
        facts = {"cell": tags["cell"], "guarantee": tags["guarantee"]}
        version = there.pop(run, None) or client.create_model_version(
            name, f"models:/{model_id}", run_id=run, model_id=model_id, tags=facts
        )
        said = f"{tags['cell'].split('/')[3]}: {score} {best.score:.2f}"
        text = descriptions.of_version(tags["guarantee"], said, joint, chosen=True)
        client.update_model_version(name, version.version, text)
        client.set_registered_model_alias(name, f"best-eps-{epsilon.replace('.', '_')}", version.version)
    for outdone in there.values():
        client.delete_model_version(name, outdone.version)  # and an alias of an epsilon that has none any more


def _with_model(client: MlflowClient, best: str, its: list[Candidate]) -> tuple[Candidate, str] | None:
    """The first of them whose weights are published, with the model's id."""
    for candidate in sorted(its, key=lambda c: c.order, reverse=True):
        versions = client.search_model_versions(f"run_id = '{candidate.run.info.run_id}'")
        if (outputs := candidate.run.outputs) and any(version.name != best for version in versions):
            return candidate, outputs.model_outputs[0].model_id
    return None
