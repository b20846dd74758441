"""Where data come from: the sections prepare, folders, coco and vqa."""

from pathlib import PurePath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

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
    style: Literal["public", "private", "wide"]  # three worlds: see scenes.py
    kinds: Axis[Literal["one", "two", "many"]] = Field(["one", "two", "many"])  # of scenes: how many things
    questions: bool = False  # with answers of ten people, in place of captions
    train: PositiveInt
    test: PositiveInt
    seed: Seed


class EasyVqa(Section):
    source: Literal["easy-vqa"]
    test: Annotated[PositiveInt, Field(le=1000)] = 1000  # the first of its test images


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


Inside = Annotated[str, Field(min_length=1), AfterValidator(_stays_inside)]


class ImageFiles(Section):
    images: Inside  # the folder of the file names
    units: PositiveInt | None = None  # a random subset of so many images; n, q and delta follow it


class CocoSplit(ImageFiles):
    annotations: Inside  # the JSON file

    @property
    def file(self) -> str:
        return self.annotations


class VqaSplit(ImageFiles):
    """Questions and annotations as VQA publishes them, or one CSV file."""

    questions: Inside | None = None
    annotations: Inside | None = None  # without it, questions are answered and not scored
    file_names: Annotated[str, Field(pattern=r"\{.*\}")] | None = None  # of image ids, as COCO_val2014_{:012d}.jpg
    csv: Inside | None = None  # columns question, answer and image

    @property
    def file(self) -> str:
        return self.csv or self.questions

    @model_validator(mode="after")
    def _one_kind(self) -> "VqaSplit":
        if (self.questions is None) == (self.csv is None):
            raise ValueError("give either questions (and annotations) or csv")
        if self.csv and (self.annotations or self.file_names):
            raise ValueError("annotations and file_names go with questions; a csv file has the answers and the names")
        return self


class Described(Section):
    """Images that files beside them describe."""

    path: str
    seed: Seed = 0  # chooses the units
    in_both: Literal["refuse", "out-of-train"] = "refuse"  # what to do with an image that both splits name
    licence: str = "not stated"
    public: bool = False  # whether a model may be pretrained on it without privacy


class Coco(Described):
    """Captioned photos described by COCO's JSON, as VizWiz publishes it."""

    train: CocoSplit
    test: CocoSplit


class Vqa(Described):
    """Images with questions and the answers of people."""

    train: VqaSplit
    test: VqaSplit

    @model_validator(mode="after")
    def _answers_to_learn_from(self) -> "Vqa":
        if self.train.questions and not self.train.annotations:
            raise ValueError("train.annotations: training needs the answers; only the test split can be without")
        return self


BuiltIn = Mnist5k | Benchmark | FontDigits | OpticalDigits | Scenes | EasyVqa
Source = BuiltIn | Folder | Coco | Vqa
