"""What is minimised. A loss is one file in this folder, found by its name, and it declares:

    whether it is a sum over records: only then does a record have a gradient of its own to clip
    which tensors of a model it reaches, and which values of `trainable` and which tasks it does not go with
    the loss itself, in two parts: what each record gives, and what all of them give together (privacy/gradients.py)

The file has a class derived from base/loss.py and one object of it, LOSS. Importing a loss is cheap: what takes time is
imported where it is used.

>>> {name: named(name).is_sum_over_records for name in LOSSES}
{'anchored': True, 'contrastive': False, 'probe': True, 'prompts': True, 'sigmoid': False, 'writing': True}
"""

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from stages.errors import UserError
from stages.keys import LOSSES
from stages.losses.base.loss import About, Loss, Objective, Trained

if TYPE_CHECKING:
    from stages.models.encoder import Encoder


@cache
def named(name: str) -> Loss:
    if name not in LOSSES:
        raise UserError(f"there is no loss {name!r}; known: {', '.join(LOSSES)}")
    return import_module(f"stages.losses.{name}").LOSS


def objective_of(
    loss: str, encoder: "Encoder", trained: Trained, about: About, bf16: bool = False, one_by_one: bool = False
) -> Objective:
    """`one_by_one`: what the model does is hidden, because it is checkpointed or compiled."""
    if "compares" in named(loss).abilities:
        from stages.models.encoder import require_comparing

        require_comparing(encoder, f"the loss {loss}")
    objective = named(loss).objective(encoder, trained, about)
    objective.bf16, objective.one_by_one = bf16, one_by_one
    return objective
