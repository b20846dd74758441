"""Public, non-private initialisation -> models/NAME. No private data are read.

A model of the section `pretrain` learns from public data, one of `align` has pretrained towers and gets projections
fitted to public data, one of `weights` is published as it is.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from tqdm import trange

from stages import params
from stages.atomic import new_folder
from stages.errors import UserError, run
from stages.keys import data_dir, initial_model_dir
from stages.models import clip as clips
from stages.models.batches import BatchReader, decoded
from stages.models.objectives import Contrastive
from stages.models.parts import trainable_parameters
from stages.prepare.format import PreparedSplit
from stages.pretrain.alignment import aligned


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m stages.pretrain", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="a name in `pretrain`, `align` or `weights` of params.yaml")
    name = parser.parse_args().model
    p = params.load()
    match p.models.get(name):
        case params.Pretrain() as config:
            clip = pretrained(config, p.compute.device)
        case params.Align() as config:
            data, device = data_dir(config.data), clips.device_of(p.compute.device)
            clip = aligned(Path(config.architecture), data, config.ridge, p.compute.records_at_once, device)
        case params.Weights() as config:
            clip = clips.pretrained(config.architecture, config.pretrained, config.file and Path(config.file))
        case _:
            raise UserError(
                f"model {name!r} is in none of pretrain, align and weights of params.yaml; known: {', '.join(p.models)}"
            )
    with new_folder(initial_model_dir(name)) as folder:
        clips.save(clip, folder)


def pretrained(config: params.Pretrain, device_name: str) -> clips.Clip:
    torch.manual_seed(config.seed)
    rng = np.random.default_rng(config.seed)
    data = PreparedSplit(data_dir(config.data), "train")
    clip = clips.create(config.architecture)
    reader = BatchReader(data, decoded(data, clip))
    device = clips.device_of(device_name)
    model = clip.model.to(device).train()
    parameters = trainable_parameters(model, "all")
    objective = Contrastive(clip, parameters)
    present = torch.ones(config.batch_size, dtype=torch.bool, device=device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, config.lr, total_steps=config.steps, cycle_momentum=False)

    for _ in trange(config.steps, desc=f"pretrain on {config.data}", unit=" steps", disable=None):
        batch = reader.batch(rng.integers(data.units, size=config.batch_size), rng)
        features = objective.features(parameters, objective.records(batch), merge=True)
        loss = objective.loss(parameters, features, present)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
    return clip


if __name__ == "__main__":
    run(main)
