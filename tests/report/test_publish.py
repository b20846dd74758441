"""A real MLflow store on sqlite, filled from the files of a finished sweep."""

import json
import shutil
import sys

import mlflow
import pandas as pd
import pytest
from mlflow import MlflowClient

from stages.data.manifest import Manifest
from stages.data.prepared import PreparedSplit
from tests.conftest import Project

MODEL = "dp-clip.classification.mnist5k.tiny-clip.batch"
NOT_PRIVATE = f"{MODEL}.not-private"
PUBLISH = ("publish",)


def client(project: Project) -> MlflowClient:
    return MlflowClient(f"sqlite:///{project.folder / 'mlflow.db'}")


def runs(project: Project) -> list:
    c = client(project)
    return c.search_runs([e.experiment_id for e in c.search_experiments()])


def children(project: Project) -> dict[str, mlflow.entities.Run]:
    return {r.data.tags["epsilon"]: r for r in runs(project) if "cell" in r.data.tags}


def test_a_sweep_is_a_parent_with_a_child_a_cell(finished):
    parents = [r for r in runs(finished) if "sweep" in r.data.tags]
    assert len(parents) == 1 and parents[0].info.run_name == "mnist5k, tiny-clip"
    cells = children(finished)
    assert set(cells) == {"0", "1", "10", "inf"}
    for run in cells.values():
        assert run.data.tags["mlflow.parentRunId"] == parents[0].info.run_id
        assert run.info.status == "FINISHED"
    assert "`index.html`" in parents[0].data.tags["mlflow.note.content"]
    artifacts = {a.path for a in client(finished).list_artifacts(parents[0].info.run_id)}
    assert artifacts == {"index.html", "table.md", "table.csv", "paper.md", "classification-mnist5k-tiny-clip.png"}


def test_a_private_run_carries_its_guarantee(finished):
    run = children(finished)["1"]
    facts = json.loads((finished.folder / "calibration/classification/mnist5k/batch/eps-1/privacy.json").read_text())
    g = facts["guarantee"]
    p = run.data.params
    assert float(p["epsilon"]) == 1 and g["epsilon"] <= 1
    assert "epsilon_sound" not in p  # the test sweep has a fixed noise seed, so nothing is bounded
    for name in ("delta", "sigma", "q", "z", "n"):
        assert float(p[f"privacy.{name}"]) == g[name]
    assert int(p["privacy.T"]) == g["steps"] and float(p["privacy.clip_norm"]) == 1.0
    assert (p["privacy.accountant"], p["privacy.adjacency"]) == (g["accountant"], "zero-out")
    assert p["privacy.convention"] == "sound"
    assert {"git_commit", "data_fingerprint", "dvc_stage", "guarantee"} <= set(run.data.tags)
    assert run.data.tags["guarantee"] == "none (fixed noise seed: for tests only)"
    text = mlflow.artifacts.load_text(f"{run.info.artifact_uri}/privacy-statement.md")
    assert "**NO GUARANTEE" in text and "differentially private" not in text


def test_private_per_step_figures_are_not_published(finished):
    for run in children(finished).values():
        ends = {"accuracy_percent_95_low", "accuracy_percent_95_high"}
        assert set(run.data.metrics) - {"sound_epsilon"} == {"accuracy_percent", "n_test", *ends}
        artifacts = {a.path for a in client(finished).list_artifacts(run.info.run_id)}
        assert artifacts == {"picture.png", "details.json", "metrics.json", "privacy-statement.md", "training.json"}


def test_no_plain_hash_of_the_private_data_is_published(finished):
    """It would tell whoever knows all other records whether a candidate is the missing one."""
    manifest = Manifest.read(finished.folder / "data/mnist5k")
    secret = {manifest.data_hash, manifest.train.sha256}
    for run in children(finished).values():
        assert run.data.tags["data_fingerprint"] and run.data.tags["data_fingerprint"] not in secret
        texts = [*run.data.tags.values(), *run.data.params.values()]
        texts += [p.read_text(errors="ignore") for p in (finished.folder / "mlartifacts").rglob("*") if p.is_file()]
        assert not any(s in text for s in secret for text in texts)
    assert (finished.folder / "ledger/key").stat().st_mode & 0o077 == 0


