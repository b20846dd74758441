"""CLIPs of open_clip.

Folders are in open_clip's own layout (open_clip_config.json, open_clip_model.safetensors, tokenizer files), so they
load anywhere with `open_clip.create_model_from_pretrained("local-dir:FOLDER")` (with a text tower of Hugging Face's:
from within FOLDER, where its config.json is).
"""

import copy
import json
import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from safetensors.torch import save_file
from torch.overrides import TorchFunctionMode

from stages.errors import UserError
from stages.models import torchscript
from stages.models.encoder import WholeEncoder
from stages.models.kinds import OPEN_CLIP as LAYOUT

CARRIED = ("tokenizer.json", "tokenizer_config.json", "config.json")  # the last: of a Hugging Face text tower
DRAWS = (
    *(torch.Tensor.normal_, torch.Tensor.uniform_),
    *(torch.nn.init.normal_, torch.nn.init.uniform_, torch.nn.init.kaiming_uniform_, torch.nn.init.trunc_normal_),
)
SEE_NAMES = 'python -c "import open_clip; print(open_clip.list_pretrained())"'


def create(architecture: str) -> WholeEncoder:
    """A model with random weights, from a folder with open_clip_config.json or by its name in open_clip."""
    if (Path(architecture) / LAYOUT.config).is_file():
        return from_folder(Path(architecture), None)
    if architecture not in open_clip.list_models():
        raise UserError(
            f"architecture {architecture!r} is neither a folder with {LAYOUT.config} nor a name open_clip knows; "
            f"see: {SEE_NAMES}"
        )
    with _quiet():
        tokenizer = _tokenizer(architecture)  # first: it may be on the hub
        return _by_name(architecture, open_clip.create_model(architecture), tokenizer, quick_gelu=None)


def pretrained(architecture: str, tag: str, file: Path | None) -> WholeEncoder:
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
    tokenizer = _tokenizer(architecture)
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
    return _by_name(architecture, model, tokenizer, quick_gelu)


def published_folder(folder: Path) -> WholeEncoder:
    """A model as it is on the hub: config, weights and tokenizer."""
    if not (folder / LAYOUT.weights).is_file():
        raise UserError(f"there are no weights {LAYOUT.weights} in {folder}; put them there, or name another folder")
    return from_folder(folder, folder / LAYOUT.weights)


def from_folder(folder: Path, weights: Path | None) -> WholeEncoder:
    config = json.loads((folder / LAYOUT.config).read_text(encoding="utf-8"))
    try:
        return from_config(config, folder, weights)
    except RuntimeError as error:  # as torch says that tensors are missing, unknown or of another shape
        raise UserError(f"{weights} does not hold the weights of the model in {folder}: {error}") from None


def from_config(config: dict, files: Path, weights: Path | None = None) -> WholeEncoder:
    """`files` is the folder with the tokenizer, and with the config.json of a Hugging Face text tower."""
    carried = tuple(files / name for name in CARRIED if (files / name).is_file())
    with _quiet(), _drawing(config, weights), tempfile.TemporaryDirectory() as place:
        # open_clip reads a folder; a text tower is named in it by where its files are now.
        here = copy.deepcopy(config)
        if "hf_model_name" in here["model_cfg"]["text_cfg"]:
            here["model_cfg"]["text_cfg"]["hf_model_name"] = str(files.resolve())
        (Path(place) / LAYOUT.config).write_text(json.dumps(here), encoding="utf-8")
        for file in (*carried, *([weights] if weights else [])):
            (Path(place) / file.name).symlink_to(file.resolve())
        model = open_clip.create_model(
            f"local-dir:{place}", load_weights=weights is not None, pretrained_image=False, pretrained_text=False
        )
        tokenizer = _tokenizer(f"local-dir:{place}", f"the model in {files}")
    files_in = {file.name: file.read_bytes() for file in carried}
    return WholeEncoder(model, tokenizer, transform(model), config, files_in, LAYOUT)


def transform(model: torch.nn.Module) -> Callable[[Image.Image], torch.Tensor]:
    cfg = open_clip.get_model_preprocess_cfg(model)
    return image_transform_v2(PreprocessCfg(**cfg), is_train=False)


def _tokenizer(name: str, said: str | None = None) -> Any:
    try:
        with _quiet():
            return open_clip.get_tokenizer(name)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0][:160]
        raise UserError(
            f"the tokenizer of {said or name} could not be loaded ({reason}). Two ways: run once with a network, or "
            f"put the model with its tokenizer ({LAYOUT.config}, {LAYOUT.weights}, {', '.join(CARRIED[:2])}) in a "
            "local folder and name the folder as architecture"
        ) from None


def _files_of(tokenizer: Any) -> dict[str, bytes]:
    """One of the hub is kept with the model; open_clip's own is part of open_clip."""
    if not isinstance(tokenizer, open_clip.tokenizer.HFTokenizer):
        return {}
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        return {name: (Path(folder) / name).read_bytes() for name in CARRIED if (Path(folder) / name).is_file()}


def _by_name(architecture: str, model: torch.nn.Module, tokenizer: Any, quick_gelu: bool | None) -> WholeEncoder:
    model_cfg = open_clip.get_model_config(architecture) | ({"quick_gelu": True} if quick_gelu else {})
    config = {"model_cfg": model_cfg, "preprocess_cfg": open_clip.get_model_preprocess_cfg(model)}
    return WholeEncoder(model, tokenizer, transform(model), config, _files_of(tokenizer), LAYOUT)


@contextmanager
def _quiet() -> Iterator[None]:
    """open_clip warns that a model has no weights yet, which is meant here; what matters is raised."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


class _WithoutDrawing(TorchFunctionMode):
    """Weights that a file replaces, all of them, are not drawn first: that is half of what loading a ViT-L takes."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in DRAWS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def _drawing(config: dict, weights: Path | None) -> AbstractContextManager:
    """Models with towers of other libraries are left alone: some draw until they like what comes."""
    model = config["model_cfg"]
    others = "hf_model_name" in model["text_cfg"] or "timm_model_name" in model["vision_cfg"]
    return nullcontext() if others or weights is None else _WithoutDrawing()


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
        save_file(state, Path(temporary) / LAYOUT.weights)
        yield Path(temporary) / LAYOUT.weights
