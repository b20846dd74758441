"""A model that learns from public data, by the loss that its family names."""

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module

import numpy as np
import torch

from stages import params, progress
from stages.data.prepared import PreparedSplit
from stages.keys import LOSSES, data_dir
from stages.losses import About, named, objective_of
from stages.models import families, saved
from stages.models.batches import Batch, BatchReader, decoded
from stages.models.encoder import WholeEncoder, device_of
from stages.models.kinds import config_folder
from stages.models.parts import trainable_parameters


def pretrained(config: params.Pretrain, device_name: str) -> WholeEncoder:
    torch.manual_seed(config.seed)
    rng = np.random.default_rng(config.seed)
    data = PreparedSplit(data_dir(config.data), "train")
    encoder = saved.create(config.architecture, _texts(data))
    reader = BatchReader(data, decoded(data, encoder), asks=rng if data.questions(0) else None)
    model = encoder.model.to(device_of(device_name)).train()
    loss_of = _loss(encoder, families.of_folder(config_folder(config.architecture)).pretraining(encoder))
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, config.lr, total_steps=config.steps, cycle_momentum=False)

    def draws(places: np.ndarray, numbers: int) -> np.ndarray:
        return rng.random((data.units, numbers))[places]

    for _ in progress.bar(range(config.steps), f"pretrain on {config.data}", "steps"):
        loss = loss_of(reader.batch(rng.integers(data.units, size=config.batch_size), draws))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
    return encoder


def _loss(encoder: WholeEncoder, name: str) -> Callable[[Batch], torch.Tensor]:
    if name not in LOSSES:
        return partial(import_module(f"stages.pretrain.{name}").loss, encoder)
    parameters = trainable_parameters(encoder.model, "all", reached=partial(named(name).reaches, about=About()))
    objective = objective_of(name, encoder, parameters, About())

    def loss(batch: Batch) -> torch.Tensor:
        records = objective.records(batch)
        present = torch.ones(len(batch), dtype=torch.bool, device=records["images"].device)
        return objective.loss(parameters, objective.features(parameters, records, merge=True), present)

    return loss


def _texts(data: PreparedSplit) -> Iterator[str]:
    return (text for row in range(data.rows) for text in data.texts_and_label(row)[0])
