"""A CLIP with what belongs to it: preprocessing and tokenizer travel with the weights.

Folders are in open_clip's own layout (open_clip_config.json, open_clip_model.safetensors, tokenizer files), so they
load anywhere with `open_clip.create_model_from_pretrained("local-dir:FOLDER")` (with a text tower of Hugging Face's:
from within FOLDER, where its config.json is).

What training changed is kept by itself (`save_changes`): a head that was trained on a frozen tower is a small file.
"""

import copy
import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import open_clip
import torch
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from stages.errors import UserError
from stages.models import torchscript

CONFIG, WEIGHTS, CHANGES = "open_clip_config.json", "open_clip_model.safetensors", "changes.safetensors"
CARRIED = ("tokenizer.json", "tokenizer_config.json", "config.json")  # the last: of a Hugging Face text tower
SEE_NAMES = 'python -c "import open_clip; print(open_clip.list_pretrained())"'


@dataclass(frozen=True)
class Clip:
    model: torch.nn.Module
    preprocess: Callable[[Image.Image], torch.Tensor]
    tokenize: Callable[[list[str]], torch.Tensor]
    config: dict  # the content of open_clip_config.json
    files: tuple[Path, ...]  # of the tokenizer and text tower; they are saved with the model


def create(architecture: str) -> Clip:
    """A model with random weights, from a folder with open_clip_config.json or by its name in open_clip."""
    if (Path(architecture) / CONFIG).is_file():
        return from_folder(Path(architecture), load_weights=False)
    if architecture not in open_clip.list_models():
        raise UserError(
            f"architecture {architecture!r} is neither a folder with {CONFIG} nor a name open_clip knows; "
            f"see: {SEE_NAMES}"
        )
    with _quiet():
        return _by_name(architecture, open_clip.create_model(architecture), quick_gelu=None)


def pretrained(architecture: str, tag: str, file: Path | None) -> Clip:
    """Published weights: from a local file if one is given, else those that open_clip downloads for the tag.

    The tag also says how images are to be normalised, and which activation the weights were made with.
    """
    if tag not in open_clip.list_pretrained_tags_by_model(architecture):
        known = ", ".join(open_clip.list_pretrained_tags_by_model(architecture)) or "none"
        raise UserError(f"open_clip has no weights {tag!r} of {architecture!r}; its tags: {known}; see: {SEE_NAMES}")
    facts = open_clip.get_pretrained_cfg(architecture, tag)
    quick_gelu = True if facts.get("quick_gelu") else None
    preprocess = {key: facts[key] for key in ("mean", "std", "interpolation", "resize_mode") if key in facts}
    if file is not None and not file.is_file():
        raise UserError(f"there is no weights file {file}; correct `file`, or leave it out to download {tag!r}")
    try:
        with _quiet(), _readable(file) as source:
            model = open_clip.create_model(
                architecture,
                pretrained=str(source or tag),
                force_quick_gelu=bool(quick_gelu),
                force_preprocess_cfg=preprocess,
                require_pretrained=True,
            )
    except Exception as error:
        reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
        if file is not None:
            raise UserError(f"{file} does not hold the weights of {architecture}: {reason}") from None
        raise UserError(
            f"the weights {tag!r} of {architecture} could not be downloaded ({reason}). Two ways: run once with a "
            "network, or put the weights in a file (safetensors, or the original checkpoint) and name it as `file`"
        ) from None
    return _by_name(architecture, model, quick_gelu)


def load(folder: Path, changes: Path | None = None) -> Clip:
    """A saved model; with `changes`, a folder that `save_changes` made from it, as it was after that training."""
    if not (folder / WEIGHTS).is_file():
        raise UserError(f"no model in {folder}: {WEIGHTS} is missing; run: dvc repro")
    clip = from_folder(folder, load_weights=True)
    if changes is not None:
        if not (changes / CHANGES).is_file():
            raise UserError(f"no trained weights in {changes}: {CHANGES} is missing; run: dvc repro")
        unknown = clip.model.load_state_dict(load_file(changes / CHANGES), strict=False).unexpected_keys
        if unknown:
            raise UserError(f"{changes} was not made from {folder}: {unknown[0]} is not in it; run: dvc repro")
    return clip


