"""Where initial models come from: the sections pretrain, align, weights and banks. None of them sees private data."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Tag, model_validator

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


class Weights(Section):
    """Published weights."""

    architecture: str  # an open_clip name
    pretrained: str  # one of its tags, as openai
    file: str | None = None  # a local file with them; without one they are downloaded


class Bank(Section):
    """One of the other models, with a bank of public pairs beside it (stages/models/bank.py): the loss anchored."""

    model: Name
    data: Name
    pairs: PositiveInt


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
    return "blip" if architecture == "blip" else "open_clip"


Published = Annotated[
    Annotated[Weights, Tag("open_clip")] | Annotated[BlipWeights, Tag("blip")], Discriminator(_library)
]
