"""What each trained parameter was used for in a forward pass: autograd's graph says it.

The gradients of many units follow, for each operation that a parameter goes into, from what else went in, X, and the
derivative of the losses at what came out, D. The graph that a forward pass leaves has both: the operations are its
nodes, a node keeps X for its own derivative, and autograd gives D at any node that it is asked about. So it does not
matter which library made the layers, nor how they are put together; only the operations must be known:

    linear layers and products with a matrix      X^T D
    convolutions                                  the same, of the patches they look at
    tables of tokens                              rows of D, added by token
    biases, positions, class tokens               D, added up over all that they were added to
    layer norm, layer scale                       D times what was scaled, likewise

Which dimension of D stands for the records is nothing a node knows (attention of torch's own class has it second, in
rows of a matrix that is flat). It is found by looking twice, at three records and at five: shapes alone tell it, and no
record can tip the answer. That row i of that dimension is record i, and not another, is seen by trying (onepass.py).
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.graph import GradientEdge, Node

LOOKS = (3, 5)  # records

# What only changes the form of a parameter before it is used.
FORMS = (
    *("TBackward0", "TransposeBackward0", "PermuteBackward0", "ToCopyBackward0", "CloneBackward0", "AliasBackward0"),
    *("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "UnsqueezeBackward0", "SqueezeBackward1"),
    *("SliceBackward0", "SelectBackward0", "SplitBackward0", "SplitWithSizesBackward0", "UnbindBackward0"),
    *("ExpandBackward0", "EmbeddingBackward0"),  # of one row for all records
)
MATRICES = ("product", "convolution", "table")
VIEWS = ("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0")


class Unknown(Exception):
    """A parameter is used in a way that has no rule here."""


@dataclass(frozen=True)
class Use:
    """One operation that a parameter goes into."""

    name: str  # of the parameter
    node: Node
    kind: str
    edge: GradientEdge  # the parameter in the form in which it is used
    turns: bool | None  # whether that is the parameter transposed; None: it is in some other form
    operand: torch.Size  # the shape of that form
    output: torch.Size  # the shape of D, where rows are not flat


@dataclass(frozen=True)
class Layout:
    """What all passes of one model have in common."""

    uses: tuple[tuple[str, str], ...]  # names of parameters and kinds
    records: tuple[int, ...]  # the dimension of D that stands for them
    sizes: tuple[tuple[int, ...], ...]  # of the others
    matrices: tuple[tuple[int, int, int], ...]  # of products: rows per record, and what the matrix has in and out


def uses_in(outputs: list[torch.Tensor], parameters: Mapping[str, torch.Tensor]) -> list[Use]:
    """In an order that is that of every pass."""
    consumers: dict[Node, list[tuple[Node, int, int]]] = defaultdict(list)  # (operation, input, number of the edge)
    leaves: dict[int, Node] = {}
    seen: set[Node] = set()
    waiting = [output.grad_fn for output in outputs if output.grad_fn is not None]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.name() == "torch::autograd::AccumulateGrad":
            leaves[id(_any(node).variable)] = node
        for place, (child, number) in enumerate(node.next_functions):
            if child is not None:
                consumers[child].append((node, place, number))
                waiting.append(child)
    return [
        use
        for name, parameter in parameters.items()
        if id(parameter) in leaves
        for use in _uses(name, GradientEdge(leaves[id(parameter)], 0), False, parameter.shape, consumers)
    ]


def _uses(name: str, edge: GradientEdge, turns: bool | None, shape: torch.Size, consumers: Any) -> Iterator[Use]:
    for node, place, number in consumers[edge.node]:
        if number != edge.output_nr:
            continue
        kind = _kind(node, place, shape)
        if kind in MATRICES and (turns is None or (kind == "convolution" and not _is_plain(node))):
            raise Unknown(f"{name} goes into {node.name()} in another form")
        if any(getattr(node, f"_saved_{scale}", 1) != 1 for scale in ("alpha", "beta")):
            raise Unknown(f"{name} goes into a scaled {node.name()}")
        if kind is not None:
            yield Use(name, node, kind, edge, turns, shape, _output(node, consumers))
        elif node.name() in FORMS:
            for number, made in enumerate(_shapes(node)):
                yield from _uses(name, GradientEdge(node, number), _turned(node, turns, shape), made, consumers)
        else:
            raise Unknown(f"{name} goes into {node.name()}")


def _kind(node: Node, place: int, shape: torch.Size) -> str | None:
    """None: nothing of the records is in it yet."""
    match node.name().removesuffix("Backward0"), place:
        case ("Addmm", 2) | ("Mm", 1):
            return "product"
        case ("Addmm", 0) | ("Add", _):
            return "added"
        case "Convolution", 1:
            return "convolution"
        case "Convolution", 2:
            return "channels"
        case "NativeLayerNorm", 1:
            return "normalised"
        case "NativeLayerNorm", 2:
            return "added"
        case "Mul", _:
            return ("times other", "times self")[place]
        case "Embedding", 0 if _any(node)._saved_indices.dim() > 1 and len(_any(node)._saved_indices) > 1:
            return "table"
        case "Expand", 0 if _shapes(node)[0][0] > 1 and (len(shape) < len(_shapes(node)[0]) or shape[0] == 1):
            return "added"
    return None


def _turned(node: Node, turns: bool | None, shape: torch.Size) -> bool | None:
    """After this change of form, whether the parameter is transposed."""
    if turns is None or node.name() == "ToCopyBackward0":
        return turns
    is_swap = node.name() in ("TBackward0", "TransposeBackward0") and len(shape) == 2
    is_swap |= node.name() == "PermuteBackward0" and tuple(_any(node)._saved_dims) == (1, 0)
    return not turns if is_swap else None


def _is_plain(convolution: Node) -> bool:
    node = _any(convolution)
    return node._saved_groups == 1 and not node._saved_transposed and len(node._saved_stride) == 2


def _output(node: Node, consumers: Any) -> torch.Size:
    """Rows of a product are flat: a view that follows says what they were. X has as many, in the same order."""
    (shape,) = _shapes(node)[:1]
    if len(shape) == 2 and node.name() in ("AddmmBackward0", "MmBackward0"):
        for after, _, _ in consumers[node]:
            if after.name() in VIEWS and len(viewed := _shapes(after)[0]) > 2 and viewed[-1] == shape[-1]:
                return viewed
    return shape


def _shapes(node: Node) -> list[torch.Size]:
    return [torch.Size(each.shape) for each in _any(node)._input_metadata]


def _any(node: Node) -> Any:
    """With what is kept in it, which the type does not name."""
    return node


def layout_of(forward: Callable[[int], list[torch.Tensor]], parameters: Mapping[str, torch.Tensor]) -> Layout:
    """`forward` gives the outputs of so many records. Unknown: the model does something that has no rule here."""
    few, more = (uses_in(forward(count), parameters) for count in LOOKS)
    same = [(use.name, use.kind) for use in few]
    if same != [(use.name, use.kind) for use in more]:
        raise Unknown("what a parameter goes into depends on the number of records")
    dimensions = []
    for one, other in zip(few, more, strict=True):
        if one.operand != other.operand:
            raise Unknown(f"the form of {one.name} depends on the number of records")
        sizes = list(zip(one.output, other.output, strict=True))
        if [pair for pair in sizes if pair[0] != pair[1]] != [LOOKS]:
            raise Unknown(f"{one.name} goes into something that has not one row per record")
        dimensions.append(sizes.index(LOOKS))
        if one.kind in ("convolution", "channels") and dimensions[-1] != 0:
            raise Unknown(f"{one.name} is a convolution over records")
    matrices = tuple(_work(use) for use in few if use.kind in MATRICES[:2])
    return Layout(tuple(same), tuple(dimensions), _without(few, dimensions), matrices)


def _without(uses: list[Use], dimensions: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    return tuple((*u.output[:d], *u.output[d + 1 :]) for u, d in zip(uses, dimensions, strict=True))


def fits(uses: list[Use], layout: Layout, records: int) -> bool:
    """Whether a pass of so many records does what was seen before."""
    return (
        tuple((use.name, use.kind) for use in uses) == layout.uses
        and _without(uses, layout.records) == layout.sizes
        and all(use.output[d] == records for use, d in zip(uses, layout.records, strict=True))
    )


def _work(use: Use) -> tuple[int, int, int]:
    if use.kind == "product":
        return use.output[:-1].numel() // LOOKS[0], use.operand[0], use.operand[1]
    return use.output[2:].numel(), use.operand[1:].numel(), use.operand[0]


@dataclass(frozen=True)
class Shapes:
    """Of a pass: so many units, of so many records each."""

    units: int
    size: int

    def by_unit(self, rows: torch.Tensor) -> torch.Tensor:
        """(records, ..., d) -> (units, rows of a unit, d)."""
        return rows.reshape(self.units, -1, rows.shape[-1])

    def sums(self, rows: torch.Tensor, records: int, operand: torch.Size) -> torch.Tensor:
        """(units, *operand): what is added up over everything that the operand was spread over."""
        by_record = rows.movedim(records, 0)
        of_units = by_record.reshape(self.units, self.size, *by_record.shape[1:]).sum(1)
        of_units = of_units.unsqueeze(records + 1)  # (units, *the shape of rows, with 1 for the records)
        padded = (1,) * (of_units.dim() - 1 - len(operand)) + tuple(operand)
        spread = [d + 1 for d, size in enumerate(padded) if size == 1 and of_units.shape[d + 1] > 1]
        found: torch.Tensor = of_units.sum(spread) if spread else of_units
        return found.reshape(self.units, *operand)


@dataclass(frozen=True)
class Product:
    """The gradient of a matrix is left^T right; each is (units, rows, width)."""

    left: torch.Tensor
    right: torch.Tensor


@dataclass(frozen=True)
class Table:
    """Tokens (units, rows) and D (units, rows, width) of a table."""

    tokens: torch.Tensor
    D: torch.Tensor


def saved_by(use: Use) -> tuple[torch.Tensor, ...]:
    """X: what the operation has kept for its own derivative, which the backward pass takes from it."""
    node = _any(use.node)
    match use.kind:
        case "product":
            return (node._saved_mat1 if node.name() == "AddmmBackward0" else node._saved_self,)
        case "convolution":
            return (node._saved_input,)
        case "table":
            return (node._saved_indices,)
        case "normalised":
            return (node._saved_input, node._saved_result1, node._saved_result2)
        case "times other":
            return (node._saved_other,)
        case "times self":
            return (node._saved_self,)
    return ()


def read(
    use: Use, saved: tuple[torch.Tensor, ...], D: torch.Tensor, records: int, shapes: Shapes
) -> Product | Table | torch.Tensor:
    """The gradients of each unit by the operand; a tensor has them as they are, (units, *operand)."""
    D = _at_least_float32(D).reshape(use.output)
    match use.kind:
        case "product":
            X = _at_least_float32(saved[0]).reshape(*use.output[:-1], -1)
            return Product(*(shapes.by_unit(rows.movedim(records, 0)) for rows in (X, D)))
        case "convolution":
            return Product(shapes.by_unit(D.flatten(2).mT), shapes.by_unit(_patches(use, saved[0]).mT))
        case "channels":
            return shapes.sums(D.flatten(2).mT, records, use.operand)
        case "table":
            tokens = saved[0].movedim(records, 0).reshape(shapes.units, -1)
            return Table(tokens, shapes.by_unit(D.movedim(records, 0)))
        case "normalised":
            D = D * ((saved[0] - saved[1]) * saved[2])
        case "times other" | "times self":
            D = D * saved[0]
    return shapes.sums(D, records, use.operand)


def _patches(use: Use, images: torch.Tensor) -> torch.Tensor:
    """(records, numbers of a patch, patches)."""
    node, kernel = _any(use.node), use.operand[2:]
    how = {"dilation": node._saved_dilation, "padding": node._saved_padding, "stride": node._saved_stride}
    return F.unfold(_at_least_float32(images), kernel, **how)


def _at_least_float32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
