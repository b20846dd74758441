"""A private step on a GPU brings nothing of the size of a gradient to the host.

On torch's `meta` device a tensor has no content, so whoever looks at one, or mixes it with tensors of the host, fails.
"""

import contextlib
from functools import partial

import numpy as np
import pytest
import torch

from stages.losses import About, named, objective_of
from stages.models import saved
from stages.models.batches import Batch
from stages.models.parts import trainable_parameters
from stages.privacy import gradients, noise, onepass
from stages.privacy.methods import METHODS
from stages.privacy.randomness import Key
from stages.train.loop import Work, private_gradient
from tests.privacy.test_onepass import CONFIGS, LABELS, TEXTS

SIZE = 12
CASES = [
    ("batch", "contrastive", "all", "tiny-clip"),
    ("group", "contrastive", "no-token-table", "tiny-clip"),
    ("example", "prompts", "image-tower", "tiny-clip"),
    ("example", "writing", "image-tower+decoder", "tiny-blip"),
    ("group", "contrastive", "all", "tiny-blip"),
    ("batch", "sigmoid", "all", "tiny-siglip"),
]


def on_meta(steps, grid, std, key, t, tensor, place) -> torch.Tensor:
    assert steps.device.type == "meta"
    return torch.empty_like(steps, dtype=torch.float32)


def step(method: str, loss: str, part: str, config: str, at_once: int) -> None:
    torch.manual_seed(0)
    encoder = saved.create(str(CONFIGS / config), TEXTS)
    encoder.model.eval().to("meta")
    about = About(LABELS)
    trained = trainable_parameters(encoder.model, part, reached=partial(named(loss).reaches, about=about))
    objective = objective_of(loss, encoder, trained, about)
    optimizer = torch.optim.AdamW(trained.values())
    images = torch.randn(SIZE, *encoder.example()[0].shape)
    records = objective.records(Batch(images, [TEXTS[i % 6] for i in range(SIZE)], [i % 3 for i in range(SIZE)]))
    assert {tensor.device.type for tensor in records.values()} == {"meta"}
    settings = {"clip_norm": 0.1, "sigma": 1.0} | ({"groups": 4} if method == "group" else {})
    mechanism, key = METHODS[method](**settings), Key.from_seed(0)
    units = mechanism.assign(np.arange(SIZE), key, 0)
    found, _ = private_gradient(objective, trained, records, Work(units), mechanism, key, 0, at_once, SIZE)
    for parameter, g in zip(trained.values(), found, strict=True):
        assert g.device.type == "meta" and g.shape == parameter.shape
        parameter.grad = g
    optimizer.step()


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.setitem(noise.ON_DEVICE, "meta", lambda: on_meta)
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())  # which knows no such device
    monkeypatch.setattr(onepass, "require_apart", lambda *_: None)  # compares contents, of a few small passes
    # Equal tokens are found on the host: they are few.
    monkeypatch.setattr(
        torch, "unique", lambda tokens, dim, return_inverse: (tokens, torch.arange(len(tokens), device=tokens.device))
    )


@pytest.mark.parametrize("at_once", [5, 256], ids=["in pieces", "whole"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case))
def test_nothing_of_a_step_is_looked_at_by_the_host(case, at_once, kernel):
    step(*case, at_once)


@pytest.mark.parametrize("method", ["batch", "example"])
def test_a_look_at_a_gradient_is_noticed(method, kernel, monkeypatch):
    real = gradients.clipped_sum

    def looking(*given):
        total, figures = real(*given)
        return [g.cpu() for g in total], figures

    monkeypatch.setattr("stages.train.loop.clipped_sum", looking)
    loss = {"batch": "contrastive", "example": "prompts"}[method]
    with pytest.raises((NotImplementedError, RuntimeError), match="meta"):
        step(method, loss, "image-tower", "tiny-clip", 256)
