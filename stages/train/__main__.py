"""Train one cell -> runs/CELL/model and training.json. 0 keeps the initial weights, inf is non-private."""

import argparse
import secrets

import torch

from stages import params
from stages.atomic import new_folder, write_json
from stages.errors import UserError, run
from stages.keys import Cell, data_dir, initial_model_dir
from stages.models import clip as clips
from stages.models.batches import BatchReader
from stages.models.losses import clip_loss
from stages.prepare.format import Manifest, PreparedSplit
from stages.privacy.facts import PrivacyFacts, TrainingFacts
from stages.privacy.ledger import Charge, Ledger
from stages.privacy.mechanism import METHODS, BatchClipping
from stages.privacy.randomness import Key
from stages.privacy.sampling import PoissonSampling
from stages.train.loop import train


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.train", description=__doc__)
    parser.add_argument("--cell", required=True, help="task/dataset/model/method/eps-E/seed-S")
    cell, p = Cell.parse(parser.parse_args().cell), params.load()
    facts = PrivacyFacts.read(cell.privacy_json)
    clip = clips.load(initial_model_dir(cell.model))

    training = TrainingFacts(cell=str(cell), privacy=facts, train=None, trained_parameters=0, key="none")
    if cell.epsilon != "0":
        training = fine_tune(clip, cell, p, facts)
    with new_folder(cell.model_dir) as folder:
        clips.save(clip, folder)
    write_json(cell.training_json, training.model_dump())


def fine_tune(clip: clips.Clip, cell: Cell, p: params.Params, facts: PrivacyFacts) -> TrainingFacts:
    """Train in place; returns the public facts of the training."""
    data = PreparedSplit(data_dir(cell.dataset), "train")
    sampling = PoissonSampling(data.units, p.train.batch_size)
    steps = sampling.steps(p.train.epochs)
    mechanism = mechanism_of(cell, facts, p.train.clip_norm, sampling, steps)
    key = choose_key(cell, p.privacy)

    device = clips.device_of(p.compute.device)
    model = clip.model.to(device)
    parameters = clips.trainable_parameters(model, p.train.trainable)
    optimizer = torch.optim.AdamW(
        parameters.values(), lr=p.train.lr, betas=p.train.betas, eps=p.train.eps, weight_decay=p.train.weight_decay
    )
    reader = BatchReader(data, clip)
    write_ahead(cell, p, mechanism, sampling, steps, key)  # last: what can fail before the first step has not failed
    train(
        model,
        parameters,
        optimizer,
        lambda batch: clip_loss(model, batch.images.to(device), batch.texts, clip.tokenize),
        reader,
        sampling,
        steps,
        mechanism,
        key,
    )
    return TrainingFacts(
        cell=str(cell),
        privacy=facts,
        train=p.train.model_dump(),
        trained_parameters=sum(parameter.numel() for parameter in parameters.values()),
        key=key.origin,
    )


def mechanism_of(
    cell: Cell, facts: PrivacyFacts, clip_norm: float, sampling: PoissonSampling, steps: int
) -> BatchClipping | None:
    """The mechanism that the calibration is for; None without privacy. A calibration for anything else is refused."""
    g = facts.guarantee
    planned = (facts.target, facts.method, g and (g.n, g.q, g.steps, g.sensitivity, g.sampler))
    method = METHODS[cell.method]
    needed = (sampling.n, sampling.q, steps, method.sensitivity_factor, sampling.name) if cell.is_private else None
    if planned != (cell.epsilon, cell.method, needed):
        raise UserError(f"{cell.privacy_json} was made for other data, values or another cell; run: dvc repro")
    return method(clip_norm, g.sigma) if g else None


def write_ahead(
    cell: Cell, p: params.Params, mechanism: BatchClipping | None, sampling: PoissonSampling, steps: int, key: Key
) -> None:
    """Charge the whole planned run to the data's ledger before the first step; over budget, nothing starts."""
    sigma = mechanism.sigma if mechanism else 0.0
    charge = Charge(
        cell=str(cell),
        private=mechanism is not None and key.origin == "os",
        n=sampling.n,
        q=sampling.q,
        steps=steps,
        sigma=sigma,
        clip_norm=p.train.clip_norm,
        z=sigma / METHODS[cell.method].sensitivity_factor,
    )
    delta = p.privacy.delta_or_none or 1 / (2 * sampling.n)
    data_hash = Manifest.read(data_dir(cell.dataset)).train.sha256
    Ledger(data_hash).charge(secrets.token_hex(8), charge, delta, p.privacy.budget)


def choose_key(cell: Cell, privacy: params.Privacy) -> Key:
    """A secret from the operating system; only non-private runs and tests repeat themselves."""
    if privacy.unsafe_noise_seed is not None:
        return Key.from_seed(privacy.unsafe_noise_seed + cell.seed)
    return Key.from_os() if cell.is_private else Key.from_seed(cell.seed)


if __name__ == "__main__":
    run(main)