def test_publishing_twice_changes_nothing(copy_of_finished):
    def state() -> tuple:
        versions = client(copy_of_finished).search_model_versions()
        return sorted(r.info.run_id for r in runs(copy_of_finished)), sorted(v.version for v in versions)

    before = state()
    assert copy_of_finished.stage(*PUBLISH).returncode == 0
    assert state() == before


def test_a_deleted_store_is_restored_from_the_files(copy_of_finished):
    def content() -> dict:
        return {
            e: (r.data.params, r.data.metrics, r.data.tags["content"]) for e, r in children(copy_of_finished).items()
        }

    before = content()
    (copy_of_finished.folder / "mlflow.db").unlink()
    shutil.rmtree(copy_of_finished.folder / "mlartifacts")
    assert copy_of_finished.stage(*PUBLISH).returncode == 0
    assert content() == before
    names = {model.name: set(model.aliases) for model in client(copy_of_finished).search_registered_models()}
    assert names == {MODEL: {"eps-0"}, NOT_PRIVATE: {"eps-1", "eps-10", "eps-inf"}}


def test_weights_without_a_guarantee_are_published_only_by_name_and_never_as_the_newest(copy_of_finished):
    """The noise of the test sweep has a fixed seed: of its models only the initial one has a guarantee."""
    params, c = copy_of_finished.params(), client(copy_of_finished)
    (latest,) = c.search_model_versions(f"name = '{MODEL}'")
    assert latest.tags["guarantee"] == "no private data used"
    params["publish"]["not_private"] = []
    copy_of_finished.write_params(params)
    assert copy_of_finished.stage(*PUBLISH).returncode == 0
    assert {version.name for version in c.search_model_versions()} == {MODEL}
    kept = {model.name for model in c.search_logged_models([runs(copy_of_finished)[0].info.experiment_id])}
    assert kept == {"model-eps-0"}
    scored = children(copy_of_finished)["inf"]
    assert scored.data.tags["scores"].startswith("NOT PRIVATE") and "accuracy_percent" in scored.data.metrics


def test_weights_that_are_not_those_of_their_training_are_refused(copy_of_finished):
    runs_of = copy_of_finished.folder / "runs/classification/mnist5k/tiny-clip/batch"
    weights = runs_of / "eps-1/seed-0/model/changes.safetensors"
    weights.unlink()
    shutil.copy(runs_of / "eps-inf/seed-0/model/changes.safetensors", weights)
    for stage in ("report", *PUBLISH):
        done = copy_of_finished.stage(stage)
        assert done.returncode == 2 and "is not the model that" in done.stderr
    shutil.rmtree(weights.parent)
    done = copy_of_finished.stage("report")
    assert done.returncode == 2 and "is not the model that" in done.stderr


def test_a_private_test_split_keeps_its_scores(copy_of_finished):
    folder = copy_of_finished.folder
    manifest = json.loads((folder / "data/mnist5k/manifest.json").read_text())
    (folder / "data/mnist5k").chmod(0o755)
    shutil.copy(folder / "data/mnist5k/manifest.json", folder / "manifest.json")
    (folder / "data/mnist5k/manifest.json").unlink()
    (folder / "data/mnist5k/manifest.json").write_text(json.dumps(manifest | {"private_test": True}))
    (folder / "mlflow.db").unlink()
    shutil.rmtree(folder / "mlartifacts")
    for stage in ("report", *PUBLISH):
        assert copy_of_finished.stage(stage).returncode == 0
    assert "The test split of mnist5k is private: its scores stay" in (folder / "report/index.html").read_text()
    for run in runs(copy_of_finished):
        assert set(run.data.metrics) <= {"sound_epsilon"} and "|" not in run.data.tags.get("mlflow.note.content", "")
    published = {p.name for p in (folder / "mlartifacts").rglob("*") if p.is_file()}
    assert "training.json" in published and "index.html" not in published
    assert not published & {"metrics.json", "details.json", "picture.png", "table.md", "table.csv"}
    cell = "classification/mnist5k/tiny-clip/batch/eps-1/seed-0"
    said = copy_of_finished.stage("evaluate", "--cell", cell)
    assert said.returncode == 0 and "accuracy" not in said.stdout + said.stderr


