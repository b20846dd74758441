"""The clipped sum of many units from one forward and one backward pass over all of their records.

Of each operation that a parameter goes into are kept what went in, X, and the derivative of each unit's loss at what
came out, D (uses.py). Then, layer by layer,

    the unit's norm        from X and D, in the cheaper of two ways
    the clipped sum        each unit's X^T D times its clip factor, rounded to the grid, added up exactly

so the argument of gradients.py holds as it stands: a unit's gradient is what float32 makes of it, in shapes that do not
depend on the other units; no unit that is added is longer than C; sums are exact.

Two ways to a norm. Where the gradient of a unit is small, or the unit has many rows, it is made, and measured as it is.
Elsewhere its square is the sum of (X X^T) * (D D^T), products between the rows of the unit alone, in float64: for a
layer of ViT-B/32 and one image, a twelfth of the work. That is the norm of the true X^T D. What is added is the float32
product, so what both may be wrong by is added before the clip. Let S be the sum over rows of ||x_i|| ||d_i||, and k
their number:

    the square in float64   is too small by at most 2 K 2^-53 S^2, K = inputs + outputs + 2 k + 1: proven in factored.py
    the float32 product     each of its numbers is a sum of k products, wrong by at most g_k = k u / (1 - k u) times the
                            sum of their sizes, u = 2^-24, in whatever order they are added; so the matrix by g_k S

By the triangle inequality the joint norm is at most the root of the sum of all squares (so corrected, or measured) plus
the root of the sum of all (g_k S)^2. What of the latter is below 3.9 10^-5 of the norm needs no adding: the margin of
grid.py, 10^-4, has room for it beside the 3 10^-5 of what is measured, the 2 10^-7 of a factor, and what rounding p
numbers to the grid adds, 2^-31 sqrt(p) C at most: 3 10^-5 C for four thousand million. A unit whose S is beyond 10^37
may overflow on the way to a finite product: it counts as not finite, that is as zero. Products below 10^-38 may be
lost, which is 10^-30 of any C worth the name.

    >>> X, D = torch.randn(3, 10, 80), torch.randn(3, 10, 50)
    >>> squares, slack = Matrix(torch.Size([80, 50]), Product(X, D)).squares()
    >>> true = (X.mT.double() @ D.double()).square().sum((1, 2))
    >>> bool((squares >= true * (1 - 1e-12)).all()), bool((slack < 1e-8 * true).all())
    (True, True)
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import GradientEdge
from torch.func import grad_and_value, vmap

from stages.privacy.grid import clip_factors, square, whole_sum
from stages.privacy.precision import full_precision
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

UNIT_ROUNDOFF = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}
COVERED = 3.9e-5  # of a norm: rounding errors that the margin has room for
LONGEST = 1e37  # terms of a float32 product
GOLDEN = (5**0.5 - 1) / 2  # its multiples fill [0, 1) evenly: a picture that needs no draw
AT_ONCE = {"cpu": 2**20, "cuda": 2**26}  # numbers of all units' gradients that are made together: on a CPU a cache's
KEPT_BYTES = 256 * 2**20  # of gradients that are made once, for norm and sum

Tensors = dict[str, torch.Tensor]
Values = Mapping[str, torch.Tensor]


class Gradient(ABC):
    """That of one parameter for every unit, as (units, rows, width), of which some rows are made at a time."""

    def __init__(self, shape: torch.Size):
        self.shape = shape
        self.rows = shape[0] if len(shape) > 1 else 1
        self.width = shape.numel() // self.rows

    @abstractmethod
    def block(self, first: int, last: int) -> torch.Tensor:
        """(units, last - first, width)."""

    def whole(self, of_rows: torch.Tensor) -> torch.Tensor:
        """(..., rows, width) -> (..., *shape)."""
        return of_rows.reshape(of_rows.shape[:-2] + self.shape)

    @property
    def is_measured_as_made(self) -> bool:
        return True

    def squares(self) -> tuple[torch.Tensor, torch.Tensor | float]:
        """(units,): the squared norms of what `block` gives; and how far they may be off, squared too."""
        return torch.stack([square(self.block(*span).flatten(1)) for span in self.spans()]).sum(0), 0.0

    def spans(self) -> Iterator[tuple[int, int]]:
        row = self.block(0, 1)
        many = max(1, AT_ONCE.get(row.device.type, AT_ONCE["cpu"]) // row.numel())
        for first in range(0, self.rows, many):
            yield first, min(first + many, self.rows)

    def clipped(self, factors: torch.Tensor, all_finite: bool) -> torch.Tensor:
        """Times the factors, rounded, and added up: whole steps of the grid."""
        total = torch.empty(self.rows, self.width, dtype=torch.float64, device=factors.device)
        for first, last, scaled in self.scaled(factors):
            total[first:last] = whole_sum(scaled if all_finite else scaled.nan_to_num_(0.0, 0.0, 0.0))  # 0 * NaN is NaN
        return self.whole(total)

    def scaled(self, factors: torch.Tensor) -> Iterator[tuple[int, int, torch.Tensor]]:
        """What was measured, times the factors: blocks, and where they are."""
        for first, last in self.spans():
            yield first, last, self.block(first, last)[: len(factors)] * factors[:, None, None]


class Made(Gradient):
    def __init__(self, whole: torch.Tensor):
        super().__init__(whole.shape[1:])
        self._whole = whole.reshape(len(whole), self.rows, self.width)

    def block(self, first: int, last: int) -> torch.Tensor:
        return self._whole[:, first:last]


class Matrix(Gradient):
    """Its longer side stands for the rows here, whichever that is: blocks are then products that are fast."""

    def __init__(self, shape: torch.Size, of: Product):
        super().__init__(shape)
        self._of, self._flipped = of, self.rows < self.width
        if self._flipped:
            self.rows, self.width, self._of = self.width, self.rows, Product(of.right, of.left)

    @property
    def bytes(self) -> int:
        return len(self._of.left) * self.shape.numel() * self._of.left.element_size()

    def whole(self, of_rows: torch.Tensor) -> torch.Tensor:
        return (of_rows.mT if self._flipped else of_rows).reshape(of_rows.shape[:-2] + self.shape)

    def block(self, first: int, last: int) -> torch.Tensor:
        return torch.bmm(self._of.left[:, :, first:last].mT, self._of.right)

    @property
    def is_measured_as_made(self) -> bool:
        return 2 * self._of.left.shape[1] * (self.rows + self.width) >= self.rows * self.width

    def squares(self) -> tuple[torch.Tensor, torch.Tensor | float]:
        if self.is_measured_as_made:
            return super().squares()
        left, right = self._of.left.double(), self._of.right.double()
        return bounded(left @ left.mT, right @ right.mT, self.rows + self.width)

    def scaled(self, factors: torch.Tensor) -> Iterator[tuple[int, int, torch.Tensor]]:
        if self.is_measured_as_made:
            yield from super().scaled(factors)
            return
        # The bound is one on whatever is made of the rows, so these may be scaled, which are fewer numbers. Where one
        # of a unit's is then beyond float32, the unit has zero here.
        left = self._of.left * torch.nn.functional.pad(factors, (0, len(self._of.left) - len(factors)))[:, None, None]
        left = left.where(left.isfinite().flatten(1).all(1)[:, None, None], 0.0)
        for first, last in self.spans():
            # Of all units, copies too: how many are real must not show in the shape of a product.
            yield first, last, torch.bmm(left[:, :, first:last].mT, self._of.right)[: len(factors)]


class Lookup(Gradient):
    def __init__(self, shape: torch.Size, of: Table):
        super().__init__(shape)
        self._of = of

    def block(self, first: int, last: int) -> torch.Tensor:
        units, rows = len(self._of.tokens), last - first
        here = (self._of.tokens - first).where((self._of.tokens >= first) & (self._of.tokens < last), rows)
        places = (here + (rows + 1) * torch.arange(units, device=here.device)[:, None]).flatten()
        made = self._of.D.new_zeros(units * (rows + 1), self.width)
        made.index_add_(0, places, self._of.D.flatten(0, 1))
        return made.view(units, rows + 1, self.width)[:, :rows]

    @property
    def is_measured_as_made(self) -> bool:
        return False

    def squares(self) -> tuple[torch.Tensor, torch.Tensor | float]:
        same = (self._of.tokens[:, :, None] == self._of.tokens[:, None, :]).double()
        D = self._of.D.double()
        return bounded(same, D @ D.mT, 1 + self.width)


class Together(Gradient):
    """Of a parameter that goes into several operations."""

    def __init__(self, parts: list[Gradient]):
        super().__init__(parts[0].shape)
        self._parts = parts

    def block(self, first: int, last: int) -> torch.Tensor:
        return torch.stack([part.block(first, last) for part in self._parts]).sum(0)

    def squares(self) -> tuple[torch.Tensor, torch.Tensor | float]:
        """A GPU may add the rows of a table in another order every time: what is measured is then not what is added."""
        tables = [2 * part.squares()[1] ** 0.5 for part in self._parts if isinstance(part, Lookup)]
        return super().squares()[0], sum(tables, 0.0) ** 2


def together(parts: list[Gradient]) -> Gradient:
    if len(parts) == 1:
        return parts[0]
    return Together(
        [Made(part.whole(part.block(0, part.rows))) if isinstance(part, Matrix) else part for part in parts]
    )


def bounded(left: torch.Tensor, right: torch.Tensor, widths: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(units,): a bound on the squares of ||X^T D||, and (g_k S)^2, from the products between rows, (units, k, k)."""
    k = left.shape[1]
    own = [products.diagonal(dim1=1, dim2=2).sqrt() for products in (left, right)]
    S, K = (own[0] * own[1]).sum(1), widths + 2 * k + 1
    squares = ((left * right).sum((1, 2)) + 2 * K * UNIT_ROUNDOFF[torch.float64] * S.square()).clamp(min=0)
    ku = (k + 2) * UNIT_ROUNDOFF[torch.float32]  # one for S, and one for a row times its factor
    return squares.where(S < LONGEST, torch.inf), (ku / (1 - ku) * S).square()


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
            logger.debug("units do not share a backward pass: %s", reason)
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


def norms_of(made: Mapping[str, Gradient], units: int, device: torch.device) -> torch.Tensor:
    """(units,): never below the joint norms of what `block` gives."""
    squares = slack = torch.zeros(units, dtype=torch.float64, device=device)
    for gradient in made.values():
        of_one, wrong_by = gradient.squares()
        squares, slack = squares + of_one, slack + wrong_by
    norms = squares.sqrt()
    return norms + (slack.sqrt() - COVERED * norms).clamp(min=0)


def by_unit(
    objective: Any, parameters: Values, records: Values, present: torch.Tensor, known: OnePass
) -> Iterator[torch.Tensor]:
    """All that a unit's part of the sum is made of, a row per unit: norms, and gradients a block at a time."""
    made, losses = gradients(objective, parameters, records, present, known)
    with full_precision():
        yield norms_of(made, len(present), losses.device)
        for gradient in made.values():
            yield from (gradient.block(*span) for span in gradient.spans())
