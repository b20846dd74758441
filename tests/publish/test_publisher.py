"""What a run, a model and an experiment say at first sight, and that publishing again changes none of it."""

import json
import re
import shutil
from pathlib import Path

import mlflow

from stages.publish.inputs import fingerprint
from tests.publish.conftest import BEST


def everything(sweep) -> dict:
    """That a person sees, without the dates and numbers that the store gives."""
    c = sweep.client
    said = {run.info.run_name: (run.data.params, run.data.metrics, _lasting(run.data.tags)) for run in sweep.runs()}
    said |= {m.name: (m.description, sorted(m.aliases)) for m in c.search_registered_models()}
    said |= {f"{v.name} {v.tags['cell']}": v.description for v in c.search_model_versions()}
    return said | {e.name: e.tags.get("mlflow.note.content") for e in c.search_experiments()}


def _lasting(tags: dict) -> dict:
    return {
        name: value for name, value in tags.items() if name not in ("mlflow.parentRunId", "mlflow.log-model.history")
    }


def test_a_sweep_and_its_experiment_describe_themselves(sweep):
    note = sweep.parent.data.tags["mlflow.note.content"]
    assert note.startswith("Together: the 4 published have epsilon")
    assert "classification-mnist5k-tiny-clip.png" in note and "| 1 |" in note and "80.00" in note
    assert "chosen by its score on the test split, so that score is optimistic" in note
    experiment = sweep.client.get_experiment(sweep.parent.info.experiment_id).tags["mlflow.note.content"]
    assert "mnist5k: Together: the 4 published" in experiment and "| 1 |" in experiment and len(experiment) < 5000


def test_models_and_versions_say_their_guarantee_their_score_and_what_all_tell_together(sweep):
    models = {model.name: model for model in sweep.client.search_registered_models()}
    assert set(models) == {BEST, f"{BEST}.batch", f"{BEST}.group", f"{BEST}.batch.not-sound"}
    for name, model in models.items():
        assert len(model.description.splitlines()) == 2 and "Together: the 4 published" in model.description
        assert ("NOT SOUND" in model.description) is name.endswith("not-sound")
    version = sweep.client.get_model_version_by_alias(f"{BEST}.batch", "eps-1")
    guarantee, score = version.description.splitlines()
    assert guarantee == sweep.run("batch, 1").data.tags["guarantee"]
    assert score.startswith("accuracy_percent 70.00. Together: the 4 published have epsilon")


def test_dataset_and_source_are_named_without_a_digest_or_number_of_private_data(sweep):
    for run in sweep.runs():
        (used,) = run.inputs.dataset_inputs
        assert (used.dataset.name, used.dataset.digest) == ("mnist5k", fingerprint("mnist5k"))
        assert used.dataset.schema is None and used.dataset.profile is None
        assert json.loads(used.dataset.source) == {"folder": "data/mnist5k"}
        assert run.data.tags["mlflow.source.type"] == "LOCAL"
    tags = sweep.run("batch, 3").data.tags
    assert tags["mlflow.source.name"] == "train@classification-mnist5k-tiny-clip-batch-3-0"


def test_publishing_again_makes_nothing_new_and_a_lost_store_comes_back_whole(sweep):
    before, identities = everything(sweep), sorted(run.info.run_id for run in sweep.runs())
    numbers = sorted((v.name, v.version) for v in sweep.client.search_model_versions())
    sweep.publish()
    assert everything(sweep) == before and sorted(run.info.run_id for run in sweep.runs()) == identities
    assert sorted((v.name, v.version) for v in sweep.client.search_model_versions()) == numbers

    Path("mlflow.db").unlink()
    shutil.rmtree("mlartifacts")
    mlflow.set_tracking_uri(f"sqlite:///{sweep.folder / 'other.db'}")  # the first one's connection is still open
    sweep.publish()
    assert everything(sweep) == before


def test_what_a_training_cost_is_published_only_where_that_was_asked_for(sweep):
    def figures() -> tuple[dict, int, int]:
        run = sweep.run("batch, 1")
        return run.data.metrics, run.info.start_time, run.info.end_time

    metrics, start, end = figures()
    assert not any(name.startswith("cost") for name in metrics) and start % 60_000 and end - start < 120_000
    its = sweep.outcomes["batch, 1"].cell
    costs = json.loads(its.costs_json.read_text())
    assert costs["made"] == costs["steps"] == int(sweep.run("batch, 1").data.params["plan.steps"])
    everywhere = [p.read_text(errors="ignore") for p in Path("mlartifacts").rglob("*") if p.is_file()]
    assert not any(re.search(re.escape(str(costs["seconds"])), text) for text in everywhere)
    try:
        sweep.publish(costs=True)
        metrics, start, end = figures()
        assert metrics["cost.seconds"] == round(costs["seconds"]) and metrics["cost.peak_memory_mb"] > 100
        assert metrics["cost.steps_per_second"] > 0
        assert start % 60_000 == end % 60_000 == 0 and start <= 1000 * costs["started"] < end
    finally:
        sweep.publish()
    assert not any(name.startswith("cost") for name in figures()[0])