def test_an_interrupted_publication_is_made_again(copy_of_finished):
    c, half = client(copy_of_finished), children(copy_of_finished)["1"]
    c.delete_tag(half.info.run_id, "content")  # as if the process had died before its last step
    assert copy_of_finished.stage(*PUBLISH).returncode == 0
    again = children(copy_of_finished)
    assert len(again) == 4 and again["1"].info.run_id != half.info.run_id
    old = c.get_run(half.info.run_id).outputs.model_outputs[0].model_id
    kept = {m.model_id for m in c.search_logged_models([half.info.experiment_id])}
    assert len(kept) == 4 and old not in kept
    versions = c.search_model_versions()
    assert len(versions) == 4 and half.info.run_id not in {v.run_id for v in versions}


SCRIPT = """
import json, sys, mlflow, pandas
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model(sys.argv[2])
print(model.predict(pandas.DataFrame(json.loads(sys.argv[3]))).to_json(orient="records"))
"""


@pytest.mark.parametrize("epsilon", ["1", "inf"])
def test_a_registered_model_classifies_an_image_file_in_a_fresh_process(finished, tmp_path, epsilon):
    import base64

    row = PreparedSplit(finished.folder / "data/mnist5k", "test").row(703)
    (tmp_path / "digit.png").write_bytes(row.image)
    store = f"sqlite:///{finished.folder / 'mlflow.db'}"
    uri = f"models:/{NOT_PRIVATE}@eps-{epsilon}"
    elsewhere = Project(tmp_path)  # not in the project's folder: the model brings its own code
    encoded = base64.b64encode(row.image).decode()
    table = json.dumps({"image": [str(tmp_path / "digit.png"), encoded]})
    done = elsewhere.run(sys.executable, "-c", SCRIPT, store, uri, table)
    assert done.returncode == 0, done.stderr
    answers = pd.DataFrame(json.loads(done.stdout.splitlines()[-1]))
    assert answers["label"].isin([str(d) for d in range(10)]).all()
    assert answers["label"].nunique() == answers["similarity"].nunique() == 1  # a path and base64 are the same image


def test_where_models_are_large_only_the_first_seed_carries_its_own(finished, tmp_path, monkeypatch):
    from stages import params
    from stages.publish.publishing import Wanted, publish
    from stages.report.table import read_outcome

    monkeypatch.chdir(finished.folder)
    monkeypatch.delenv("LEDGER_DIR")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'other.db'}")
    monkeypatch.setenv("MLFLOW_ARTIFACT_ROOT", str(tmp_path))
    try:
        outcomes = [read_outcome(cell) for cell in params.load().cells()][:1]
        assert set(publish(outcomes, Wanted(first_seed=7, every_seed=False)).values()) == {None}
        store = MlflowClient()
        (run,) = [
            r for r in store.search_runs([e.experiment_id for e in store.search_experiments()]) if "cell" in r.data.tags
        ]
        assert run.data.metrics["accuracy_percent"] > 1 and not store.search_registered_models()
        (location,) = publish(outcomes, Wanted(first_seed=0, every_seed=False)).values()
        assert location.endswith("/1") and len(store.search_registered_models()) == 1
    finally:
        mlflow.set_tracking_uri(None)
