"""Where initial models come from: the sections pretrain, align and weights. None of them sees private data."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag, model_validator

from stages.models.kinds import is_vectors
from stages.sections import Name, PositiveFloat, PositiveInt, Section, Seed


class Pretrain(Section):
    """A model that learns from public data alone."""

    architecture: str  # an open_clip name, or a folder with its config (open_clip's, or that of a BLIP)
    data: Name
    steps: PositiveInt
    batch_size: PositiveInt
    lr: PositiveFloat
    seed: Seed


class Align(Section):
    """Pretrained towers that come in Python packages, and projections fitted to public data."""

    architecture: str  # a folder with open_clip_config.json that names the packages
    data: Name
    ridge: PositiveFloat


class ReferredVectors(Section):
    """Heads for features made elsewhere, with the centre and the directions of public ones (models/vectors.py)."""

    architecture: str  # a folder with vectors.json
    data: Name
    directions: PositiveInt  # of the public features, the first ones
    classes: PositiveInt | None = None  # of the probe, where one is trained


class PlainVectors(Section):
    """The same without public features."""

    architecture: str
    width: PositiveInt  # numbers of a vector
    classes: PositiveInt | None = None


class Weights(Section):
    """Published weights."""

    architecture: str  # an open_clip name
    pretrained: str  # one of its tags, as openai
    file: str | None = None  # a local file with them; without one they are downloaded


class BlipWeights(Section):
    """Published weights of a BLIP, each by its name on the hub or a local folder."""

    architecture: Literal["blip"]
    captioner: str | None = None  # its vision tower and decoder, as Salesforce/blip-image-captioning-base
    answerer: str | None = None  # or its vision tower, question encoder and decoder, as Salesforce/blip-vqa-base
    contrastive: str  # its contrastive and matching heads, as Salesforce/blip-itm-base-coco

    @property
    def writer(self) -> str:
        return self.captioner or self.answerer or ""  # one of them is given

    @model_validator(mode="after")
    def _one_writer(self) -> "BlipWeights":
        if (self.captioner is None) == (self.answerer is None):
            raise ValueError("give either captioner or answerer")
        return self


def _library(value: Any) -> str:
    architecture = value.get("architecture") if isinstance(value, dict) else getattr(value, "architecture", None)
    if isinstance(architecture, str) and is_vectors(Path(architecture)):
        return "vectors"
    return "blip" if architecture == "blip" else "open_clip"


OpenClip, Blip, Vectors = Tag("open_clip"), Tag("blip"), Tag("vectors")
Published = Annotated[
    Annotated[Weights, OpenClip] | Annotated[BlipWeights, Blip] | Annotated[PlainVectors, Vectors],
    Discriminator(_library),
]
Fitted = Annotated[
    Annotated[Align, Tag("open_clip")] | Annotated[ReferredVectors, Tag("vectors")],
    Discriminator(lambda value: "vectors" if _library(value) == "vectors" else "open_clip"),
]
Model = Pretrain | Align | Weights | BlipWeights | ReferredVectors | PlainVectors
