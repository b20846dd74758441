"""A CLIP cut in two: towers that stay as they are, and the projections that are trained on their outputs.

A tower ends in a projection, a matrix into the space where images and texts are compared. With the towers frozen, all
that training needs of an image is what goes into that matrix, and it is always the same: `trunks` computes it, once
(stages/encode), and `Heads` is the rest of the model. Its parameters ARE those of the whole model, by object and by
name: training the one trains the other.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import torch
import torch.nn.functional as F

from stages.errors import UserError
from stages.privacy.factored import Factor

# Where open_clip's towers keep the matrix. A Parameter P is applied as x @ P, a Linear's weight W as x @ W.T.
IMAGE = ("visual.proj", "visual.head.proj.weight", "visual.trunk.head.fc.weight")  # the last: MobileCLIP's
TEXT: tuple[str, ...] = ("text_projection", "text.text_projection")
TEXT = (*TEXT, *(f"{name}.weight" for name in TEXT), "text.proj.weight")


def projections(names: Iterable[str]) -> tuple[str, ...]:
    """Of a model's tensors, its image's and its text's projection; a tower without a separate one has none. The bias
    that some have is no part of it, and stays as it is.
    """
    names = set(names)
    return tuple(name for name in (*IMAGE, *TEXT) if name in names)


def needed(names: Iterable[str]) -> tuple[str, ...]:
    """All that `Heads` takes of a model's tensors: the projections first."""
    names = set(names)
    found = both(names)
    fixed = (*(_bias(name) for name in found), "logit_scale", "logit_bias")
    return (*found, *(name for name in fixed if name in names))


def _bias(projection: str) -> str:
    return f"{projection.removesuffix('.weight')}.bias"


@contextmanager
def trunks(model: torch.nn.Module) -> Iterator[Any]:
    """Within it, encode_image and encode_text (without normalisation) give what goes into the projections."""
    taken = []
    for name in both(name for name, _ in model.named_parameters()):
        owner_name, _, leaf = name.removesuffix(".weight").rpartition(".")
        owner = attrgetter(owner_name)(model) if owner_name else model
        taken.append((owner, leaf, getattr(owner, leaf)))
    try:
        for owner, leaf, old in taken:
            left_out = isinstance(old, torch.nn.Parameter) or leaf == "text_projection"  # open_clip asks for None
            setattr(owner, leaf, None if left_out else torch.nn.Identity())
        yield model
    finally:
        for owner, leaf, old in taken:
            setattr(owner, leaf, old)


class Heads(torch.nn.Module):
    """The projections of a CLIP, used as the CLIP itself: `images` and `tokens` are outputs of its trunks."""

    image_probe: torch.Tensor
    text_probe: torch.Tensor

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter]):
        """`parameters` are those of the CLIP, by name; others than those `needed` may be missing."""
        super().__init__()
        self._names = both(parameters)
        for name in needed(parameters):
            *path, leaf = name.split(".")
            owner = self
            for part in path:
                if not hasattr(owner, part):
                    owner.add_module(part, torch.nn.Module())
                owner = getattr(owner, part)
            owner.register_parameter(leaf, parameters[name])
        self._biases = {_bias(name) for name in self._names} & parameters.keys()
        for probe in ("image_probe", "text_probe"):
            self.register_buffer(probe, torch.zeros(()), persistent=False)

    @property
    def factors(self) -> dict[str, Factor]:
        """How the gradient of each projection is put together from inputs and output gradients."""
        image, text = self._names
        return {
            image: Factor("images", "image_probe", image.endswith(".weight")),
            text: Factor("tokens", "text_probe", text.endswith(".weight")),
        }

    def encode_image(self, images: torch.Tensor, normalize: bool = False) -> torch.Tensor:
        return self._project(images, self._names[0], self.image_probe, normalize)

    def encode_text(self, tokens: torch.Tensor, normalize: bool = False) -> torch.Tensor:
        return self._project(tokens, self._names[1], self.text_probe, normalize)

    def forward(self, images, tokens):
        text = None if tokens is None else self.encode_text(tokens, normalize=True)
        return self.encode_image(images, normalize=True), text

    def _project(self, inputs: torch.Tensor, name: str, probe: torch.Tensor, normalize: bool) -> torch.Tensor:
        matrix = attrgetter(name)(self)
        outputs = inputs @ (matrix.T if name.endswith(".weight") else matrix) + probe
        if _bias(name) in self._biases:
            outputs = outputs + attrgetter(_bias(name))(self)
        return F.normalize(outputs, dim=-1) if normalize else outputs


def factors_of(model: torch.nn.Module, trained: Mapping[str, torch.nn.Parameter]) -> dict[str, Factor] | None:
    """Where all that is trained are projections on frozen towers: see privacy/factored.py."""
    known: Mapping[str, Factor] = getattr(model, "factors", {})
    return {name: known[name] for name in trained} if known.keys() >= trained.keys() else None


def both(names: Iterable[str]) -> tuple[str, str]:
    match projections(names):
        case (image, text):
            return image, text
        case found:
            raise UserError(
                f"the towers of this model cannot be frozen apart from their projections (found: {found or 'none'}); "
                "set trainable to image-tower or all"
            )
