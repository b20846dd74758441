"""A model with what belongs to it. Most put images and texts in one space; some write (writing.py), and some take what
such a model made elsewhere (vectors.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.func import functional_call

from stages.data.pixels import rgb
from stages.errors import UserError
from stages.models.kinds import Layout

torch.backends.mha.set_fastpath_enabled(False)  # attention that knows no autocast on a CPU, and no gradient


@dataclass(frozen=True)
class Encoder:
    """`model(images, tokens)` gives normalised features of both; it has encode_image, encode_text and logit_scale.

    A model that only writes has none of that.
    """

    model: Any  # a torch.nn.Module, whose type would hide those three
    tokenize: Callable[[list[str]], torch.Tensor]


@dataclass(frozen=True)
class WholeEncoder(Encoder):
    """From raw images and texts on. Preprocessing and tokenizer travel with the weights."""

    preprocess: Callable[[Image.Image], torch.Tensor]
    config: dict  # the content of the config file
    files: Mapping[str, bytes]  # of the tokenizer and the like, by name; they are saved with the model
    layout: Layout

    def read(self, image: bytes | Path) -> torch.Tensor:
        """What the model takes for an image of the data, or a file; Unusable if there is none in it."""
        return self.preprocess(rgb(image))

    def example(self) -> tuple[torch.Tensor, tuple[str, str]]:
        """An image as `read` gives it, and two texts, to measure time with."""
        return self.preprocess(Image.new("RGB", (8, 8))), ("a photo of a cat.", "a photo of a dog.")


def require_comparing(encoder: Encoder, who: str) -> None:
    if not hasattr(encoder.model, "encode_text"):
        raise UserError(f"{who} needs a model that compares images with texts, and this one only writes")


def encode(
    model: torch.nn.Module,
    parameters: Mapping[str, torch.Tensor],
    images: torch.Tensor,
    tokens: torch.Tensor | None,
    bf16: bool = False,
) -> tuple[torch.Tensor, Any]:  # None without tokens
    """Normalised features with these parameters in place of the model's; open_clip answers in two ways.

    In bf16 only the towers' products are; parameters, gradients and all that follows stay in float32.
    """
    with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=bf16):
        answer = functional_call(model, dict(parameters), (images, tokens))
    image, text = (answer["image_features"], answer.get("text_features")) if isinstance(answer, dict) else answer[:2]
    return _at_least_float32(image), None if text is None else _at_least_float32(text)


def _at_least_float32(features: torch.Tensor) -> torch.Tensor:
    return features.float() if features.dtype in (torch.bfloat16, torch.float16) else features


def device_of(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"device {name!r} was asked for and this machine has no CUDA device; write auto or cpu")
    return torch.device(name)
