"""The paper's model at full size, with random weights, through the same stages as the small one."""

import json

import pytest
import torch

from stages.models import clip as clips
from stages.models import saved
from tests.conftest import small_params

CELL = "classification/mnist5k/vit-l-14-336/batch/eps-1/seed-0"


@pytest.mark.timeout(1200)
def test_one_private_step_of_vit_l_14_336_and_its_weights_come_back(project):
    params = small_params()
    params["sweep"] |= {"model": ["vit-l-14-336"], "epsilon": [1]}
    params["weights"] = {"vit-l-14-336": {"architecture": "ViT-L-14-336", "pretrained": "openai"}}
    params["train"]["methods"]["batch"] |= {"batch_size": 2, "epochs": None, "steps": 1, "trainable": "all"}
    params["privacy"]["sampling"] = "fixed-size"  # a Poisson batch might be empty
    project.write_params(params)
    base = project.folder / "models/vit-l-14-336"
    torch.manual_seed(0)
    saved.save(clips.create("ViT-L-14-336"), base)
    commands = [("prepare", "--dataset", "mnist5k"), ("encode", "--dataset", "mnist5k", "--model", "vit-l-14-336")]
    for command in [*commands, ("calibrate", "--cell", CELL), ("train", "--cell", CELL)]:
        done = project.stage(*command)
        assert done.returncode == 0, done.stderr[-2000:]
    facts = json.loads((project.folder / "runs" / CELL / "training.json").read_text())
    assert facts["trained_parameters"] == 427_944_193 and facts["privacy"]["guarantee"]["epsilon"] <= 1
    before, after = saved.load(base).model, saved.load(base, project.folder / "runs" / CELL / "model").model
    moved = [not torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True)]
    assert all(moved)  # noise reaches every tensor
