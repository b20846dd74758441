"""Where data come from: the sections prepare, folders and coco."""

from pathlib import PurePath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from stages.params.types import Axis, Fraction, PositiveInt, Section, Seed


class Mnist5k(Section):
    source: Literal["mnist5k"]


class Part(Section):
    """Low data: train on a stratified part of the training units; n, q and delta follow it."""

    train_fraction: Fraction | None = None
    subset_seed: Seed = 0  # chooses the units


class Benchmark(Part):
    source: Literal["mnist", "fashion-mnist", "cifar10", "cifar100", "svhn", "gtsrb"]
    root: str = "raw"  # in torchvision's layout; what is not there is fetched once and put there


class OpticalDigits(Section):
    source: Literal["optical-digits"]
    train: PositiveInt
    seed: Seed


class FontDigits(Section):
    source: Literal["font-digits"]
    train: PositiveInt
    test: PositiveInt
    seed: Seed


class Scenes(Section):
    source: Literal["scenes"]
    style: Literal["public", "private"]  # two worlds of the same things
    train: PositiveInt
    test: PositiveInt
    seed: Seed


class Folder(Part):
    path: str
    classes: Axis[str] | None = None  # in the order of integer labels; by default the labels of the public test split
    templates: Axis[Annotated[str, Field(pattern=r"\{\}")]] = Field(["a photo of a {}."])
    test_fraction: Fraction | None = None  # where the folder has no test split of its own
    licence: str = "not stated"
    public: bool = False  # whether a model may be pretrained on it without privacy


def _stays_inside(value: str) -> str:
    if PurePath(value).is_absolute() or ".." in PurePath(value).parts:
        raise ValueError(f"{value!r} must be relative to `path` and stay in it: that folder is what DVC watches")
    return value


class CocoSplit(Section):
    annotations: Annotated[str, Field(min_length=1), AfterValidator(_stays_inside)]  # the JSON file
    images: Annotated[str, Field(min_length=1), AfterValidator(_stays_inside)]  # the folder of its file names
    units: PositiveInt | None = None  # a random subset of so many images; n, q and delta follow it


class Coco(Section):
    """Captioned photos described by COCO's JSON, as VizWiz publishes it."""

    path: str
    train: CocoSplit
    test: CocoSplit
    seed: Seed = 0  # chooses the units
    licence: str = "not stated"
    public: bool = False  # whether a model may be pretrained on it without privacy


BuiltIn = Mnist5k | Benchmark | FontDigits | OpticalDigits | Scenes
Source = BuiltIn | Folder | Coco
