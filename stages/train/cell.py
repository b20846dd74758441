"""A cell's training put together: model, data, plan, key and charge, then the loop, then the outputs."""

import math
import statistics
from collections import defaultdict

import torch

from stages import params
from stages.atomic import new_folder, write_json
from stages.errors import UserError
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
from stages.privacy.mechanism import METHODS, Mechanism
from stages.privacy.ranks import Ranks
from stages.privacy.sampling import SAMPLERS
from stages.privacy.shards import is_split, shard, whole
from stages.train.beginning import begun
from stages.train.checkpoints import WRITING_FAILED
from stages.train.keeper import Keeper, stops_between_steps
from stages.train.loop import train
from stages.train.state import restore


def keep_initial(cell: Cell, facts: PrivacyFacts) -> None:
    """Epsilon 0: nothing is trained."""
    initial = saved.sha256(initial_model_dir(cell.model))
    nothing = TrainingFacts(
        cell=str(cell), privacy=facts, train=None, trained_parameters=0, initial_model=initial, key="none"
    )
    write_outputs(cell, None, nothing)


def fine_tune(cell: Cell, p: params.Params, facts: PrivacyFacts, ranks: Ranks) -> None:
    """Train, and write the outputs; goes on with a training that was interrupted."""
    t, data = p.train.on(cell.dataset), PreparedSplit(data_dir(cell.dataset), "train")
    method, manifest = t.methods[cell.method], Manifest.read(data_dir(cell.dataset))
    plan = plan_of(cell, p, facts, data.units)
    initial = saved.sha256(initial_model_dir(cell.model))
    without = set() if method.trainable in WITH_ADAPTERS else {"lora_rank"}
    used = t.model_dump(exclude={"methods", "overrides"}) | method.model_dump(exclude_none=True, exclude=without)
    keeps_figures = p.privacy.unsafe_diagnostics and cell.is_private
    refuse_what_processes_cannot(ranks, method, keeps_figures)

    encoder, images = what_sees(cell, method, data, manifest, initial)
    model = encoder.model.to(device_of(p.compute.device))
    special = speed_up(model, p.compute)
    parameters = trainable_parameters(model, method.trainable, method.lora_rank, cell.seed)
    count = sum(parameter.numel() for parameter in parameters.values())
    if ranks.sharded:
        shard(model, parameters, device_of(p.compute.device), ranks.world)
        parameters = {name: q for name, q in model.named_parameters() if name in parameters}
    optimizer = adamw(parameters, method.lr, t)
    objective = objective_of(method.loss, encoder, parameters, manifest.labels, t.precision == "bf16", special)
    same = {"train": used, "initial_model": initial, "data": manifest.data_hash, "diagnostics": keeps_figures}
    # Last: what can fail before the first step has not failed, and now the run is charged.
    with begun(cell, p.privacy, plan, same, manifest.train.sha256, ranks) as begin:
        figures = defaultdict(list, begin.figures or {}) if keeps_figures else None
        if begin.step:
            restore(begin.tensors, parameters, optimizer, ranks)
        with stops_between_steps() as asked:
            keeper = Keeper(
                begin.run, parameters, optimizer, ranks, 60 * p.compute.checkpoint_minutes, asked, plan.steps
            )
            train(
                model,
                parameters,
                optimizer,
                objective,
                BatchReader(data, images),
                plan.sampling,
                plan.steps,
                plan.mechanism if cell.is_private else None,
                begin.key,
                p.compute.records_at_once,
                watch=None if figures is None else lambda step: keep(step, figures),
                ranks=ranks,
                done=begin.step,
                after=lambda done: keeper(done, figures),
            )
        trained = {name: whole(q.detach()) for name, q in parameters.items()}
        if not ranks.is_first:
            return
        if ranks.sharded:
            model = what_sees(cell, method, data, manifest, initial)[0].model
            parameters = trainable_parameters(model, method.trainable, method.lora_rank, cell.seed)
            for name, q in parameters.items():
                q.data.copy_(trained[name])
        if method.trainable in WITH_ADAPTERS:
            merge_adapters(model)
        training = TrainingFacts(
            cell=str(cell),
            privacy=facts,
            train=used,
            trained_parameters=count,
            initial_model=initial,
            key=begin.key.origin,
            diagnostics=figures,
        )
        write_outputs(cell, model, training)
        begin.run.finish()


def write_outputs(cell: Cell, model: torch.nn.Module | None, training: TrainingFacts) -> None:
    try:
        with new_folder(cell.model_dir) as folder:
            saved.save_changes(model, initial_model_dir(cell.model), folder)
        write_json(cell.training_json, training.model_dump())
    except WRITING_FAILED as error:
        raise UserError(
            f"the trained model could not be written to {cell.model_dir.parent} ({error}). Make room there and run the "
            f"same command again: it goes on from the last checkpoint in {cell.checkpoints}, charged nothing more"
        ) from None


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


def adamw(parameters: dict[str, torch.nn.Parameter], lr: float, t: params.Train) -> torch.optim.AdamW:
    """Tensors that are split among processes and those that are not cannot be updated in one go."""
    groups = [[q for q in parameters.values() if is_split(q) is split] for split in (False, True)]
    settings = {"lr": lr, "betas": t.betas, "eps": t.eps, "weight_decay": t.weight_decay}
    return torch.optim.AdamW([{"params": group} for group in groups if group], **settings)


def refuse_what_processes_cannot(ranks: Ranks, method: params.Method, keeps_figures: bool) -> None:
    if ranks.world > 1 and method.trainable in ON_FROZEN_TOWERS:
        raise UserError(
            f"trainable: {method.trainable} trains two matrices: one process is enough; run without torchrun"
        )
    if ranks.world > 1 and keeps_figures:
        raise UserError("unsafe_diagnostics is not supported with several processes; set compute.processes to 1")


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


def keep(step: Diagnostics, figures: dict[str, list[float]]) -> None:
    """Private figures, for debugging: only with unsafe_diagnostics, which the run is tagged with."""
    finite = [i for i, norm in enumerate(step.norms) if math.isfinite(norm) and math.isfinite(step.losses[i])]
    figures["batch_size"].append(step.records)
    figures["mean_loss"].append(statistics.fmean(step.losses[i] for i in finite) if finite else 0.0)
    figures["median_norm"].append(statistics.median(step.norms[i] for i in finite) if finite else 0.0)
    figures["not_finite"].append(step.not_finite)
