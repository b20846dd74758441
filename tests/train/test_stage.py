"""The training stage in a real project, for the methods and options that the shared sweep of the tests leaves out."""

import json
import re
from pathlib import Path

from mlflow import MlflowClient
from ruamel.yaml import YAML

from tests.conftest import ROOT, forget_charges


def train(project, method: str, privacy: dict | None = None) -> dict:
    """calibrate, train and evaluate one cell by the stages' own commands; returns what they wrote."""
    params = project.params()
    params["privacy"] |= {"unsafe_noise_seed": None} | (privacy or {})
    params["train"]["methods"]["group"] |= {"groups": 8, "batch_size": 64, "steps": 3}
    params["train"]["methods"]["example"] |= {"batch_size": 64, "steps": 3}
    project.write_params(params)
    cell = f"classification/mnist5k/tiny-clip/{method}/eps-10/seed-0"
    for stage in ("calibrate", "train", "evaluate"):
        done = project.stage(stage, "--cell", cell)
        assert done.returncode == 0, done.stderr
        if stage == "train":
            told = done.stdout + done.stderr
    training = json.loads((project.folder / "runs" / cell / "training.json").read_text())
    metrics = json.loads((project.folder / "results" / cell / "metrics.json").read_text())
    return {"training": training, "metrics": metrics, "told": told}


def test_group_trains_on_2C_releases_nothing_of_its_steps_and_refuses_another_calibration(copy_of_finished):
    made = train(copy_of_finished, "group")
    g = made["training"]["privacy"]["guarantee"]
    assert g["sensitivity"] == 2 and g["sigma"] == 2 * g["z"] and g["steps"] == 3
    assert made["training"]["train"]["loss"] == "contrastive" and made["training"]["train"]["groups"] == 8
    assert made["training"]["key"] == "os" and made["metrics"]["n"] == 1000
    assert made["training"]["diagnostics"] is None
    assert not any(word in made["told"].lower() for word in ("loss", "norm", "finite"))
    assert "group/eps-10/seed-0: epsilon" in copy_of_finished.stage("ledger").stdout

    cell = "classification/mnist5k/tiny-clip/group/eps-10/seed-0"
    path = copy_of_finished.folder / "calibration/classification/mnist5k/group/eps-10/privacy.json"
    right, charged = path.read_text(), copy_of_finished.stage("ledger").stdout
    facts = json.loads(right)
    for edit in ({"sigma": 0.01}, {"sigma": 0.01, "z": 0.005}, {"epsilon": 1.0, "epsilon_pld": 1.0}):
        path.write_text(json.dumps(facts | {"guarantee": facts["guarantee"] | edit}))
        done = copy_of_finished.stage("train", "--cell", cell)
        assert done.returncode == 2 and "is not that of its noise" in done.stderr, done.stderr
    assert copy_of_finished.stage("ledger").stdout == charged
    path.write_text(right)

    params = copy_of_finished.params()
    params["train"]["methods"]["group"]["steps"] = 4
    copy_of_finished.write_params(params)
    done = copy_of_finished.stage("train", "--cell", cell)
    assert done.returncode == 2 and "was made for other data, values or another cell" in done.stderr


def test_weights_on_the_way_are_scored_and_the_last_are_what_they_were_without_it(copy_of_finished):
    """A step must not depend on whether somebody looks; nor does anything train again because of it."""
    project, params = copy_of_finished, copy_of_finished.params()
    seed, made = {"unsafe_noise_seed": 5}, {}
    for points in (0, 2):
        params["evaluate"]["curve"] = points
        project.write_params(params)
        forget_charges(project.folder / "ledger")
        train(project, "example", seed)
        cell = project.folder / "{}/classification/mnist5k/tiny-clip/example/eps-10/seed-0"
        curve = json.loads(Path(str(cell).format("results"), "curve.json").read_text())
        made[points] = Path(str(cell).format("runs"), "model/changes.safetensors").read_bytes(), curve["scores"]
    assert made[0][0] == made[2][0]
    assert made[0][1] == {} and made[2][1].keys() == {"1", "2"} and all(0 <= v <= 1 for v in made[2][1].values())
    assert "evaluate" not in str(YAML(typ="safe").load(ROOT / "dvc.yaml")["stages"]["train"]["params"])


