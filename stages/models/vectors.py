"""A model for features that were made elsewhere: CLIP's projections and temperature, and no towers.

An image is a vector x of length 1 (data/vectors.py), a text another. At its start the model says of them what the CLIP
says that made them: both projections are the identity. What can be trained on top is

    image-projection    x P                          P (d, d) starts as the identity
    adapter             x + f(x) A                   A (r, d) starts at zero: a residual of low rank
    probe               logits + g(x) W              W (r, classes) starts at zero; the logits are the class texts'

f(x) = B (x - c) / |B (x - c)| is public: c and the rows of B are the mean and the first r principal directions of
features that are declared public (pretrain/reference.py). All features of a CLIP share a large common part, which tells
no class from another and takes most of a clipped gradient; and a direction that is left out gets no noise. Where no
public features are given, c is zero and B the identity. Other data have another mean, so a probe looks at f(x) from a
centre that it learns with its weights (losses/probe.py), g(x).
"""

import json
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file

from stages.data import vectors
from stages.data.pixels import UNREADABLE, Unusable
from stages.errors import UserError
from stages.models.encoder import WholeEncoder
from stages.models.heads import ADAPTER, CENTRE, PROBE, Heads
from stages.models.kinds import VECTORS

IMAGE, TEXT = "visual.proj", "text_projection"


class Vectors(Heads):
    """Takes vectors as they are in the data; its trunk gives (x, f(x)) of them, which is what Heads take."""

    centre: torch.Tensor  # (d,)
    basis: torch.Tensor  # (d, r)

    def __init__(self, width: int, directions: int, classes: int, logit_scale: float):
        tensors = {
            IMAGE: torch.eye(width),
            TEXT: torch.eye(width),
            "logit_scale": torch.tensor(math.log(logit_scale)),
            ADAPTER: torch.zeros(directions, width),
            **({PROBE: torch.zeros(directions, classes), CENTRE: torch.zeros(1, directions)} if classes else {}),
        }
        super().__init__({name: torch.nn.Parameter(tensor) for name, tensor in tensors.items()})
        self.register_buffer("centre", torch.zeros(width))
        self.register_buffer("basis", torch.eye(width, directions))

    @property
    def factors(self) -> dict:
        return {}  # of what the trunk makes, not of what this takes

    def trunk(self, images: torch.Tensor) -> torch.Tensor:
        return torch.cat([images, F.normalize((images - self.centre) @ self.basis, dim=-1)], dim=-1)

    def encode_image(self, images: torch.Tensor, normalize: bool = False) -> torch.Tensor:
        images = self.trunk(images)
        return images if self.visual.proj is None else super().encode_image(images, normalize)

    def encode_text(self, tokens: torch.Tensor, normalize: bool = False) -> torch.Tensor:
        return tokens if self.text_projection is None else super().encode_text(tokens, normalize)

    def probed(self, images: torch.Tensor, classes: int) -> torch.Tensor | None:
        return super().probed(self.trunk(images), classes)


class VectorEncoder(WholeEncoder):
    def read(self, image: bytes | Path) -> torch.Tensor:
        vector = torch.from_numpy(vectors.read(image))
        if len(vector) != self.model.width:
            raise Unusable(UNREADABLE, f"a vector of {len(vector)} numbers; the model takes {self.model.width}")
        return F.normalize(vector, dim=0)

    def example(self) -> tuple[torch.Tensor, tuple[str, str]]:
        one, other = np.eye(2, self.model.width)
        return torch.ones(self.model.width), (vectors.as_text(one), vectors.as_text(other))


def built(width: int, directions: int, classes: int, config: dict) -> VectorEncoder:
    config = {**config, "width": width, "directions": directions, "classes": classes}
    return _encoder(config, Vectors(width, directions, classes, config["logit_scale"]))


def create(architecture: str, width: int = 512, classes: int = 0) -> VectorEncoder:
    """From a folder with vectors.json, without public features: all directions, and no centre."""
    return built(width, width, classes, json.loads((Path(architecture) / VECTORS.config).read_text(encoding="utf-8")))


def from_folder(folder: Path, weights: Path) -> VectorEncoder:
    config = json.loads((folder / VECTORS.config).read_text(encoding="utf-8"))
    model = Vectors(config["width"], config["directions"], config["classes"], config["logit_scale"])
    try:
        model.load_state_dict(load_file(weights))
    except RuntimeError as error:
        raise UserError(f"{weights} does not hold the weights of the model in {folder}: {error}") from None
    return _encoder(config, model)


def _encoder(config: dict, model: Vectors) -> VectorEncoder:
    def tokenize(texts: list[str]) -> torch.Tensor:
        try:
            found = [torch.from_numpy(vectors.of_text(text)) for text in texts]
        except ValueError as error:
            raise UserError(f"a model for vectors takes texts as vectors: {error}") from None
        if any(len(vector) != model.width for vector in found):
            raise UserError(f"a text's vector has another width than the model's {model.width}")
        return torch.stack(found)

    return VectorEncoder(model, tokenize, _no_picture, config, {}, VECTORS)


def _no_picture(image: Image.Image) -> torch.Tensor:
    raise Unusable(UNREADABLE, "an image; this model takes the vector that another one made of it")
