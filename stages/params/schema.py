"""The sections of params.yaml as typed, frozen objects."""

import copy
import itertools
from collections.abc import Iterator
from pathlib import PurePath
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator

from stages.errors import UserError
from stages.keys import LOSSES, METHODS, PARTS, SAMPLERS, TASKS, Cell, canonical_epsilon

T = TypeVar("T")
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
PositiveInt = Annotated[int, Field(gt=0, strict=True)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
PositiveFloat = Annotated[Number, Field(gt=0)]
Fraction = Annotated[Number, Field(gt=0, lt=1)]
Seed = Annotated[int, Field(ge=0, strict=True)]


def merge(into: dict, values: dict) -> None:
    """Sections are merged key by key; a list or a number is replaced."""
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = copy.deepcopy(value)


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _no_repeats(values: list) -> list:
    if repeated := [v for v in dict.fromkeys(values) if values.count(v) > 1]:
        raise ValueError(f"{', '.join(map(repr, repeated))} is there more than once")
    return values


def _canonical_epsilons(values: list) -> list[str]:
    """Stage names are made of the text in the file, so an epsilon has one spelling there too."""
    mistakes, seen = [], set()
    for value in values:
        try:
            epsilon = canonical_epsilon(value)
        except UserError as error:
            mistakes.append(str(error))
            continue
        if epsilon in seen:
            mistakes.append(f"{value!r} is there more than once (as {epsilon})")
        elif str(value) != epsilon:
            mistakes.append(f"{value!r} is not the canonical form; write '{epsilon}'")
        seen.add(epsilon)
    if mistakes:
        raise ValueError("; ".join(mistakes))
    return [str(value) for value in values]


Axis = Annotated[list[T], Field(min_length=1), AfterValidator(_no_repeats)]


class Sweep(Section):
    task: Axis[Literal[TASKS]]
    dataset: Axis[Name]
    model: Axis[Name]
    method: Axis[Literal[METHODS]]
    epsilon: Annotated[list[Any], Field(min_length=1), AfterValidator(_canonical_epsilons)]
    seed: Axis[Seed]


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
    templates: Axis[Annotated[str, Field(pattern=r"\{\}")]] = ["a photo of a {}."]
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


class BlipWeights(Section):
    """Published weights of a BLIP, each by its name on the hub or a local folder."""

    architecture: Literal["blip"]
    captioner: str  # its vision tower and caption decoder, as Salesforce/blip-image-captioning-base
    contrastive: str  # its contrastive and matching heads, as Salesforce/blip-itm-base-coco


def _library(value: Any) -> str:
    architecture = value.get("architecture") if isinstance(value, dict) else getattr(value, "architecture", None)
    return "blip" if architecture == "blip" else "open_clip"


Published = Annotated[
    Annotated[Weights, Tag("open_clip")] | Annotated[BlipWeights, Tag("blip")], Discriminator(_library)
]


def _delta(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value != "auto" and not (is_number and 0 < value < 1):
        raise ValueError(f"delta must be `auto` (1/(2n)) or a number between 0 and 1; got {value!r}")
    return value


class Privacy(Section):
    delta: Annotated[Any, AfterValidator(_delta)]
    convention: Literal["sound", "paper"]
    sampling: Literal[SAMPLERS]
    budget: PositiveFloat | None  # total epsilon of all runs on one dataset; a run that would exceed it does not start
    unsafe_noise_seed: Seed | None  # for tests: whoever knows it can subtract the noise; the run is tagged
    unsafe_diagnostics: Annotated[bool, Field(strict=True)]  # keeps private figures of each step; the run is tagged

    @property
    def delta_or_none(self) -> float | None:
        return None if self.delta == "auto" else self.delta


class Method(Section):
    """How one clip unit is trained. Its length is given in epochs (the paper's way) or in steps."""

    batch_size: PositiveInt  # expected, where batches vary
    epochs: PositiveFloat | None = None
    steps: PositiveInt | None = None
    clip_norm: PositiveFloat
    lr: PositiveFloat
    loss: Literal[tuple(LOSSES)]
    trainable: Literal[PARTS]
    lora_rank: PositiveInt = 8  # where trainable is lora or image-lora

    @model_validator(mode="after")
    def _one_length(self) -> "Method":
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give either epochs or steps")
        return self


class GroupMethod(Method):
    groups: PositiveInt  # m: each record of a batch picks one at random


class Methods(Section):
    batch: Method
    group: GroupMethod
    example: Method

    def __getitem__(self, name: str) -> Method:
        return getattr(self, name)


class Train(Section):
    methods: Methods
    betas: tuple[Annotated[Number, Field(ge=0, lt=1)], Annotated[Number, Field(ge=0, lt=1)]]
    eps: PositiveFloat
    weight_decay: Annotated[Number, Field(ge=0)]
    precision: Literal["float32", "bf16"] = "float32"  # of the model's arithmetic; weights, clipping, noise: float32
    overrides: dict[Name, dict[str, Any]] = {}  # by dataset: values of this section that take the place of those above

    @model_validator(mode="after")
    def _every_override_fits(self) -> "Train":
        for dataset in self.overrides:
            try:
                self.on(dataset)
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(map(str, first["loc"]))
                raise ValueError(f"overrides.{dataset}.{where}: {first['msg']}") from None
        return self

    def on(self, dataset: str) -> "Train":
        """What holds for one dataset."""
        values = self.model_dump(exclude={"overrides"})
        merge(values, self.overrides.get(dataset, {}))
        return Train.model_validate(values)


class Publish(Section):
    models: Literal["all", "first-seed"]  # which runs in MLflow carry their model; all of them have their figures


class Evaluate(Section):
    batch_size: PositiveInt
    beams: PositiveInt  # of the search for a caption
    caption_tokens: PositiveInt  # at most
    spice_jars: str | None  # a folder with Stanford CoreNLP's files, without which SPICE is not run


class Compute(Section):
    records_at_once: PositiveInt  # through the model together; larger batches go in pieces, with the same gradient
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")]
    gradient_checkpointing: Annotated[bool, Field(strict=True)] = False  # less memory, more time
    compile: Annotated[bool, Field(strict=True)] = False  # torch.compile: needs a C++ compiler or a GPU


class Params(Section):
    sweep: Sweep
    prepare: dict[Name, Annotated[BuiltIn, Field(discriminator="source")]]
    folders: dict[Name, Folder]
    coco: dict[Name, Coco]
    pretrain: dict[Name, Pretrain]
    align: dict[Name, Align]
    weights: dict[Name, Published]
    privacy: Privacy
    train: Train
    evaluate: Evaluate
    publish: Publish
    compute: Compute
    presets: dict[Name, dict[str, Any]] = {}  # named values for the sections above; see presets.py

    @property
    def datasets(self) -> dict[str, Source]:
        return {**self.prepare, **self.folders, **self.coco}

    @property
    def models(self) -> dict[str, Pretrain | Align | Weights | BlipWeights]:
        return {**self.pretrain, **self.align, **self.weights}

    def cells(self) -> Iterator[Cell]:
        s = self.sweep
        for task, dataset, model, method, epsilon, seed in itertools.product(
            s.task, s.dataset, s.model, s.method, s.epsilon, s.seed
        ):
            yield Cell(task, dataset, model, method, canonical_epsilon(epsilon), seed)
