"""A CLIP with what belongs to it: preprocessing and tokenizer travel with the weights.

Folders are in open_clip's own layout (open_clip_config.json, open_clip_model.safetensors, tokenizer files), so a model
trained here loads anywhere with `open_clip.create_model_from_pretrained("local-dir:FOLDER")`.
"""

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import open_clip
import torch
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from safetensors.torch import save_file

from stages.errors import UserError

CONFIG, WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class Clip:
    model: torch.nn.Module
    preprocess: Callable[[Image.Image], torch.Tensor]
    tokenize: Callable[[list[str]], torch.Tensor]
    config: dict  # the content of open_clip_config.json
    tokenizer_files: tuple[Path, ...]


def create(architecture: str) -> Clip:
    """A model with random weights, from a folder with open_clip_config.json or by its name in open_clip."""
    if (Path(architecture) / CONFIG).is_file():
        return _from_folder(Path(architecture), load_weights=False)
    if architecture not in open_clip.list_models():
        raise UserError(
            f"architecture {architecture!r} is neither a folder with {CONFIG} nor a name open_clip knows; "
            'see: python -c "import open_clip; print(open_clip.list_models())"'
        )
    model = open_clip.create_model(architecture)
    preprocess_cfg = open_clip.get_model_preprocess_cfg(model)
    config = {"model_cfg": open_clip.get_model_config(architecture), "preprocess_cfg": preprocess_cfg}
    return Clip(model, _transform(model), open_clip.get_tokenizer(architecture), config, ())


def load(folder: Path) -> Clip:
    if not (folder / WEIGHTS).is_file():
        raise UserError(f"no model in {folder}: {WEIGHTS} is missing; run: dvc repro")
    return _from_folder(folder, load_weights=True)


def _from_folder(folder: Path, load_weights: bool) -> Clip:
    quiet = logging.getLogger()
    level = quiet.level
    quiet.setLevel(logging.ERROR)  # open_clip warns that a config has no weights, which is meant here
    try:
        model = open_clip.create_model(f"local-dir:{folder}", load_weights=load_weights)
        tokenizer = open_clip.get_tokenizer(f"local-dir:{folder}")
    finally:
        quiet.setLevel(level)
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    files = tuple(folder / name for name in TOKENIZER if (folder / name).is_file())
    return Clip(model, _transform(model), tokenizer, config, files)


def _transform(model: torch.nn.Module) -> Callable[[Image.Image], torch.Tensor]:
    cfg = open_clip.get_model_preprocess_cfg(model)
    return image_transform_v2(PreprocessCfg(**cfg), is_train=False)


def save(clip: Clip, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in clip.model.state_dict().items()}
    save_file(tensors, folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps(clip.config, indent=2) + "\n", encoding="utf-8")
    for file in clip.tokenizer_files:
        shutil.copy(file, folder / file.name)


def trainable_parameters(model: torch.nn.Module, part: str) -> dict[str, torch.nn.Parameter]:
    """Freeze all but the named part; returns what stays trainable, by name."""

    def is_trained(name: str) -> bool:
        last = name.split(".")
        match part:
            case "all":
                return True
            case "image-tower":
                return last[0] == "visual"
            case "projections":
                return last[-1] in ("proj", "text_projection") or ".head.proj" in name or "text.proj" in name
            case "no-token-table":
                return not any(p in ("token_embedding", "word_embeddings") for p in last)
            case _:
                raise ValueError(f"unknown part {part!r}")

    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_trained(name))
    chosen = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not chosen:
        raise UserError(f"trainable: {part!r} matches no parameter of this model; choose all or image-tower")
    return chosen


def device_of(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"device {name!r} was asked for and this machine has no CUDA device; write auto or cpu")
    return torch.device(name)