def from_folder(folder: Path, load_weights: bool) -> Clip:
    config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    return from_config(config, folder, folder / WEIGHTS if load_weights else None)


def from_config(config: dict, files: Path, weights: Path | None = None) -> Clip:
    """`files` is the folder with the tokenizer, and with the config.json of a Hugging Face text tower."""
    carried = tuple(files / name for name in CARRIED if (files / name).is_file())
    with _quiet(), tempfile.TemporaryDirectory() as place:
        # open_clip reads a folder; a text tower is named in it by where its files are now.
        here = copy.deepcopy(config)
        if "hf_model_name" in here["model_cfg"]["text_cfg"]:
            here["model_cfg"]["text_cfg"]["hf_model_name"] = str(files.resolve())
        (Path(place) / CONFIG).write_text(json.dumps(here), encoding="utf-8")
        for file in (*carried, *([weights] if weights else [])):
            (Path(place) / file.name).symlink_to(file.resolve())
        model = open_clip.create_model(
            f"local-dir:{place}", load_weights=weights is not None, pretrained_image=False, pretrained_text=False
        )
        tokenizer = open_clip.get_tokenizer(f"local-dir:{place}")
    return Clip(model, transform(model), tokenizer, config, carried)


def transform(model: torch.nn.Module) -> Callable[[Image.Image], torch.Tensor]:
    cfg = open_clip.get_model_preprocess_cfg(model)
    return image_transform_v2(PreprocessCfg(**cfg), is_train=False)


def save(clip: Clip, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(_state(clip.model), folder / WEIGHTS)
    (folder / CONFIG).write_text(json.dumps(clip.config, indent=2) + "\n", encoding="utf-8")
    for file in clip.files:
        shutil.copy(file, folder / file.name)


def save_changes(clip: Clip, base: Path, folder: Path) -> None:
    """The tensors that are not those of the model in `base`."""
    with safe_open(base / WEIGHTS, framework="pt") as before:
        changed = {k: v for k, v in _state(clip.model).items() if not torch.equal(v, before.get_tensor(k))}
    save_file(changed, folder / CHANGES)


def changed(folder: Path) -> list[str]:
    """The names of the tensors that `save_changes` kept."""
    with safe_open(folder / CHANGES, framework="pt") as tensors:
        return list(tensors.keys())


def sha256(folder: Path) -> str:
    """Of a saved model's weights."""
    with (folder / WEIGHTS).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def device_of(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"device {name!r} was asked for and this machine has no CUDA device; write auto or cpu")
    return torch.device(name)


def _by_name(architecture: str, model: torch.nn.Module, quick_gelu: bool | None) -> Clip:
    model_cfg = open_clip.get_model_config(architecture) | ({"quick_gelu": True} if quick_gelu else {})
    config = {"model_cfg": model_cfg, "preprocess_cfg": open_clip.get_model_preprocess_cfg(model)}
    return Clip(model, transform(model), open_clip.get_tokenizer(architecture), config, ())


def _state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}


@contextmanager
def _quiet() -> Iterator[None]:
    """open_clip warns that a model has no weights yet, which is meant here; what matters is raised."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@contextmanager
def _readable(file: Path | None) -> Iterator[Path | None]:
    """The file as open_clip reads it. OpenAI's originals are TorchScript archives: their tensors are taken out.

    Nothing in a weights file is run: safetensors hold no code, open_clip asks torch.load for weights only, and of an
    archive only tensors are read.
    """
    if file is None or file.suffix == ".safetensors" or not torchscript.is_archive(file):
        yield file
        return
    facts = ("input_resolution", "context_length", "vocab_size")
    with tempfile.TemporaryDirectory() as temporary:
        state = {k: v.detach().float().contiguous() for k, v in torchscript.tensors(file).items() if k not in facts}
        save_file(state, Path(temporary) / WEIGHTS)
        yield Path(temporary) / WEIGHTS