def test_example_trains_on_C_and_unsafe_diagnostics_keep_the_figures_of_each_step(copy_of_finished):
    made = train(copy_of_finished, "example", {"unsafe_diagnostics": True})
    g = made["training"]["privacy"]["guarantee"]
    assert g["sensitivity"] == 1 and g["sigma"] == g["z"]
    figures = made["training"]["diagnostics"]
    assert set(figures) == {"batch_size", "mean_loss", "median_norm", "not_finite"}
    assert all(len(values) == 3 for values in figures.values()) and all(size > 20 for size in figures["batch_size"])

    assert "example/eps-10/seed-0: NOT PRIVATE" in copy_of_finished.stage("ledger").stdout
    params = copy_of_finished.params()
    params["sweep"] |= {"method": ["example"], "epsilon": [10]}
    copy_of_finished.write_params(params)
    published = copy_of_finished.stage("publish")
    assert published.returncode == 0, published.stderr
    store = MlflowClient(f"sqlite:///{copy_of_finished.folder / 'mlflow.db'}")
    experiments = [e.experiment_id for e in store.search_experiments()]
    (run,) = [r for r in store.search_runs(experiments) if "/example/" in r.data.tags.get("cell", "")]
    assert run.data.tags["guarantee"] == "none (unsafe_diagnostics: private figures are released)"
    assert "epsilon_sound" not in run.data.params
    history = store.get_metric_history(run.info.run_id, "unsafe.mean_loss")
    assert [point.value for point in history] == figures["mean_loss"]


def test_fixed_size_sampling_trains_with_a_guarantee_for_a_replaced_record(copy_of_finished):
    forget_charges(copy_of_finished.folder / "ledger")  # they are for other neighbours
    made = train(copy_of_finished, "example", {"sampling": "fixed-size"})
    g = made["training"]["privacy"]["guarantee"]
    assert (g["adjacency"], g["accountant"], g["sensitivity"]) == ("replace-one", "rdp", 2)
    assert "replace-one" in copy_of_finished.stage("ledger").stdout


def test_where_n_is_secret_nothing_that_is_written_or_said_has_it(copy_of_finished):
    forget_charges(copy_of_finished.folder / "ledger")  # they have the n that is now secret
    made = train(copy_of_finished, "group", {"public_n": {"mnist5k": 5000}})
    g = made["training"]["privacy"]["guarantee"]
    assert (g["adjacency"], g["n"], g["q"]) == ("add-or-remove", 5000, 64 / 5000)
    folder = copy_of_finished.folder
    shown = copy_of_finished.stage("ledger").stdout
    assert "add-or-remove" in shown
    cell = "classification/mnist5k/tiny-clip/group/eps-10/seed-0"
    written = [folder / "calibration/classification/mnist5k/group/eps-10/privacy.json"]
    written += [folder / "runs" / cell / "training.json", *(folder / "ledger").glob("*.json*")]
    for text in (made["told"], shown, *(path.read_text() for path in written)):
        assert not re.search(r"\b4000\b", text), text

    params = copy_of_finished.params()
    params["privacy"]["public_n"]["mnist5k"] = 5001
    copy_of_finished.write_params(params)
    done = copy_of_finished.stage("train", "--cell", cell)
    assert done.returncode == 2 and "was made for other data, values or another cell" in done.stderr


def test_a_projection_trains_on_features_of_this_data_alone_and_nothing_is_charged_before(copy_of_finished):
    cell, folder = "classification/mnist5k/tiny-clip/example/eps-10/seed-0", copy_of_finished.folder
    params = copy_of_finished.params()
    values = {"batch_size": 64, "steps": 3, "trainable": "image-projection"}
    params["train"]["methods"]["example"] |= values
    params["sweep"]["method"] = ["example"]
    copy_of_finished.write_params(params)
    assert copy_of_finished.stage("calibrate", "--cell", cell).returncode == 0
    before = copy_of_finished.stage("ledger").stdout
    refused = copy_of_finished.stage("train", "--cell", cell)  # the sweep so far wanted no features
    assert refused.returncode == 2 and "they were not wanted when it was made; run: dvc repro" in refused.stderr

    encode = ("encode", "--dataset", "mnist5k", "--model", "tiny-clip")
    assert copy_of_finished.stage(*encode).returncode == 0
    facts = folder / "features/mnist5k/tiny-clip/features.json"
    good = json.loads(facts.read_text())
    facts.write_text(json.dumps(good | {"data": "0" * 64}))
    refused = copy_of_finished.stage("train", "--cell", cell)
    assert refused.returncode == 2 and "are of other data or another model" in refused.stderr
    assert copy_of_finished.stage("ledger").stdout == before

    facts.write_text(json.dumps(good))
    for stage in ("train", "evaluate"):
        done = copy_of_finished.stage(stage, "--cell", cell)
        assert done.returncode == 0, done.stderr
    training = json.loads((folder / "runs" / cell / "training.json").read_text())
    assert training["trained_parameters"] == 64 * 64 and "lora_rank" not in training["train"]
