"""A dual encoder of real pretrained towers that come in Python packages: an image tower that has seen ImageNet
(EfficientNet-Lite0) and a sentence encoder (MiniLM). Its folder of configuration names the packages.

Their outputs have nothing in common until projections are fitted (pretrain/alignment.py). Batch normalisation keeps
ImageNet's averages throughout, in training too (train/loop.py): averages of private batches would be released without
noise, and would make the gradient of one record depend on the others.
"""

import importlib.util
import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from stages.errors import UserError
from stages.models import clip as clips
from stages.models.encoder import WholeEncoder
from stages.models.kinds import config_folder

PACKAGES = "tower_packages"  # the key in open_clip_config.json; not copied to saved models, which hold all weights
IMAGE_WEIGHTS = "models/efficientnet-lite0-57934424.pth"
TEXT_MODEL = "model"


def create(architecture: Path) -> WholeEncoder:
    """The model with its towers' weights and random projections."""
    config = _config(architecture)
    if PACKAGES not in config:
        raise UserError(f"the config in {architecture} names no {PACKAGES}; see stages/models/configs/lite-minilm")
    packages = config.pop(PACKAGES)
    text = _folder(packages["text"]) / TEXT_MODEL
    clip = clips.from_config(config, text)
    _load(clip.model.visual.trunk, _image_weights(packages["image"]), without=("classifier.weight", "classifier.bias"))
    _load(clip.model.text.transformer, load_file(text / "model.safetensors"), without=())
    return clip


def classifier(architecture: Path) -> torch.Tensor:
    """(1000, d): for each class of ImageNet, the weights of its image tower's own last layer."""
    return _image_weights(_config(architecture)[PACKAGES]["image"])["classifier.weight"]


def _config(architecture: Path) -> dict:
    return json.loads((config_folder(architecture) / clips.LAYOUT.config).read_text(encoding="utf-8"))


def _image_weights(package: str) -> dict[str, torch.Tensor]:
    """timm's names for the package's tensors: both list the same layers in the same order."""
    import timm

    tensors = torch.load(_folder(package) / IMAGE_WEIGHTS, map_location="cpu", weights_only=True)
    reference = timm.create_model("tf_efficientnet_lite0", pretrained=False).state_dict()
    pairs = list(zip(reference.items(), tensors.values(), strict=True))
    if wrong := [name for (name, mine), theirs in pairs if mine.shape != theirs.shape]:
        raise UserError(f"package {package} does not hold the expected weights: {wrong[0]} has another shape")
    return {name: tensor for (name, _), tensor in pairs}


def _load(tower: torch.nn.Module, tensors: dict[str, torch.Tensor], without: tuple[str, ...]) -> None:
    result = tower.load_state_dict({k: v for k, v in tensors.items() if k not in without}, strict=False)
    missing = [name for name in result.missing_keys if not name.startswith("pooler.")]  # a layer that is not used
    if missing or [name for name in result.unexpected_keys if not name.startswith(("pooler.", "embeddings.position"))]:
        raise UserError(f"the weights of a tower do not fit it: missing {missing}, unknown {result.unexpected_keys}")


def _folder(package: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise UserError(f"Python package {package} is not installed; run: make setup")
    return Path(found.submodule_search_locations[0])
