"""Train one cell -> runs/CELL/model and training.json. 0 keeps the initial weights, inf is non-private."""

import argparse
import math
import secrets
import statistics
from collections import defaultdict

import torch

from stages import params
from stages.atomic import new_folder, write_json
from stages.errors import UserError, run
from stages.keys import ON_FROZEN_TOWERS, WITH_ADAPTERS, Cell, data_dir, features_dir, initial_model_dir
from stages.models import saved
from stages.models.batches import BatchReader, Images, decoded
from stages.models.encoder import Encoder, device_of
from stages.models.features import Features
from stages.models.heads import Heads
from stages.models.objectives import OBJECTIVES, objective_of
from stages.models.parts import merge_adapters, trainable_parameters
from stages.prepare.format import Manifest, PreparedSplit
from stages.privacy.accounting import Plan
from stages.privacy.facts import PrivacyFacts, TrainingFacts
from stages.privacy.gradients import Diagnostics
from stages.privacy.ledger import Charge, Ledger
from stages.privacy.mechanism import METHODS, Mechanism
from stages.privacy.randomness import Key
from stages.privacy.sampling import SAMPLERS
from stages.train.loop import train


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m stages.train", description=__doc__)
    parser.add_argument("--cell", required=True, help="task/dataset/model/method/eps-E/seed-S")
    cell, p = Cell.parse(parser.parse_args().cell), params.load()
    facts = PrivacyFacts.read(cell.privacy_json)
    initial = saved.sha256(initial_model_dir(cell.model))

    if cell.epsilon == "0":
        model = None
        training = TrainingFacts(
            cell=str(cell), privacy=facts, train=None, trained_parameters=0, initial_model=initial, key="none"
        )
    else:
        model, training = fine_tuned(cell, p, facts, initial)
    with new_folder(cell.model_dir) as folder:
        saved.save_changes(model, initial_model_dir(cell.model), folder)
    write_json(cell.training_json, training.model_dump())


def fine_tuned(
    cell: Cell, p: params.Params, facts: PrivacyFacts, initial: str
) -> tuple[torch.nn.Module, TrainingFacts]:
    """The trained model and the public facts of its training."""
    t, data = p.train.on(cell.dataset), PreparedSplit(data_dir(cell.dataset), "train")
    method = t.methods[cell.method]
    plan = plan_of(cell, p, facts, data.units)
    key = choose_key(cell, p.privacy)

    manifest = Manifest.read(data_dir(cell.dataset))
    encoder, images = what_sees(cell, method, data, manifest, initial)
    model = encoder.model.to(device_of(p.compute.device))
    special = speed_up(model, p.compute)
    parameters = trainable_parameters(model, method.trainable, method.lora_rank, cell.seed)
    optimizer = torch.optim.AdamW(
        parameters.values(), lr=method.lr, betas=t.betas, eps=t.eps, weight_decay=t.weight_decay
    )
    objective = objective_of(method.loss, encoder, parameters, manifest.labels, t.precision == "bf16", special)
    reader = BatchReader(data, images)
    figures = defaultdict(list) if p.privacy.unsafe_diagnostics and cell.is_private else None
    write_ahead(cell, p, plan, manifest, key)  # last: what can fail before the first step has not failed
    train(
        model,
        parameters,
        optimizer,
        objective,
        reader,
        plan.sampling,
        plan.steps,
        plan.mechanism if cell.is_private else None,
        key,
        p.compute.records_at_once,
        watch=None if figures is None else lambda step: keep(step, figures),
    )
    without = {"lora_rank"}
    if method.trainable in WITH_ADAPTERS:
        merge_adapters(model)
        without = set()
    used = t.model_dump(exclude={"methods", "overrides"}) | method.model_dump(exclude_none=True, exclude=without)
    return model, TrainingFacts(
        cell=str(cell),
        privacy=facts,
        train=used,
        trained_parameters=sum(parameter.numel() for parameter in parameters.values()),
        initial_model=initial,
        key=key.origin,
        diagnostics=figures,
    )


