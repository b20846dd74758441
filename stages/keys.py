"""One spelling of everything: the canonical epsilon, the key of a cell, and where its files are.

>>> canonical_epsilon(1.0), canonical_epsilon("0.50"), canonical_epsilon("inf")
('1', '0.5', 'inf')
>>> cell = Cell.parse("classification/mnist5k/tiny-clip/batch/eps-3/seed-0")
>>> cell.epsilon, cell.is_private, str(cell.model_dir)
('3', True, 'runs/classification/mnist5k/tiny-clip/batch/eps-3/seed-0/model')
"""

from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path

from stages.errors import UserError


def _names_in(folder: str) -> tuple[str, ...]:
    """Of what is one file of a folder here and found by its name; nothing is imported."""
    return tuple(sorted(path.stem for path in Path(__file__).parent.joinpath(folder).glob("[!_]*.py")))


TASKS = _names_in("tasks")
METHODS = _names_in("privacy/methods")  # clip units, stages/privacy/README.md section 2
SAMPLERS = ("poisson", "fixed-size", "shuffled")
LOSSES = _names_in("losses")
FAMILIES = _names_in("models/families")

# What can be trained (stages/models/parts.py): the whole of a model or a part of it, or some of its pieces, joined by +
PIECES = ("image-tower", "question-encoder", "decoder", "cross-attention")
PIECES_WITH_ADAPTERS = ("image-lora", "question-encoder-lora", "decoder-lora", "cross-attention-lora")
FOR_VECTORS = ("adapter", "probe")  # beside the projections of a model for vectors (stages/models/vectors.py)
WHOLE = ("all", "no-token-table", "projections", "image-projection", "lora")
PARTS = (*WHOLE, *FOR_VECTORS, *PIECES, *PIECES_WITH_ADAPTERS)
PIECES_OF_A_WRITER = ("decoder", "cross-attention", "decoder-lora", "cross-attention-lora")  # no part in comparing
IMAGE_PARTS = ("image-tower", "image-projection", "image-lora", "adapter")  # they leave the texts as they are
ON_FROZEN_TOWERS = (
    "projections",
    "image-projection",
    *FOR_VECTORS,
)  # what they need of a record is computed once


def with_adapters(trainable: str) -> bool:
    return trainable == "lora" or trainable.split("+")[0] in PIECES_WITH_ADAPTERS


def canonical_part(value: str) -> str:
    """A value of `trainable`, with the pieces in one order.

    >>> canonical_part("decoder+image-tower")
    'image-tower+decoder'
    """
    named = value.split("+")
    for kind in (PIECES, PIECES_WITH_ADAPTERS):
        if len(set(named)) == len(named) and set(named) <= set(kind):
            return "+".join(piece for piece in kind if piece in named)
    if value in PARTS:
        return value
    raise UserError(
        f"trainable {value!r} is not one of {', '.join(PARTS)}, nor pieces of a model joined by + (any of "
        f"{', '.join(PIECES)}; or of {', '.join(PIECES_WITH_ADAPTERS)})"
    )


def canonical_epsilon(value: object) -> str:
    """`0` = initial weights (zero-shot), `inf` = non-private, else a positive number without trailing zeros."""
    try:
        if isinstance(value, bool):
            raise ValueError
        number = Decimal(str(value).strip())
    except (InvalidOperation, ValueError):
        raise UserError(f"epsilon {value!r} is not a number; write 0, inf or a positive number such as 0.5") from None
    if number.is_nan() or number < 0:
        raise UserError(f"epsilon {value!r} is negative or not a number; write 0, inf or a positive number such as 0.5")
    if number.is_infinite():
        return "inf"
    return format(number.normalize(), "f") if number else "0"


@dataclass(frozen=True)
class Cell:
    """One point of the sweep. Its string form is its key everywhere: paths, MLflow tags, command lines."""

    task: str
    dataset: str
    model: str
    method: str
    epsilon: str
    seed: int

    def __str__(self) -> str:
        return f"{self.task}/{self.dataset}/{self.model}/{self.method}/eps-{self.epsilon}/seed-{self.seed}"

    @classmethod
    def parse(cls, text: str) -> "Cell":
        parts = text.split("/")
        try:
            task, dataset, model, method, eps, seed = parts
            if not eps.startswith("eps-") or not seed.startswith("seed-"):
                raise ValueError
            cell = cls(task, dataset, model, method, canonical_epsilon(eps.removeprefix("eps-")), int(seed[5:]))
        except ValueError:
            raise UserError(
                f"cell {text!r} is not a key; expected task/dataset/model/method/eps-E/seed-S, "
                "for example classification/mnist5k/tiny-clip/batch/eps-1/seed-0"
            ) from None
        if task not in TASKS or method not in METHODS:
            raise UserError(f"cell {text!r}: task must be one of {TASKS} and method one of {METHODS}")
        if str(cell) != text:
            raise UserError(f"cell {text!r} is written in another way than its key; write {str(cell)!r}")
        return cell

    @property
    def is_private(self) -> bool:
        return self.epsilon not in ("0", "inf")

    @property
    def sweep(self) -> str:
        """What is compared with each other: all epsilons, methods and seeds of one model on one dataset."""
        return f"{self.task}/{self.dataset}/{self.model}"

    @property
    def model_dir(self) -> Path:
        return Path("runs") / str(self) / "model"

    @property
    def curve_dir(self) -> Path:
        """Weights after some of the steps."""
        return Path("runs") / str(self) / "curve"

    @property
    def training_json(self) -> Path:
        return Path("runs") / str(self) / "training.json"

    @property
    def costs_json(self) -> Path:
        return Path("runs") / str(self) / "costs.json"

    @property
    def checkpoints(self) -> Path:
        """Of a training that is not finished."""
        return Path("checkpoints") / str(self)

    @property
    def metrics_json(self) -> Path:
        return Path("results") / str(self) / "metrics.json"

    @property
    def details_json(self) -> Path:
        return Path("results") / str(self) / "details.json"

    @property
    def curve_json(self) -> Path:
        """The primary score after some of the steps and after the last."""
        return Path("results") / str(self) / "curve.json"

    @property
    def picture(self) -> Path:
        """What a person would rather look at than read: a confusion matrix, or pictures with what is said of them."""
        return Path("results") / str(self) / "picture.png"

    @property
    def privacy_json(self) -> Path:
        """Neither model nor seed enters the accounting: one calibration serves them all."""
        return Path("calibration") / self.task / self.dataset / self.method / f"eps-{self.epsilon}" / "privacy.json"


def data_dir(dataset: str) -> Path:
    return Path("data") / dataset


def features_dir(dataset: str, model: str) -> Path:
    return Path("features") / dataset / model


def initial_model_dir(model: str) -> Path:
    return Path("models") / model
