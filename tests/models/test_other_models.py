"""SigLIP, MobileCLIP and GIT from `prepare` to a model that MLflow serves, each by the loss that is its own."""

import json
import sys

import pytest

from stages.data.prepared import PreparedSplit
from stages.models import saved
from tests.tasks.test_captioning import captioning_params

SERVED = """
import json, sys
import mlflow, pandas
model, asked = sys.argv[1], json.loads(sys.argv[2])
print(json.dumps(mlflow.pyfunc.load_model(f"models:/{model}").predict(pandas.DataFrame(asked)).to_dict(orient="records")))
"""
SWEEPS = {
    "tiny-siglip": ("retrieval", "group", {"loss": "sigmoid", "trainable": "no-token-table", "groups": 2}),
    "tiny-mobileclip": ("retrieval", "group", {"loss": "contrastive", "trainable": "image-projection", "groups": 2}),
    "tiny-git": ("captioning", "example", {"loss": "writing", "trainable": "image-tower+decoder", "text_tokens": 16}),
}
MOVED = {"tiny-siglip": "logit_bias", "tiny-mobileclip": "visual.trunk.head.fc.weight", "tiny-git": "output.bias"}


def sweep(model: str) -> dict:
    task, method, values = SWEEPS[model]
    p = captioning_params()
    p["prepare"]["mine"] = {"source": "scenes", "style": "private", "train": 40, "test": 4, "seed": 0}
    p["pretrain"] = {model: p["pretrain"]["tiny-blip"] | {"architecture": f"stages/models/configs/{model}"}}
    p["pretrain"][model]["steps"] = 25 if model == "tiny-git" else 3  # until it writes anything
    p["pretrain"][model]["lr"] = 0.003
    p["sweep"] |= {"task": [task], "model": [model], "method": [method]}
    p["train"]["methods"][method] |= {"batch_size": 8, "steps": 2, "epochs": None} | values
    return {"params": p, "cell": f"{task}/mine/{model}/{method}/eps-1/seed-0"}


@pytest.mark.slow
def test_each_goes_from_prepare_to_a_served_model_by_its_own_loss(project):
    sweeps = {model: sweep(model) for model in SWEEPS}
    project.write_params(sweeps["tiny-git"]["params"])

    def stage(*command: str) -> None:
        done = project.stage(*command)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]

    for dataset in ("mine", "public-scenes"):
        stage("prepare", "--dataset", dataset)
    for model, entry in sweeps.items():
        project.write_params(entry["params"])
        stage("params")
        stage("pretrain", "--model", model)
        stage("encode", "--dataset", "mine", "--model", model)
        for name in ("calibrate", "train", "evaluate"):
            stage(name, "--cell", entry["cell"])
        training = json.loads((project.folder / "runs" / entry["cell"] / "training.json").read_text())
        assert training["privacy"]["guarantee"]["epsilon"] <= 1
        assert training["train"]["loss"] == SWEEPS[model][2]["loss"]
        assert MOVED[model] in saved.changed(project.folder / "runs" / entry["cell"] / "model")
        metrics = json.loads((project.folder / "results" / entry["cell"] / "metrics.json").read_text())
        assert metrics["n"] == 4 and metrics["primary"] == ("cider" if model == "tiny-git" else "mean_recall")
        stage("report")
        stage("publish")

    picture = PreparedSplit(project.folder / "data/mine", "test").row(0).image
    (project.folder / "one.png").write_bytes(picture)

    def served(model: str, asked: dict) -> list[dict]:
        task, _, _, method, *_ = sweeps[model]["cell"].split("/")
        name = f"dp-clip.{task}.mine.{model}.{method}@eps-1"
        database = {"MLFLOW_TRACKING_URI": f"sqlite:///{project.folder / 'mlflow.db'}"}
        done = project.run(sys.executable, "-c", SERVED, name, json.dumps(asked), **database)
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    details = json.loads((project.folder / "results" / sweeps["tiny-git"]["cell"] / "details.json").read_text())
    assert details["examples"][0]["said"]
    assert served("tiny-git", {"image": ["one.png"]}) == [{"caption": details["examples"][0]["said"]}]
    found = served("tiny-siglip", {"query": ["a red circle"], "folder": [str(project.folder)]})
    assert json.loads(found[0]["images"]) == ["one.png"]
