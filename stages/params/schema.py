"""The sections of params.yaml as typed, frozen objects."""

import copy
import itertools
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, create_model, model_validator

from stages.errors import UserError
from stages.keys import LOSSES, ON_FROZEN_TOWERS, SAMPLERS, TASKS, Cell, canonical_epsilon, canonical_part
from stages.losses import named as loss_named
from stages.models.families import Aligned, Published
from stages.models.views import Variation
from stages.params.models import AlignEntry, Bank, Pretrain, WeightsEntry
from stages.privacy.mechanism import Mechanism
from stages.privacy.methods import METHODS
from stages.sections import AutoOrCount, Axis, Fraction, Name, Number, PositiveFloat, PositiveInt, Section, Seed
from stages.sources import Source, entry_type
from stages.tasks import named
from stages.tasks.base.task import Settings


def merge(into: dict, values: dict) -> None:
    """Sections are merged key by key; a list or a number is replaced."""
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = copy.deepcopy(value)


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


class Sweep(Section):
    task: Axis[Literal[TASKS]]  # type: ignore[valid-type]  # here and below: names of files, known when run
    dataset: Axis[Name]
    model: Axis[Name]
    method: Axis[Literal[tuple(METHODS)]]  # type: ignore[valid-type]
    epsilon: Annotated[list[Any], Field(min_length=1), AfterValidator(_canonical_epsilons)]
    seed: Axis[Seed]


