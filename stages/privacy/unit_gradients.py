"""Gradients of many units that are never made as a whole: their norms, and their clipped sum.

Of an operation that a parameter goes into is known what went in, X, and the derivative of each unit's loss at what came
out, D (uses.py). A unit's gradient is X^T D, of which some rows are made at a time, for all units.

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
grid.py, 10^-4, has room for it beside the 3.1 10^-5 of what is measured, the 2 10^-7 of a factor, and what rounding p
numbers to the grid adds, 2^-31 sqrt(p) C at most: 3 10^-5 C for four thousand million. A unit whose S is beyond 10^37
may overflow on the way to a finite product: it counts as not finite, that is as zero. Products below 10^-38 may be
lost, which is 10^-30 of any C worth the name.

    >>> X, D = torch.randn(3, 10, 80), torch.randn(3, 10, 50)
    >>> squares, slack = Matrix(torch.Size([80, 50]), Product(X, D)).squares()
    >>> true = (X.mT.double() @ D.double()).square().sum((1, 2))
    >>> bool((squares >= true * (1 - 1e-12)).all()), bool((slack < 1e-8 * true).all())
    (True, True)
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

import torch

from stages.privacy.grid import square, whole_sum
from stages.privacy.uses import Product, Table

UNIT_ROUNDOFF = {torch.float32: 2.0**-24, torch.float64: 2.0**-53}
COVERED = 3.9e-5  # of a norm: rounding errors that the margin has room for
LONGEST = 1e37  # terms of a float32 product
AT_ONCE = {"cpu": 2**20, "cuda": 2**26}  # numbers of all units' gradients that are made together: on a CPU a cache's


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


def norms_of(made: Mapping[str, Gradient], units: int, device: torch.device) -> torch.Tensor:
    """(units,): never below the joint norms of what `block` gives."""
    squares = slack = torch.zeros(units, dtype=torch.float64, device=device)
    for gradient in made.values():
        of_one, wrong_by = gradient.squares()
        squares, slack = squares + of_one, slack + wrong_by
    norms = squares.sqrt()
    return norms + (slack.sqrt() - COVERED * norms).clamp(min=0)
