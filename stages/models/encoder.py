"""A model that puts images and texts in one space, with what belongs to it: a CLIP (clip.py) or a BLIP (blip.py)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image

from stages.errors import UserError


@dataclass(frozen=True)
class Layout:
    """The names of the files in a saved model's folder; they are those of the library that made the model."""

    config: str
    weights: str


@dataclass(frozen=True)
class Encoder:
    """`model(images, tokens)` gives normalised features of both; it has encode_image, encode_text and logit_scale."""

    model: Any  # a torch.nn.Module, whose type would hide those three
    tokenize: Callable[[list[str]], torch.Tensor]


@dataclass(frozen=True)
class WholeEncoder(Encoder):
    """From raw images and texts on. Preprocessing and tokenizer travel with the weights."""

    preprocess: Callable[[Image.Image], torch.Tensor]
    config: dict  # the content of the config file
    files: Mapping[str, bytes]  # of the tokenizer and the like, by name; they are saved with the model
    layout: Layout


def device_of(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"device {name!r} was asked for and this machine has no CUDA device; write auto or cpu")
    return torch.device(name)
