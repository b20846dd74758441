"""params.yaml as typed, frozen objects. Every mistake is found before anything runs, and all are told together.

python -m stages.params            check params.yaml and print the cells of the sweep
"""

import argparse
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from ruamel.yaml import YAML, YAMLError

from stages.errors import UserError, run
from stages.keys import METHODS, TASKS, Cell, canonical_epsilon

T = TypeVar("T")
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")]
PositiveInt = Annotated[int, Field(gt=0, strict=True)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
PositiveFloat = Annotated[Number, Field(gt=0)]
Fraction = Annotated[Number, Field(gt=0, lt=1)]
Seed = Annotated[int, Field(ge=0, strict=True)]


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


class FontDigits(Section):
    source: Literal["font-digits"]
    train: PositiveInt
    test: PositiveInt
    seed: Seed


class Folder(Section):
    path: str
    classes: Axis[str] | None = None  # in the order of integer labels; by default the labels of the public test split
    templates: Axis[Annotated[str, Field(pattern=r"\{\}")]] = ["a photo of a {}."]
    test_fraction: Fraction | None = None  # where the folder has no test split of its own
    licence: str = "not stated"
    public: bool = False  # whether a model may be pretrained on it without privacy


Source = Mnist5k | FontDigits | Folder


class Pretrain(Section):
    architecture: str  # an open_clip name, or a folder with open_clip_config.json
    data: Name
    steps: PositiveInt
    batch_size: PositiveInt
    lr: PositiveFloat
    seed: Seed


def _delta(value: Any) -> Any:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value != "auto" and not (is_number and 0 < value < 1):
        raise ValueError(f"delta must be `auto` (1/(2n)) or a number between 0 and 1; got {value!r}")
    return value


class Privacy(Section):
    delta: Annotated[Any, AfterValidator(_delta)]
    convention: Literal["sound", "paper"]
    budget: PositiveFloat | None  # total epsilon of all runs on one dataset; a run that would exceed it does not start
    unsafe_noise_seed: Seed | None  # for tests: whoever knows it can subtract the noise; the run is tagged

    @property
    def delta_or_none(self) -> float | None:
        return None if self.delta == "auto" else self.delta


class Train(Section):
    batch_size: PositiveInt
    epochs: PositiveFloat
    clip_norm: PositiveFloat
    lr: PositiveFloat
    betas: tuple[Annotated[Number, Field(ge=0, lt=1)], Annotated[Number, Field(ge=0, lt=1)]]
    eps: PositiveFloat
    weight_decay: Annotated[Number, Field(ge=0)]
    trainable: Literal["all", "image-tower", "projections", "no-token-table"]


class Evaluate(Section):
    batch_size: PositiveInt


class Compute(Section):
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")]


class Params(Section):
    sweep: Sweep
    prepare: dict[Name, Annotated[Mnist5k | FontDigits, Field(discriminator="source")]]
    folders: dict[Name, Folder]
    pretrain: dict[Name, Pretrain] = Field(min_length=1)
    privacy: Privacy
    train: Train
    evaluate: Evaluate
    compute: Compute

    @property
    def datasets(self) -> dict[str, Source]:
        return {**self.prepare, **self.folders}

    def cells(self) -> Iterator[Cell]:
        s = self.sweep
        for task, dataset, model, method, epsilon, seed in itertools.product(
            s.task, s.dataset, s.model, s.method, s.epsilon, s.seed
        ):
            yield Cell(task, dataset, model, method, canonical_epsilon(epsilon), seed)


def load(path: Path = Path("params.yaml"), check_sources: bool = False) -> Params:
    """Read and check everything; raises one UserError that lists every mistake.

    `check_sources` also looks whether the raw data are there and large enough. Stages that work on prepared data leave
    it out: they run on machines that have no raw data.
    """
    raw = _read_yaml(path)
    problems = _across_sections(raw) + (_source_problems(raw) if check_sources else [])
    try:
        params = Params.model_validate(raw)
    except ValidationError as error:
        problems = [_message(e) for e in error.errors()] + problems
    if problems:
        raise UserError(f"{path} has {len(problems)} mistake(s):", problems)
    return params


def _read_yaml(path: Path) -> dict:
    if not path.is_file():
        raise UserError(f"no {path} in {Path.cwd()}; run this from the project's folder")
    try:
        raw = YAML(typ="safe").load(path)
    except YAMLError as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise UserError(f"{path} must hold sections ({', '.join(Params.model_fields)}); got {type(raw).__name__}")
    return raw


def _message(error: dict) -> str:
    parts = [p for p in error["loc"] if p != "[key]"]
    if parts[0] == "prepare":
        del parts[2:3]  # the name of the source, which chose the schema and is no key in the file
    location = re.sub(r"\.(\d+)\b", r"[\1]", ".".join(map(str, parts)))
    match error["type"]:
        case "extra_forbidden":
            return f"{location}: unknown key"
        case "missing":
            return f"{location}: missing"
        case "value_error":
            return f"{location}: {error['ctx']['error']}"
        case _:
            return f"{location}: {error['msg']}; got {error['input']!r}"


# The checks across sections read the raw file, so that a mistake of another kind hides none of these.


def _across_sections(raw: dict) -> list[str]:
    prepare, folders, pretrain = (_mapping(raw, k) for k in ("prepare", "folders", "pretrain"))
    datasets = {**prepare, **folders}
    private = _names(raw, "dataset")
    known = f"known: {', '.join(map(str, datasets))}"
    problems = [f"folders.{name}: there is a dataset of this name in prepare" for name in folders if name in prepare]
    problems += [
        f"sweep.dataset: {d!r} is in neither prepare nor folders; {known}" for d in private if d not in datasets
    ]
    problems += [f"sweep.model: {m!r} is not in pretrain" for m in _names(raw, "model") if m not in pretrain]
    for name, model in pretrain.items():
        data = model.get("data") if isinstance(model, dict) else None
        if not isinstance(data, str):
            continue  # reported with the rest of the schema
        where = f"pretrain.{name}.data: {data!r}"
        if data not in datasets:
            problems.append(f"{where} is in neither prepare nor folders; {known}")
        elif any(datasets.get(p) == datasets[data] or _path(folders, p) == _path(folders, data) for p in private):
            problems.append(f"{where} is the data of the sweep, so it is private; name public data")
        elif data in folders and not (isinstance(folders[data], dict) and folders[data].get("public") is True):
            problems.append(f"{where} is not marked `public: true`; pretraining gives it no privacy")
    return problems


def _source_problems(raw: dict) -> list[str]:
    """Raw data that are not there, have no labels, or are fewer than a batch; no image is read."""
    from stages.prepare.sources import quick_look

    problems = []
    batch_size = _mapping(raw, "train").get("batch_size")
    classify = "classification" in (_mapping(raw, "sweep").get("task") or [])
    entries = [
        (f"{section}.{name}", name, entry)
        for section in ("prepare", "folders")
        for name, entry in _mapping(raw, section).items()
    ]
    for where, name, entry in entries:
        try:
            n, labelled = quick_look(TypeAdapter(Source).validate_python(entry))
        except ValidationError:
            continue  # reported with the rest of the schema
        except UserError as error:
            problems.append(f"{where}: {error}")
            continue
        if name in _names(raw, "dataset"):
            if isinstance(batch_size, int) and batch_size > n:
                problems.append(f"train.batch_size: {batch_size} is over n = {n} of dataset {name!r}; lower it")
            if classify and not labelled:
                problems.append(f"{where}: classification needs a `label` column in its metadata")
    return problems


def _mapping(raw: dict, key: str) -> dict:
    return raw[key] if isinstance(raw.get(key), dict) else {}


def _names(raw: dict, axis: str) -> list[str]:
    values = _mapping(raw, "sweep").get(axis)
    return [v for v in values if isinstance(v, str)] if isinstance(values, list) else []


def _path(folders: dict, name: str) -> object:
    """Where a folder dataset is; for others, something equal to nothing else."""
    entry = folders.get(name)
    path = entry.get("path") if isinstance(entry, dict) else None
    return Path(path).resolve() if isinstance(path, str) else object()


def main() -> None:
    argparse.ArgumentParser(
        prog="python -m stages.params", description="Check params.yaml and print the cells of the sweep."
    ).parse_args()
    for cell in load(check_sources=True).cells():
        print(cell)


if __name__ == "__main__":
    run(main)
