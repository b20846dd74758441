"""SigLIP, MobileCLIP and GIT from `prepare` to a model that MLflow serves, each by the loss that is its own."""

import json
import sys

import pytest

from stages.models import saved
from tests.tasks.test_captioning import captioning_params

# One process for all: every stage would import torch anew.
STAGES = """
import json, runpy, sys
from pathlib import Path

import mlflow, pandas
from ruamel.yaml import YAML

from stages.data.prepared import PreparedSplit

def run(command):
    sys.argv = command.split()
    runpy.run_module(f"stages.{sys.argv[0]}", run_name="__main__")

for dataset in ("mine", "public-scenes"):
    run(f"prepare --dataset {dataset}")
Path("one.png").write_bytes(PreparedSplit(Path("data/mine"), "test").row(0).image)
for sweep in json.loads(Path("sweeps.json").read_text()):
    YAML(typ="safe").dump(sweep["params"], Path("params.yaml"))
    task, _, model, method, *_ = sweep["cell"].split("/")
    run("params")
    run(f"pretrain --model {model}")
    run(f"encode --dataset mine --model {model}")
    for stage in ("calibrate", "train", "evaluate"):
        run(f"{stage} --cell {sweep['cell']}")
    run("report")
    run("publish")
    served = mlflow.pyfunc.load_model(f"models:/dp-clip.{task}.mine.{model}.{method}@eps-1")
    asked = {"image": ["one.png"]} if task == "captioning" else {"query": ["a red circle"], "folder": [str(Path.cwd())]}
    print("served", model, json.dumps(served.predict(pandas.DataFrame(asked)).to_dict(orient="records")))
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
    sweeps = [sweep(model) for model in SWEEPS]
    (project.folder / "sweeps.json").write_text(json.dumps(sweeps))
    project.write_params(sweeps[0]["params"])
    done = project.run(sys.executable, "-c", STAGES)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    served = dict(line.split(" ", 2)[1:] for line in done.stdout.splitlines() if line.startswith("served "))
    for model, entry in zip(SWEEPS, sweeps, strict=True):
        training = json.loads((project.folder / "runs" / entry["cell"] / "training.json").read_text())
        assert (
            training["privacy"]["guarantee"]["epsilon"] <= 1 and training["train"]["loss"] == SWEEPS[model][2]["loss"]
        )
        assert MOVED[model] in saved.changed(project.folder / "runs" / entry["cell"] / "model")
        metrics = json.loads((project.folder / "results" / entry["cell"] / "metrics.json").read_text())
        assert metrics["n"] == 4 and metrics["primary"] == ("cider" if model == "tiny-git" else "mean_recall")
    details = json.loads((project.folder / "results" / sweeps[2]["cell"] / "details.json").read_text())
    assert details["examples"][0]["said"]
    assert json.loads(served["tiny-git"]) == [{"caption": details["examples"][0]["said"]}]
    for model in ("tiny-siglip", "tiny-mobileclip"):
        assert json.loads(json.loads(served[model])[0]["images"]) == ["one.png"]