def what_sees(
    cell: Cell, method: params.Method, data: PreparedSplit, manifest: Manifest, initial: str
) -> tuple[Encoder, Images]:
    """The initial model and its view of the images: what frozen towers made of them, or the pixels."""
    folder = initial_model_dir(cell.model)
    if method.trainable in ON_FROZEN_TOWERS:
        features = Features(features_dir(cell.dataset, cell.model))
        features.require(manifest.data_hash, initial)
        return features.encoder(saved.heads(folder)), features.images("train")
    encoder = saved.load(folder)
    return encoder, decoded(data, encoder)


def speed_up(model: torch.nn.Module, compute: params.Compute) -> bool:
    """As compute asks; whether the model is now of a kind that vmap cannot take."""
    if isinstance(model, Heads):
        return False  # two matrices: nothing to gain
    if compute.gradient_checkpointing:
        model.set_grad_checkpointing(True)
    if compute.compile:
        model.compile(dynamic=True)  # batches vary in size
    return compute.gradient_checkpointing or compute.compile


def plan_of(cell: Cell, p: params.Params, facts: PrivacyFacts, n: int) -> Plan:
    """What will be done. A calibration that was made for anything else is refused."""
    method, g = p.train.on(cell.dataset).methods[cell.method], facts.guarantee
    sampling = SAMPLERS[p.privacy.sampling](n, method.batch_size)
    mechanism = mechanism_of(cell.method, method, g.sigma if g else 0.0)
    plan = Plan(sampling, mechanism, method.steps or sampling.steps(method.epochs))
    planned = (facts.target, facts.method, g and (g.n, g.batch_size, g.steps, g.sensitivity, g.sampler))
    needed = (n, method.batch_size, plan.steps, plan.factor, p.privacy.sampling) if cell.is_private else None
    if planned != (cell.epsilon, cell.method, needed):
        raise UserError(f"{cell.privacy_json} was made for other data, values or another cell; run: dvc repro")
    return plan


def mechanism_of(name: str, method: params.Method, sigma: float) -> Mechanism:
    own = {"groups": method.groups} if isinstance(method, params.GroupMethod) else {}
    mechanism = METHODS[name](clip_norm=method.clip_norm, sigma=sigma, **own)
    mechanism.accept(method.loss, OBJECTIVES[method.loss].is_sum_over_records)
    return mechanism


def write_ahead(cell: Cell, p: params.Params, plan: Plan, manifest: Manifest, key: Key) -> None:
    """Charge the whole planned run to the data's ledger before the first step; over budget, nothing starts."""
    charge = Charge(
        cell=str(cell),
        private=cell.is_private and key.origin == "os" and not p.privacy.unsafe_diagnostics,
        n=plan.sampling.n,
        q=plan.sampling.q,
        steps=plan.steps,
        sigma=plan.sigma,
        clip_norm=plan.mechanism.clip_norm,
        z=plan.z if cell.is_private else 0.0,
        sampler=p.privacy.sampling,
    )
    delta = p.privacy.delta_or_none or 1 / (2 * plan.sampling.n)
    Ledger(manifest.train.sha256).charge(secrets.token_hex(8), charge, delta, p.privacy.budget)


def choose_key(cell: Cell, privacy: params.Privacy) -> Key:
    """A secret from the operating system; only non-private runs and tests repeat themselves."""
    if privacy.unsafe_noise_seed is not None:
        return Key.from_seed(privacy.unsafe_noise_seed + cell.seed)
    return Key.from_os() if cell.is_private else Key.from_seed(cell.seed)


def keep(step: Diagnostics, figures: dict[str, list[float]]) -> None:
    """Private figures, for debugging: only with unsafe_diagnostics, which the run is tagged with."""
    finite = [i for i, norm in enumerate(step.norms) if math.isfinite(norm) and math.isfinite(step.losses[i])]
    figures["batch_size"].append(step.records)
    figures["mean_loss"].append(statistics.fmean(step.losses[i] for i in finite) if finite else 0.0)
    figures["median_norm"].append(statistics.median(step.norms[i] for i in finite) if finite else 0.0)
    figures["not_finite"].append(step.not_finite)


if __name__ == "__main__":
    run(main)
