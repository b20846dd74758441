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
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
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
    source: Literal["folder"]
    path: str
    classes: list[str] | None = None  # in the order of integer labels; by default the label strings themselves
    templates: list[Annotated[str, Field(pattern=r"\{\}")]] = ["a photo of a {}."]
    test_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None  # where the folder has no test split of its own
    licence: str = "not stated"


Source = Annotated[Mnist5k | FontDigits | Folder, Field(discriminator="source")]


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
    # For tests: whoever knows this number can subtract the noise. The run is tagged.
    unsafe_noise_seed: Seed | None = None

    @property
    def delta_or_none(self) -> float | None:
        return None if self.delta == "auto" else self.delta


class Train(Section):
    batch_size: PositiveInt
    epochs: PositiveFloat
    clip_norm: PositiveFloat
    lr: PositiveFloat
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]]
    eps: PositiveFloat
    weight_decay: Annotated[float, Field(ge=0)]
    trainable: Literal["all", "image-tower", "projections", "no-token-table"]
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")]


class Evaluate(Section):
    batch_size: PositiveInt


class Params(Section):
    sweep: Sweep
    prepare: dict[Name, Source] = Field(min_length=1)
    pretrain: dict[Name, Pretrain] = Field(min_length=1)
    privacy: Privacy
    train: Train
    evaluate: Evaluate

    def cells(self) -> Iterator[Cell]:
        s = self.sweep
        for task, dataset, model, method, epsilon, seed in itertools.product(
            s.task, s.dataset, s.model, s.method, s.epsilon, s.seed
        ):
            yield Cell(task, dataset, model, method, canonical_epsilon(epsilon), seed)


def load(path: Path = Path("params.yaml")) -> Params:
    """Read and check everything; raises one UserError that lists every mistake."""
    raw = _read_yaml(path)
    problems = _unknown_names(raw) + _data_problems(raw)
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


def _unknown_names(raw: dict) -> list[str]:
    sweep, prepare, pretrain = (_mapping(raw, k) for k in ("sweep", "prepare", "pretrain"))
    datasets = sweep.get("dataset") if isinstance(sweep.get("dataset"), list) else []
    models = sweep.get("model") if isinstance(sweep.get("model"), list) else []
    public = {name: model.get("data") for name, model in pretrain.items() if isinstance(model, dict)}
    known = ", ".join(map(str, prepare))
    problems = [
        f"sweep.dataset: {d!r} is not in the section prepare; known: {known}" for d in datasets if d not in prepare
    ]
    problems += [f"sweep.model: {m!r} is not in the section pretrain" for m in models if m not in pretrain]
    for name, data in public.items():
        if data not in prepare:
            problems.append(f"pretrain.{name}.data: {data!r} is not in the section prepare; known: {known}")
        if data in datasets:
            problems.append(f"pretrain.{name}.data: {data!r} is in sweep.dataset, so it is private; name public data")
    return problems


def _data_problems(raw: dict) -> list[str]:
    """Sources that are not there, and batches larger than their data; no image is read."""
    from stages.prepare.sources import quick_facts

    problems = []
    batch_size = _mapping(raw, "train").get("batch_size")
    for name, entry in _mapping(raw, "prepare").items():
        try:
            n = quick_facts(TypeAdapter(Source).validate_python(entry))
        except ValidationError:
            continue  # reported with the rest of the schema
        except UserError as error:
            problems.append(f"prepare.{name}: {error}")
            continue
        private = name in (_mapping(raw, "sweep").get("dataset") or [])
        if private and isinstance(batch_size, int) and batch_size > n:
            problems.append(f"train.batch_size: {batch_size} is over n = {n} of dataset {name!r}; lower it")
    return problems


def _mapping(raw: dict, key: str) -> dict:
    return raw[key] if isinstance(raw.get(key), dict) else {}


def main() -> None:
    argparse.ArgumentParser(
        prog="python -m stages.params", description="Check params.yaml and print the cells of the sweep."
    ).parse_args()
    for cell in load().cells():
        print(cell)


if __name__ == "__main__":
    run(main)