def _delta(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value not in ("auto", "paper") and not (is_number and 0 < value < 1):
        raise ValueError(
            f"delta must be `auto` (1/(2n), at most 1e-5), `paper` (1/(2n)) or a number between 0 and 1; got {value!r}"
        )
    return value


class Privacy(Section):
    delta: Annotated[Any, AfterValidator(_delta)]  # see facts.delta_of
    convention: Literal["sound", "paper"]
    sampling: Literal[SAMPLERS]  # type: ignore[valid-type]
    public_n: dict[Name, PositiveInt] = Field({})  # by dataset whose n is secret: the public number that stands for it
    budget: PositiveFloat | None  # total epsilon of all runs on one dataset; a run that would exceed it does not start
    release_budget: PositiveFloat | None = None  # total epsilon of all models ever released from the same records
    unsafe_noise_seed: Seed | None  # for tests: whoever knows it can subtract the noise; the run is tagged
    unsafe_diagnostics: Annotated[bool, Field(strict=True)]  # keeps private figures of each step; the run is tagged


def _part(value: str) -> str:
    try:
        return canonical_part(value)
    except UserError as error:
        raise ValueError(str(error)) from None


class Method(Section):
    """How one clip unit is trained. Its length is given in epochs (the paper's way) or in steps."""

    batch_size: PositiveInt  # expected, where batches vary
    epochs: PositiveFloat | None = None
    steps: PositiveInt | None = None
    clip_norm: PositiveFloat
    lr: PositiveFloat
    schedule: Literal["constant", "linear", "cosine"] = "constant"  # of the learning rate; the last two end at zero
    average: Fraction | None = None  # of the steps, the last ones, whose weights are averaged
    optimizer: Literal["adamw", "sgd"] = "adamw"  # sgd: plain steps, whose lr is that of a record's mean gradient
    loss: Literal[LOSSES]  # type: ignore[valid-type]
    trainable: Annotated[str, AfterValidator(_part)]
    lora_rank: PositiveInt = 8  # where adapters are trained
    views: PositiveInt = 1  # of a record in a step: each another of its texts, in one gradient (models/views.py)
    vary: Variation | None = None  # how the image differs from view to view

    @model_validator(mode="after")
    def _fits_together(self) -> "Method":
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give either epochs or steps")
        if self.views > 1 and not loss_named(self.loss).is_sum_over_records:
            raise ValueError(
                f"views: {self.views} is for a loss that is a sum over records; in {self.loss} two views of one record "
                "would stand against each other; write views: 1"
            )
        if (self.views > 1 or self.vary) and self.trainable in ON_FROZEN_TOWERS:
            raise ValueError(f"trainable: {self.trainable} has seen each image once; leave views and vary out")
        return self


def _section_of(mechanism: type[Mechanism]) -> type[Method]:
    own: dict[str, Any] = {name: (kind, ...) for name, kind in mechanism.own_fields().items()}
    own |= {name: (kind | None, None) for loss in LOSSES for name, kind in loss_named(loss).fields.items()}
    return create_model(f"Method of {mechanism.__name__}", __base__=Method, **own) if own else Method


class _ByName(Section):
    def __getitem__(self, name: str) -> Method:
        return getattr(self, name)


_sections: dict[str, Any] = {name: (_section_of(m), ...) for name, m in METHODS.items()}
Methods = create_model("Methods", __base__=_ByName, **_sections)


class Train(Section):
    methods: Methods
    betas: tuple[Annotated[Number, Field(ge=0, lt=1)], Annotated[Number, Field(ge=0, lt=1)]]
    eps: PositiveFloat
    weight_decay: Annotated[Number, Field(ge=0)]
    precision: Literal["float32", "bf16"] = "float32"  # of the model's arithmetic; weights, clipping, noise: float32
    overrides: dict[Name, dict[str, Any]] = Field({})  # by dataset: values in place of those above

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


def _cells(values: list[str]) -> list[str]:
    try:
        return [str(Cell.parse(value)) for value in values]
    except UserError as error:
        raise ValueError(str(error)) from None


class Publish(Section):
    models: Literal["all", "first-seed"]  # which runs in MLflow carry their model; all of them have their figures
    not_private: Annotated[list[str], AfterValidator(_cells)] = Field([])  # cells without a guarantee, by name
    costs: Annotated[bool, Field(strict=True)] = False  # seconds and memory of trainings, which depend on private data


# All that a task declares to read of it.
_settings = [named(task).settings.model_fields for task in TASKS]
_fields: dict[str, Any] = {name: (field.annotation, field) for its in _settings for name, field in its.items()}
Evaluate = create_model("Evaluate", __base__=Settings, **_fields)


class Compute(Section):
    records_at_once: PositiveInt  # through the model together; larger batches go in pieces, with the same gradient
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")]
    gradient_checkpointing: Annotated[bool, Field(strict=True)] = False  # less memory, more time
    compile: Annotated[bool, Field(strict=True)] = False  # torch.compile: needs a C++ compiler or a GPU
    processes: PositiveInt = 1  # one training on so many: of this machine, each with a GPU of its own if there are any
    sharded: Annotated[bool, Field(strict=True)] = False  # FSDP2: a process has a part of each trained tensor
    checkpoint_minutes: PositiveFloat = 5.0  # how much time a crash may cost
    input_workers: AutoOrCount = "auto"  # processes that read images ahead of the step


class Theory(Section):
    """The linear-representation study (stages/theory): what each setting has unless it is the one that is varied."""

    trials: Annotated[PositiveInt, Field(ge=2)]  # a point; each with data and noise of its own
    seed: Seed
    alpha: PositiveFloat  # weight of the penalty
    snr: PositiveFloat  # signal against noise, s^2 of the paper
    effective_rank: Annotated[Number, Field(ge=1)]  # of each noise
    sampling_rate: Fraction  # b / n; the paper's nu
    group_size: Annotated[PositiveInt, Field(ge=2)]  # expected records of a group
    n: PositiveInt
    epsilon: PositiveFloat
    delta: Fraction
    d: PositiveInt  # of both modalities together
    clip_norm: PositiveFloat
    batch_clip_norm: PositiveFloat  # of `batch`, whose gradients are shorter than those of groups
    epsilons: Axis[PositiveFloat]
    ns: Axis[PositiveInt]
    batch_epsilons: Axis[PositiveFloat]
    ds: Axis[PositiveInt]
    deltas: Axis[Fraction]
    statistical_ns: Axis[PositiveInt]
    clip_norms: Axis[PositiveFloat]

    @model_validator(mode="after")
    def _noise_fits(self) -> "Theory":
        if (least := min(self.d, *self.ds) // 2) < self.effective_rank:
            raise ValueError(f"effective_rank is {self.effective_rank}, and a modality of {least} dimensions has less")
        if self.sampling_rate * min(self.n, *self.ns) < 2 * self.group_size:
            raise ValueError("the smallest n gives less than two groups in a batch; raise it, or lower group_size")
        return self


class Params(Section):
    sweep: Sweep
    prepare: dict[Name, entry_type("prepare")]  # type: ignore[valid-type]
    folders: dict[Name, entry_type("folders")]  # type: ignore[valid-type]
    coco: dict[Name, entry_type("coco")]  # type: ignore[valid-type]
    vqa: dict[Name, entry_type("vqa")]  # type: ignore[valid-type]
    pretrain: dict[Name, Pretrain]
    align: dict[Name, AlignEntry]
    weights: dict[Name, WeightsEntry]
    banks: dict[Name, Bank]
    privacy: Privacy
    train: Train
    evaluate: Evaluate
    publish: Publish
    theory: Theory
    compute: Compute

    @property
    def datasets(self) -> dict[str, Source]:
        return {**self.prepare, **self.folders, **self.coco, **self.vqa}

    @property
    def models(self) -> dict[str, Pretrain | Aligned | Published]:
        return {**self.pretrain, **self.align, **self.weights}

    def cells(self) -> Iterator[Cell]:
        s = self.sweep
        for task, dataset, model, method, epsilon, seed in itertools.product(
            s.task, s.dataset, s.model, s.method, s.epsilon, s.seed
        ):
            yield Cell(task, dataset, model, method, canonical_epsilon(epsilon), seed)
