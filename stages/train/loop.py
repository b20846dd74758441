"""Algorithm 1: sample, gradient of each clip unit, clip, noise, step. Nothing else sees the private data.

What leaves this module is the trained weights. Losses, norms and batch sizes are functions of the private data: they
are neither logged nor kept, unless the caller gives a `watch` for them (privacy.md section 1).
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from tqdm import trange

from stages.models.batches import BatchReader
from stages.privacy import factored
from stages.privacy.gradients import Diagnostics, Objective, clipped_sum, gradient, grid_of
from stages.privacy.mechanism import Mechanism
from stages.privacy.noise import noised
from stages.privacy.randomness import Key
from stages.privacy.sampling import Sampling

LOGIT_SCALE_RANGE = (-math.inf, math.log(100))  # as in CLIP; public constants applied after the noise


def train(
    model: torch.nn.Module,
    parameters: Mapping[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    objective: Objective,
    reader: BatchReader,
    sampling: Sampling,
    steps: int,
    mechanism: Mechanism | None,
    key: Key,
    at_once: int,
    watch: Callable[[Diagnostics], None] | None = None,
) -> None:
    """Run T steps in place. `mechanism` None is non-private training: the gradient of the whole batch, as it is."""
    fixed = _not_trained(model, parameters)
    # No dropout: features must be the same in both passes of a batch in pieces. Batch normalisation keeps its public
    # averages: they would carry private data without noise.
    model.eval()
    for t in trange(steps, desc="train", unit=" steps", disable=None):
        drawn = sampling.sample(key, t)  # line 3
        records = objective.records(reader.batch(drawn, key.stream("text", t))) if len(drawn) else {}
        if mechanism is None:
            gradients = plain_gradient(objective, parameters, records, at_once)
        else:
            units = mechanism.assign(drawn, sampling.n, key.stream("unit", t))
            gradients, figures = private_gradient(objective, parameters, records, units, mechanism, key, t, at_once)
            if watch:
                watch(figures)
        for parameter, g in zip(parameters.values(), gradients, strict=True):
            parameter.grad = g.to(parameter.dtype)
        optimizer.step()  # line 7
        if "logit_scale" in parameters:
            parameters["logit_scale"].data.clamp_(*getattr(model, "logit_scale_range", LOGIT_SCALE_RANGE))
    _assert_unchanged(model, fixed)


def private_gradient(
    objective: Objective,
    parameters: Mapping[str, torch.nn.Parameter],
    records: Mapping[str, torch.Tensor],
    units: np.ndarray,
    mechanism: Mechanism,
    key: Key,
    t: int,
    at_once: int,
) -> tuple[list[torch.Tensor], Diagnostics]:
    """Lines 4 to 6 of Algorithm 1. An empty batch is noise alone. The figures beside it are private."""
    C = mechanism.clip_norm
    summed = factored.clipped_sum if objective.factors else clipped_sum
    total, figures = summed(objective, parameters, records, units, C, at_once)  # lines 4 and 5
    return noised(total, grid_of(C), mechanism.sigma * C, key, t), figures  # line 6


def plain_gradient(
    objective: Objective,
    parameters: Mapping[str, torch.nn.Parameter],
    records: Mapping[str, torch.Tensor],
    at_once: int,
) -> list[torch.Tensor]:
    """An empty batch has gradient zero; the step still happens."""
    if not records:
        return [torch.zeros_like(parameter) for parameter in parameters.values()]
    return gradient(objective, parameters, records, at_once)[0]


def _not_trained(model: torch.nn.Module, parameters: Mapping[str, torch.nn.Parameter]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items() if name not in parameters}


def _assert_unchanged(model: torch.nn.Module, fixed: Mapping[str, torch.Tensor]) -> None:
    """Only what went through the mechanism may differ from the public initial weights."""
    state = model.state_dict()
    changed = [name for name, tensor in fixed.items() if not torch.equal(state[name], tensor)]
    if changed:
        raise RuntimeError(f"tensors changed outside the private mechanism: {', '.join(changed)}; nothing was saved")
