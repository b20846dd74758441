"""Algorithm 1: sample, gradient of the whole batch's loss, clip, noise, step. Nothing else sees the private data.

What leaves this module is the trained weights. Losses, norms and batch sizes are functions of the private data and are
neither logged nor returned (privacy.md section 1).
"""

import math
from collections.abc import Callable, Mapping

import torch
from tqdm import trange

from stages.models.batches import Batch, BatchReader
from stages.privacy.mechanism import BatchClipping
from stages.privacy.randomness import Key
from stages.privacy.sampling import PoissonSampling

MAX_LOGIT_SCALE = math.log(100)  # as in CLIP; a public constant applied after the noise


def train(
    model: torch.nn.Module,
    parameters: Mapping[str, torch.nn.Parameter],
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[[Batch], torch.Tensor],
    reader: BatchReader,
    sampling: PoissonSampling,
    steps: int,
    mechanism: BatchClipping | None,
    key: Key,
) -> None:
    """Run T steps in place. `mechanism` None is non-private training: no clip, no noise."""
    fixed = _not_trained(model, parameters)
    training_mode(model)
    for t in trange(steps, desc="train", unit=" steps", disable=None):
        units = sampling.sample(key.stream("sample", t))  # line 3
        batch = reader.batch(units, key.stream("text", t))
        gradients = gradients_of(loss_of, batch, parameters)  # line 4
        if mechanism is not None:
            mechanism.clip_(gradients)  # line 5
            mechanism.add_noise_(gradients, key.stream("noise", t))  # line 6
        optimizer.step()  # line 7
        if "logit_scale" in parameters:
            parameters["logit_scale"].data.clamp_(max=MAX_LOGIT_SCALE)
    _assert_unchanged(model, fixed)


def gradients_of(
    loss_of: Callable[[Batch], torch.Tensor], batch: Batch, parameters: Mapping[str, torch.nn.Parameter]
) -> list[torch.Tensor]:
    """d loss / d parameters, in `parameter.grad`. An empty batch has gradient zero; the step still happens."""
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    if len(batch):
        loss_of(batch).backward()
    return [parameter.grad for parameter in parameters.values()]


def training_mode(model: torch.nn.Module) -> None:
    """Training mode, except for batch normalisation: its running averages would carry private data without noise."""
    model.train()
    for module in model.modules():
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
            module.eval()


def _not_trained(model: torch.nn.Module, parameters: Mapping[str, torch.nn.Parameter]) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items() if name not in parameters}


def _assert_unchanged(model: torch.nn.Module, fixed: Mapping[str, torch.Tensor]) -> None:
    """Only what went through the mechanism may differ from the public initial weights."""
    state = model.state_dict()
    changed = [name for name, tensor in fixed.items() if not torch.equal(state[name], tensor)]
    if changed:
        raise RuntimeError(f"tensors changed outside the private mechanism: {', '.join(changed)}; nothing was saved")
