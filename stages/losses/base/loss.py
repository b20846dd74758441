"""What every loss declares, and what the losses of a batch have in common."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:  # none of it is needed to read params.yaml, and it takes seconds
    import torch

    from stages.data.rows import Labels
    from stages.models.bank import Bank
    from stages.models.batches import Batch
    from stages.models.encoder import Encoder
    from stages.privacy.factored import Factor

Parameters = Mapping[str, "torch.Tensor"]
Trained = Mapping[str, "torch.nn.Parameter"]
Tensors = dict[str, "torch.Tensor"]


@dataclass(frozen=True)
class About:
    """What a loss may know of data and method; all of it is public."""

    labels: "Labels | None" = None
    has_questions: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)  # its own fields of `train.methods.NAME`, where given
    bank: "Bank | None" = None  # public pairs beside the model


class Loss(ABC):
    """Derive from it, and read prompts.py beside this."""

    name: ClassVar[str]  # that of the file
    is_sum_over_records: ClassVar[bool]
    abilities: ClassVar[tuple[str, ...]] = ("compares",)  # that a model must have, of those in models/families
    fields: ClassVar[Mapping[str, Any]] = {}  # its own fields in `train.methods.NAME`, with their types; none is needed
    reads_questions: ClassVar[bool] = False  # whether it takes a question and its answer of a record that has some
    needs_bank: ClassVar[bool] = False  # whether the model must have a bank of public pairs beside it

    def unfit(self, has_labels: bool, is_written: bool) -> str | None:
        """Why it cannot serve a task, with classes or without, in which a model writes or not; and what to do."""
        return None

    def unfit_part(self, part: str) -> str | None:
        """Why it cannot train this value of `trainable`."""
        return None

    def reaches(self, tensor: str, about: About) -> bool:
        """Whether its value depends on the tensor of this name: noise on any other would protect nothing."""
        from stages.models.parts import compares

        return compares(tensor)

    @abstractmethod
    def objective(self, encoder: "Encoder", trained: Trained, about: About) -> "Objective":
        """Of a model of which `trained` is trained."""


class Objective(ABC):
    """A loss of one model. Both parts are pure functions of the trained parameters, and what a record gives by itself
    depends on no other, so that many clip units share a backward pass (privacy/gradients.py).
    """

    bf16 = False  # of the towers' products; parameters, gradients and all that follows stay in float32
    one_by_one = False  # units must not share a pass: the model is checkpointed or compiled, or places matter
    factors: "Mapping[str, Factor] | None" = None  # where all that is trained are projections on frozen towers

    @abstractmethod
    def records(self, batch: "Batch") -> Tensors:
        """What the loss needs of a batch, a row per record."""

    @abstractmethod
    def features(self, parameters: Parameters, records: Parameters, merge: bool) -> Tensors:
        """What each record gives by itself. `merge` allows to compute equal inputs once, which vmap cannot."""

    @abstractmethod
    def loss(self, parameters: Parameters, features: Parameters, present: "torch.Tensor") -> "torch.Tensor":
        """Of all records together; rows that are not `present` are padding, and contribute nothing."""


def mean(each: "torch.Tensor", present: "torch.Tensor") -> "torch.Tensor":
    """Over the records that are there."""
    import torch

    return torch.where(present, each, 0.0).sum() / present.sum()
