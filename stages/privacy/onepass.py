"""The clipped sum of many units from one forward and one backward pass over all of their records.

Of each operation that a parameter goes into are kept what went in, X, and the derivative of each unit's loss at what
came out, D (uses.py). Then, layer by layer,

    the unit's norm        from X and D, in the cheaper of two ways
    the clipped sum        each unit's X^T D times its clip factor, rounded to the grid, added up exactly

so the argument of gradients.py holds as it stands: a unit's gradient is what float32 makes of it, in shapes that do not
depend on the other units; no unit that is added is longer than C; sums are exact.

How norms are measured, and why no unit is added that is longer than C: unit_gradients.py.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import GradientEdge
from torch.func import grad_and_value, vmap

from stages.privacy.grid import clip_factors
from stages.privacy.precision import full_precision
from stages.privacy.unit_gradients import Gradient, Lookup, Made, Matrix, norms_of, together
from stages.privacy.uses import (
    LOOKS,
    Layout,
    Product,
    Shapes,
    Table,
    Unknown,
    Use,
    fits,
    layout_of,
    read,
    saved_by,
    uses_in,
)

logger = logging.getLogger(__name__)

GOLDEN = (5**0.5 - 1) / 2  # its multiples fill [0, 1) evenly: a picture that needs no draw
KEPT_BYTES = 256 * 2**20  # of gradients that are made once, for norm and sum

Tensors = dict[str, torch.Tensor]
Values = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class OnePass:
    """What is known of a model before its first pass."""

    layout: Layout
    direct: tuple[str, ...]  # parameters that the loss reads by itself: they belong to no record

    def pays(self, size: int) -> bool:
        """Whether norms of units of so many records cost less than half of what making their gradients does."""
        work = [(a * b, min(a * b, 2 * rows * size * (a + b)), rows) for rows, a, b in self.layout.matrices]
        return 2 * sum(norm * rows for _, norm, rows in work) < sum(made * rows for made, _, rows in work)


_KNOWN: WeakKeyDictionary[Any, OnePass | None] = WeakKeyDictionary()  # by objective, which is that of one training


def known(objective: Any, parameters: Values, records: Values) -> OnePass | None:
    """None: units cannot go through this model in one pass, which is said once. Shapes alone decide that."""
    if objective not in _KNOWN and records:
        try:
            _KNOWN[objective] = learned(objective, parameters, records)
        except Unknown as reason:
            logger.info("units go through the model vmapped, which takes longer: %s", reason)
            _KNOWN[objective] = None
    return _KNOWN.get(objective)


def learned(objective: Any, parameters: Values, records: Values) -> OnePass:
    """Unknown: this model is beyond what uses.py has rules for, or does not keep records apart."""
    require_no_look(objective, parameters, records)
    there = len(next(iter(records.values())))

    def forward(count: int) -> list[torch.Tensor]:
        some = {name: rows[torch.arange(count, device=rows.device) % there] for name, rows in records.items()}
        found.append(objective.features(parameters, some, merge=False))
        return [feature for feature in found[-1].values() if feature.requires_grad]

    found: list[Tensors] = []
    layout = layout_of(forward, parameters)
    features = {name: feature.detach() for name, feature in found[-1].items()}
    present = torch.ones(LOOKS[-1], dtype=torch.bool, device=next(iter(features.values())).device)
    loss = objective.loss(parameters, features, present)
    direct = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True) if loss.requires_grad else ()
    known = OnePass(layout, tuple(n for n, g in zip(parameters, direct, strict=False) if g is not None))
    require_apart(objective, parameters, records, known)
    return known


def require_no_look(objective: Any, parameters: Values, records: Values) -> None:
    """Unknown: what the model does depends on what is in the records, so one of them could change it for all."""
    with FakeTensorMode(allow_non_fake_inputs=True) as without_content, torch.no_grad():
        try:
            objective.features(parameters, {k: without_content.from_tensor(v) for k, v in records.items()}, merge=False)
        except Exception as error:  # whatever the model makes of it
            raise Unknown(f"the model looks at its records: {type(error).__name__}") from None


def require_apart(objective: Any, parameters: Values, records: Values, known: OnePass) -> None:
    """Unknown: what one unit adds changes by a bit with the records of another.

    Seen on pictures of nothing. A model that sorts its records by what is in them could pass; `require_no_look` is for
    those that choose by it.
    """

    def made(other: int) -> list[torch.Tensor]:
        """Two units of two records, of which the second has `other` pictures."""
        some = {}
        for name, rows in records.items():
            picked = rows[torch.tensor([0, 0, other % len(rows), 0], device=rows.device)]
            if rows.is_floating_point():
                number = torch.arange(picked[0].numel(), dtype=torch.float64, device=rows.device)
                waves = [(number * GOLDEN * (1 + i)).frac() - 0.5 for i in (0, 1, 1 + other, 3 + other)]
                picked = torch.stack(waves).to(rows.dtype).view(picked.shape)
            some[name] = picked.reshape(2, 2, *picked.shape[1:])
        present = torch.ones(2, 2, dtype=torch.bool, device=next(iter(some.values())).device)
        return [each[0].nan_to_num() for each in by_unit(objective, parameters, some, present, known)]

    if not all(torch.equal(one, other) for one, other in zip(made(1), made(2), strict=True)):
        raise Unknown("the model does not keep records apart")


def gradients(
    objective: Any, parameters: Values, records: Values, present: torch.Tensor, known: OnePass
) -> tuple[dict[str, Gradient], torch.Tensor]:
    """Those of each unit by the name of the parameter, and the units' losses. `records` are (units, size, ...)."""
    shapes = Shapes(*present.shape)
    features = objective.features(parameters, {k: v.flatten(0, 1) for k, v in records.items()}, merge=False)
    derived = [k for k, v in features.items() if v.requires_grad]
    uses = uses_in([features[k] for k in derived], parameters)
    if not fits(uses, known.layout, present.numel()):
        raise RuntimeError("a model does other operations in this pass than in those before")
    kept = [tuple(tensor.detach() for tensor in saved_by(use)) for use in uses]

    at_direct, at_features, losses = _of_losses(objective, parameters, features, derived, present, known.direct)
    edges = list(dict.fromkeys(GradientEdge(use.node, 0) for use in uses))
    found = torch.autograd.grad([features[k] for k in derived], edges, at_features, allow_unused=True) if edges else ()
    D = dict(zip(edges, found, strict=True))

    with full_precision():
        parts: dict[str, list[Gradient]] = {name: [Made(g)] for name, g in at_direct.items()}
        for use, saved, dimension in zip(uses, kept, known.layout.records, strict=True):
            if (derivative := D[GradientEdge(use.node, 0)]) is not None:
                ready = read(use, saved, derivative, dimension, shapes)
                parts.setdefault(use.name, []).append(_gradient(use, ready, parameters[use.name]))
        return _some_kept({name: together(each) for name, each in parts.items()}), losses


