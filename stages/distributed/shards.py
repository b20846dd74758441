"""Tensors of which every process holds a part (FSDP2), and gradients for them beside those of whole tensors.

A split tensor is a DTensor: cut along its first dimension into equal pieces, the last ones shorter or empty. Its
gradient comes out of a backward pass already summed over the processes and cut in the same way.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from stages.distributed.ranks import Ranks

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor
    from typing_extensions import TypeIs


def is_split(tensor: torch.Tensor) -> "TypeIs[DTensor]":
    return hasattr(tensor, "placements")  # a DTensor; importing its class takes as long as a small training


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this process has of it."""
    return tensor.to_local() if is_split(tensor) else tensor


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of it; every process must ask."""
    return tensor.full_tensor() if is_split(tensor) else tensor


def split_like(tensor: torch.Tensor, full: torch.Tensor) -> torch.Tensor:
    """This process's part of `full`, which is whole on every process."""
    if not is_split(tensor):
        return full
    start = first_row(tensor)
    return part_of(tensor, full[start : start + len(tensor.to_local())])


def part_of(tensor: torch.Tensor, piece: torch.Tensor) -> torch.Tensor:
    """`piece` as the part that this process has of a tensor that is split as `tensor` is."""
    if not is_split(tensor):
        return piece
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        piece, tensor.device_mesh, tensor.placements, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def first_row(tensor: "DTensor") -> int:
    rows, world = len(tensor), tensor.device_mesh.size()
    return min(rows, tensor.device_mesh.get_local_rank() * -(-rows // world))


def place(tensor: torch.Tensor) -> int:
    """Where this process's part begins in the whole tensor, counted in numbers."""
    return first_row(tensor) * (tensor.numel() // len(tensor)) if is_split(tensor) else 0


def shard(model: torch.nn.Module, trained: Mapping[str, torch.nn.Parameter], device: torch.device, world: int) -> None:
    """Split what is trained, layer by layer. What is frozen, and single numbers, stay whole on every process: frozen
    towers are used by one process at a time, and a split one would wait for all the others.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    mesh = init_device_mesh(device.type, (world,))
    ignored = {p for name, p in model.named_parameters() if name not in trained or p.dim() == 0}
    for layers in [m for m in model.modules() if isinstance(m, torch.nn.ModuleList)]:
        for layer in layers:
            if any(p not in ignored for p in layer.parameters()):
                fully_shard(layer, mesh=mesh, ignored_params=ignored & set(layer.parameters()))
    fully_shard(model, mesh=mesh, ignored_params=ignored)
    for module in model.modules():
        if isinstance(module, FSDPModule):  # the sum over processes, not their mean
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


class Gradients:
    """Gathers the gradient of one unit, piece by piece; what comes out is the same sum on every process."""

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        direct: Sequence[torch.Tensor],
        found: Sequence[torch.Tensor],
        ranks: Ranks,
    ):
        """`found` are derivatives of the loss by `direct`: every process has them, so only the first adds them."""
        self._values, self._direct, self._ranks = list(parameters.values()), list(direct), ranks
        self._found = [f if ranks.is_first else torch.zeros_like(f) for f in found]
        for p in self._values:
            p.grad = None

    def pull_back(self, outputs: list[torch.Tensor], cotangents: list[torch.Tensor]) -> None:
        pairs = [(o, c) for o, c in zip(outputs, cotangents, strict=True) if o.requires_grad]  # a frozen tower's do not
        outputs, cotangents = map(list, zip(*pairs, strict=True))
        if any(map(is_split, self._values)):
            torch.autograd.backward(outputs, cotangents)  # FSDP sums and cuts what goes into .grad
            return
        parts = torch.autograd.grad(outputs, self._direct, cotangents, materialize_grads=True)
        for total, part in zip(self._found, parts, strict=True):
            total.add_(part)

    def summed(self) -> list[torch.Tensor]:
        """One tensor a parameter, in their order: all of it, or this process's part."""
        whole_ones = iter(self._ranks.sum(self._found))
        result = []
        for p in self._values:
            if is_split(p):
                result.append(torch.zeros_like(local(p)) if p.grad is None else local(p.grad))
            else:
                result.append(next(whole_ones))
            p.grad = None
        return result
