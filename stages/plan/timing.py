"""How long a private step takes on this machine, from a few of them on random images."""

import dataclasses
import functools
import json
import time
from typing import Any

import numpy as np
import torch

from stages import params
from stages.data.rows import Labels
from stages.keys import ON_FROZEN_TOWERS, initial_model_dir
from stages.losses import About, named, objective_of
from stages.models import families, saved
from stages.models.bank import Bank
from stages.models.batches import Batch
from stages.models.encoder import WholeEncoder, device_of
from stages.models.heads import Heads, trunks
from stages.models.parts import trainable_parameters
from stages.privacy.randomness import Key
from stages.train.cell import mechanism_of, speed_up
from stages.train.loop import Work, private_gradient

SIZES = (1, 4, 16, 64, 256, 1024, 4096)
ENOUGH = 2.0  # seconds: larger batches are not tried, their time is extrapolated
LABELS = Labels(classes=("cat", "dog"), templates=("a photo of a {}.",))


def seconds_a_step(
    name: str,
    config: params.Pretrain | params.Aligned | params.Published,
    method_name: str,
    train: params.Train,
    compute: params.Compute,
    has_questions: bool = False,
    pairs: int = 0,
) -> float:
    """Batches of growing size up to the method's, or until a step takes long; from there on a straight line.

    `pairs` are those of the bank beside the model.
    """
    same_time = train.model_dump(exclude={"overrides"}) | {"weight_decay": 0.0}  # datasets that differ in these alone
    for method in same_time["methods"].values():
        method.update(epochs=None, steps=1)
    return _seconds(name, config, method_name, json.dumps(same_time), compute.model_dump_json(), has_questions, pairs)


@functools.cache
def _seconds(
    name: str, config, method_name: str, train_json: str, compute_json: str, has_questions: bool, pairs: int
) -> float:
    train, compute = params.Train.model_validate_json(train_json), params.Compute.model_validate_json(compute_json)
    step = _step(_model(name, config), method_name, train, compute, has_questions, pairs)
    wanted = train.methods[method_name].batch_size
    measured: list[tuple[int, float]] = []
    for size in [*(s for s in SIZES if s < wanted), wanted]:
        step(size)
        started = time.perf_counter()
        step(size)
        measured.append((size, time.perf_counter() - started))
        if measured[-1][1] > ENOUGH and len(measured) > 1:
            break
    (few, short), (many, long) = measured[-2] if len(measured) > 1 else (0, 0.0), measured[-1]
    return max(long, long + (wanted - many) * (long - short) / (many - few))


def _model(name: str, config) -> WholeEncoder:
    """The model as it was made; before that, one of its architecture: weights make no difference to the time."""
    if saved.exists(initial_model_dir(name)):
        return saved.load(initial_model_dir(name))
    if isinstance(config, params.Aligned | params.Published):
        return families.of(config.model_dump()).sketch(config, LABELS.captions(0))
    return saved.create(config.architecture, LABELS.captions(0))


def _step(
    encoder: WholeEncoder,
    method_name: str,
    train: params.Train,
    compute: params.Compute,
    has_questions: bool = False,
    pairs: int = 0,
):
    method, device = train.methods[method_name], device_of(compute.device)
    model = encoder.model.to(device).eval()
    example, said = encoder.example()
    shape, tokenize, labels = example.shape, encoder.tokenize, LABELS.model_copy(update={"texts": said})
    if method.trainable in ON_FROZEN_TOWERS:
        with torch.no_grad(), trunks(model):
            image = model.encode_image(torch.zeros(1, *shape, device=device))
            text = model.encode_text(encoder.tokenize([said[0]]).to(device))
        model, shape, tokenize = (
            Heads(dict(model.named_parameters())).to(device),
            image.shape[1:],
            lambda texts: text.cpu().repeat(len(texts), 1),
        )
    special = speed_up(model, compute)
    bank = _any_bank(model, tokenize(list(said[:1])), pairs) if named(method.loss).needs_bank else None
    about = About(labels, has_questions, method.model_dump(exclude_none=True), bank)
    reached = functools.partial(named(method.loss).reaches, about=about)
    parameters = trainable_parameters(model, method.trainable, method.lora_rank, reached=reached)
    headed = dataclasses.replace(encoder, model=model, tokenize=tokenize)
    objective = objective_of(method.loss, headed, parameters, about, train.precision == "bf16", special)
    optimizer = torch.optim.AdamW(parameters.values(), lr=0.0)
    mechanism, key = mechanism_of(method_name, method, sigma=1.0), Key.from_os()

    def step(drawn: int) -> None:
        count = drawn * method.views
        texts, labels = [said[i % 2] for i in range(count)], [i % 2 for i in range(count)]
        asked = [[("what is it?", "a cat")]] * count if has_questions else None
        records = objective.records(Batch(torch.rand(count, *shape), texts, labels, asked))
        units = mechanism.assign(np.arange(drawn), key, 0)
        work, at_once, views = Work(np.repeat(units, method.views)), compute.records_at_once, method.views
        gradients, _ = private_gradient(objective, parameters, records, work, mechanism, key, 0, at_once, drawn, views)
        for parameter, g in zip(parameters.values(), gradients, strict=True):
            parameter.grad = g
        optimizer.step()

    return step


@torch.no_grad()
def _any_bank(model: Any, tokens: torch.Tensor, pairs: int) -> Bank:
    """As large as the one that will be there; what is in it makes no difference to the time."""
    feature = model.encode_text(tokens.to(next(model.parameters()).device), normalize=True)
    return Bank(feature.expand(pairs, -1), feature.expand(pairs, -1), [()] * pairs, "", "")
