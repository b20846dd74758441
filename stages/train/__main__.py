"""Train one cell -> runs/CELL/model and training.json. 0 keeps the initial weights, inf is non-private."""

import argparse

import torch

from stages import params
from stages.atomic import new_folder, write_json
from stages.errors import UserError, run
from stages.keys import Cell, data_dir, initial_model_dir
from stages.models import clip as clips
from stages.models.batches import BatchReader
from stages.models.losses import clip_loss
from stages.prepare.format import PreparedSplit
from stages.privacy.facts import Guarantee, PrivacyFacts
from stages.privacy.mechanism import METHODS
from stages.privacy.randomness import Key
from stages.privacy.sampling import PoissonSampling
from stages.train.loop import train


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.train", description=__doc__)
    parser.add_argument("--cell", required=True, help="task/dataset/model/method/eps-E/seed-S")
    cell, p = Cell.parse(parser.parse_args().cell), params.load()
    facts = PrivacyFacts.read(cell.privacy_json)
    clip = clips.load(initial_model_dir(cell.model))

    training = {"cell": str(cell)}
    if cell.epsilon != "0":
        training |= fine_tune(clip, cell, p, facts.guarantee)
    with new_folder(cell.model_dir) as folder:
        clips.save(clip, folder)
    write_json(cell.training_json, training)


def fine_tune(clip: clips.Clip, cell: Cell, p: params.Params, guarantee: Guarantee | None) -> dict:
    """Train in place; returns the public facts of the training."""
    data = PreparedSplit(data_dir(cell.dataset), "train")
    sampling = PoissonSampling(data.units, p.train.batch_size)
    steps = sampling.steps(p.train.epochs)
    mechanism = None
    if guarantee is not None:
        if (guarantee.n, guarantee.q, guarantee.steps) != (sampling.n, sampling.q, steps):
            raise UserError(f"{cell.privacy_json} was made for other data, batch size or epochs; run: dvc repro")
        mechanism = METHODS[cell.method](p.train.clip_norm, guarantee.sigma)

    device = clips.device_of(p.train.device)
    model = clip.model.to(device)
    parameters = clips.trainable_parameters(model, p.train.trainable)
    optimizer = torch.optim.AdamW(
        parameters.values(), lr=p.train.lr, betas=p.train.betas, eps=p.train.eps, weight_decay=p.train.weight_decay
    )
    key = choose_key(cell, p.privacy)
    train(
        model,
        parameters,
        optimizer,
        lambda batch: clip_loss(model, batch.images.to(device), batch.texts, clip.tokenize),
        BatchReader(data, clip),
        sampling,
        steps,
        mechanism,
        key,
    )
    return {
        "steps": steps,
        "trained_parameters": sum(parameter.numel() for parameter in parameters.values()),
        "clip_norm": mechanism and mechanism.clip_norm,
        "sigma": mechanism and mechanism.sigma,
        "key": key.origin,
    }


def choose_key(cell: Cell, privacy: params.Privacy) -> Key:
    """A secret from the operating system; only non-private runs and tests repeat themselves."""
    if privacy.unsafe_noise_seed is not None:
        return Key.fixed_for_tests(privacy.unsafe_noise_seed + cell.seed)
    return Key.from_os() if cell.is_private else Key.fixed_for_tests(cell.seed)


if __name__ == "__main__":
    run(main)
