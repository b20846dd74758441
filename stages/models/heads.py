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
# What a model may have beside them (vectors.py): matrices on further inputs, which follow those of the projection.
ADAPTER, PROBE, CENTRE = "visual.adapter", "class_probe", "class_centre"
MORE = (ADAPTER, PROBE, CENTRE)
# What the probe adds to the logits is this times its product, and the centre is its tensor divided by this: then one
# learning rate suits both, and by plain steps (optimizer: sgd) a rate of 1 brings the centre half way to the mean.
SHARPNESS = 10.0


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
    more = (*MORE, *(_bias(name) for name in found), "logit_scale", "logit_bias")
    return (*found, *(name for name in more if name in names))


def _bias(projection: str) -> str:
    return f"{projection.removesuffix('.weight')}.bias"


def on_trunks(names: Iterable[str]) -> tuple[str, ...]:
    """Of a model's tensors, all that can be trained on outputs of its trunks."""
    names = set(names)
    return (*projections(names), *(name for name in MORE if name in names))


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
    class_shift: torch.Tensor
    centre_shift: torch.Tensor
    class_probe: torch.Tensor
    class_centre: torch.Tensor
    visual: Any

    def __init__(self, parameters: Mapping[str, torch.nn.Parameter]):
        """`parameters` are those of the CLIP, by name; others than those `needed` may be missing."""
        super().__init__()
        self._names = both(parameters)
        self.more = tuple(name for name in MORE if name in parameters)
        for name in needed(parameters):
            *path, leaf = name.split(".")
            owner = self
            for part in path:
                if not hasattr(owner, part):
                    owner.add_module(part, torch.nn.Module())
                owner = getattr(owner, part)
            owner.register_parameter(leaf, parameters[name])
        self._biases = {_bias(name) for name in self._names} & parameters.keys()
        self.width = parameters[self._names[0]].shape[1 if self._names[0].endswith(".weight") else 0]
        for probe in ("image_probe", "text_probe", "class_shift", "centre_shift"):
            self.register_buffer(probe, torch.zeros(()), persistent=False)

    @property
    def factors(self) -> dict[str, Factor]:
        """How the gradient of each projection is put together from inputs and output gradients."""
        image, text = self._names
        more = {
            ADAPTER: Factor("images", "image_probe", False, (self.width, None)),
            PROBE: Factor("centred", "class_shift", False),
            CENTRE: Factor("ones", "centre_shift", False),
        }
        return {
            image: Factor("images", "image_probe", image.endswith(".weight"), (0, self.width)),
            text: Factor("tokens", "text_probe", text.endswith(".weight")),
            **{name: more[name] for name in self.more},
        }

    def encode_image(self, images: torch.Tensor, normalize: bool = False) -> torch.Tensor:
        images, further = images[..., : self.width], images[..., self.width :]
        probe = self.image_probe
        if ADAPTER in self.more:
            probe = probe + further @ attrgetter(ADAPTER)(self)
        return self._project(images, self._names[0], probe, normalize)

    def encode_text(self, tokens: torch.Tensor, normalize: bool = False) -> torch.Tensor:
        return self._project(tokens, self._names[1], self.text_probe, normalize)

    def centred(self, images: torch.Tensor) -> torch.Tensor:
        """What the probe looks at: the further inputs, seen from the centre that was learned, each of length 1."""
        return F.normalize(images[..., self.width :] - self.class_centre[0] / SHARPNESS, dim=-1)

    def probed(self, images: torch.Tensor, classes: int) -> torch.Tensor | None:
        """(b, classes): what the probe adds to the logits of images; None for a model that has none."""
        if PROBE not in self.more:
            return None
        require_classes(self.class_probe, classes)
        return SHARPNESS * (self.centred(images) @ self.class_probe)

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


def require_classes(probe: torch.Tensor, classes: int) -> None:
    if probe.shape[1] != classes:
        raise UserError(
            f"the probe of this model is for {probe.shape[1]} classes, and the data have {classes}; write "
            f"`classes: {classes}` in the model's entry of params.yaml"
        )


def both(names: Iterable[str]) -> tuple[str, str]:
    match projections(names):
        case (image, text):
            return image, text
        case found:
            raise UserError(
                f"the towers of this model cannot be frozen apart from their projections (found: {found or 'none'}); "
                "set trainable to image-tower or all"
            )
