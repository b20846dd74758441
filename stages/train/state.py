"""What a training step changes, as named tensors: trained parameters and the optimiser's state for each."""

from collections.abc import Mapping

import torch

from stages.distributed.ranks import Ranks
from stages.distributed.shards import split_like, whole
from stages.train.course import MEAN

Parameters = Mapping[str, torch.nn.Parameter]


def snapshot(parameters: Parameters, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """Whole tensors in memory, whatever the device and however they are split; every process must ask."""
    tensors = {f"weights.{name}": p for name, p in parameters.items()}
    for name, p in parameters.items():
        tensors |= {f"optimizer.{name}.{field}": value for field, value in optimizer.state[p].items()}
    return {name: whole(tensor.detach()).cpu().contiguous() for name, tensor in tensors.items()}


@torch.no_grad()
def restore(
    tensors: Mapping[str, torch.Tensor] | None,
    parameters: Parameters,
    optimizer: torch.optim.Optimizer,
    ranks: Ranks,
    averaged: bool = False,
) -> None:
    """Continue from a snapshot of which the first process has the tensors; the others are given them.

    The fields are those of AdamW: a step count, and two tensors like the parameter (plain steps have none); and if the
    weights are `averaged` already, their mean (course.py).
    """

    def given(name: str, like: torch.Tensor, device: torch.device) -> torch.Tensor:
        full = torch.empty(like.shape, dtype=like.dtype) if tensors is None else tensors[name]
        return ranks.from_first(full.to(device))

    counts = isinstance(optimizer, torch.optim.AdamW)
    fields = [*(["exp_avg", "exp_avg_sq"] if counts else []), *([MEAN] if averaged else [])]
    for name, p in parameters.items():
        p.copy_(split_like(p, given(f"weights.{name}", p, p.device)))
        state = {f: split_like(p, given(f"optimizer.{name}.{f}", p, p.device)) for f in fields}
        if counts:  # AdamW keeps it in memory
            state["step"] = given(f"optimizer.{name}.step", torch.zeros(()), p.device).cpu()
        optimizer.state[p] = state
