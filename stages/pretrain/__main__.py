"""Public, non-private initialisation: a CLIP from its config, trained on public data -> models/NAME."""

import argparse

import numpy as np
import torch
from tqdm import trange

from stages import params
from stages.atomic import new_folder
from stages.errors import UserError, run
from stages.keys import data_dir, initial_model_dir
from stages.models import clip as clips
from stages.models.batches import BatchReader
from stages.models.objectives import Contrastive
from stages.prepare.format import PreparedSplit


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.pretrain", description=__doc__)
    parser.add_argument("--model", required=True, help="a name in the section `pretrain` of params.yaml")
    name = parser.parse_args().model
    p = params.load()
    if name not in p.pretrain:
        raise UserError(f"model {name!r} is not in the section pretrain of params.yaml; known: {', '.join(p.pretrain)}")

    clip = pretrained(p.pretrain[name], p.compute.device)
    with new_folder(initial_model_dir(name)) as folder:
        clips.save(clip, folder)


def pretrained(config: params.Pretrain, device_name: str) -> clips.Clip:
    torch.manual_seed(config.seed)
    rng = np.random.default_rng(config.seed)
    data = PreparedSplit(data_dir(config.data), "train")
    clip = clips.create(config.architecture)
    reader = BatchReader(data, clip)
    device = clips.device_of(device_name)
    model = clip.model.to(device).train()
    parameters = clips.trainable_parameters(model, "all")
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
