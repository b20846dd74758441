"""What losses have in common that set a record against things which no record moves: each term is one record's own."""

from abc import abstractmethod
from functools import reduce
from operator import add
from typing import TYPE_CHECKING

from stages.losses.base.loss import Objective, Parameters, mean

if TYPE_CHECKING:
    import torch


class AgainstFixed(Objective):
    @abstractmethod
    def choices(self, parameters: Parameters, features: Parameters) -> "list[tuple[torch.Tensor, torch.Tensor]]":
        """For each direction: how similar a record is to all that it has to choose from, (b, choices), and which of
        them is its own, (b,). Beside the record itself, all of it is public.
        """

    def loss(self, parameters: Parameters, features: Parameters, present: "torch.Tensor") -> "torch.Tensor":
        """The mean over records of -log softmax of their own, the directions added."""
        import torch.nn.functional as F

        choices = self.choices(parameters, features)
        each = [F.cross_entropy(similarity, own, reduction="none") for similarity, own in choices]
        return mean(reduce(add, each), present)