def _of_losses(
    objective: Any,
    parameters: Values,
    features: Values,
    derived: list[str],
    present: torch.Tensor,
    direct: tuple[str, ...],
) -> tuple[Tensors, list[torch.Tensor], torch.Tensor]:
    """Derivatives of each unit's loss: by what the loss reads itself, (units, ...), and by features, (records, ...)."""
    by_unit = {k: v.detach().reshape(*present.shape, *v.shape[1:]) for k, v in features.items()}
    fixed = {name: p.detach() for name, p in parameters.items()}

    def loss_of(own: Values, some: Values, others: Values, there: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = objective.loss({**fixed, **own}, {**some, **others}, there)
        return loss

    own = {name: fixed[name] for name in direct}
    some, others = ({k: v for k, v in by_unit.items() if (k in derived) is which} for which in (True, False))
    derivatives = vmap(grad_and_value(loss_of, argnums=(0, 1)), in_dims=(None, 0, 0, 0))
    (by_own, by_some), losses = derivatives(own, some, others, present)
    return by_own, [by_some[k].flatten(0, 1) for k in derived], losses


def _gradient(use: Use, ready: torch.Tensor | Product | Table, parameter: torch.Tensor) -> Gradient:
    match ready:
        case Product():
            return Matrix(parameter.shape, Product(ready.right, ready.left) if use.turns else ready)
        case Table():
            return Lookup(parameter.shape, ready)
    if use.turns is False:
        return Made(ready)
    (whole,) = torch.autograd.grad([use.edge], [parameter], [ready], retain_graph=True, is_grads_batched=True)
    return Made(whole)


def _some_kept(made: dict[str, Gradient]) -> dict[str, Gradient]:
    """Those that are made for their norm stay for the sum, as far as there is room; which do is public."""
    room = KEPT_BYTES
    for name in sorted(made, key=lambda name: made[name].shape.numel()):
        gradient = made[name]
        if isinstance(gradient, Matrix) and gradient.is_measured_as_made:
            room -= gradient.bytes
            made[name] = Made(gradient.whole(gradient.block(0, gradient.rows))) if room > 0 else gradient
    return made


def clipped_sum(
    objective: Any,
    parameters: Values,
    records: Values,
    present: torch.Tensor,
    count: int,
    clip_norm: float,
    known: OnePass,
) -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    """Of the first `count` units, in steps of the grid, a tensor per parameter; and all units' norms and losses."""
    made, losses = gradients(objective, parameters, records, present, known)
    with full_precision():
        norms = norms_of(made, len(present), losses.device)[:count]
        factors = clip_factors(norms, clip_norm)
        all_finite = norms.device.type == "cpu" and bool(norms.isfinite().all())
        # Each is let go of when it is added: what it is made of takes as much room as the pass did.
        total = [
            made.pop(name).clipped(factors, all_finite) if name in made else torch.zeros_like(parameter)
            for name, parameter in parameters.items()
        ]
    return total, norms, losses[:count]


def by_unit(
    objective: Any, parameters: Values, records: Values, present: torch.Tensor, known: OnePass
) -> Iterator[torch.Tensor]:
    """All that a unit's part of the sum is made of, a row per unit: norms, and gradients a block at a time."""
    made, losses = gradients(objective, parameters, records, present, known)
    with full_precision():
        yield norms_of(made, len(present), losses.device)
        for gradient in made.values():
            yield from (gradient.block(*span) for span in gradient.spans())
