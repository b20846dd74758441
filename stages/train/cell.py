"""A cell's training put together: model, data, plan, key and charge, then the loop, then the outputs."""

import functools
import math
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any, cast

import torch

from stages import params, tasks
from stages.atomic import new_folder, write_json
from stages.costs import Costs, Meter
from stages.data.manifest import Manifest
from stages.data.prepared import PreparedSplit, require_unchanged
from stages.distributed.ranks import Ranks
from stages.distributed.shards import is_split, shard, whole
from stages.errors import UserError
from stages.keys import ON_FROZEN_TOWERS, Cell, data_dir, features_dir, initial_model_dir, with_adapters
from stages.losses import About, named, objective_of
from stages.models import bank as banks
from stages.models import curve, saved
from stages.models.batches import BatchReader, Images, decoded
from stages.models.encoder import Encoder, device_of
from stages.models.features import Features
from stages.models.heads import Heads
from stages.models.parts import merge_adapters, trainable_parameters
from stages.privacy import secret
from stages.privacy.accounting import Plan
from stages.privacy.claim import verify
from stages.privacy.facts import PrivacyFacts, TrainingFacts, delta_of
from stages.privacy.gradients import Diagnostics
from stages.privacy.mechanism import Mechanism
from stages.privacy.methods import METHODS
from stages.privacy.records import Records
from stages.privacy.sampling import sampling_of
from stages.privacy.uncommitted import require_lock_uncommitted
from stages.train.beginning import begun
from stages.train.checkpoints import WRITING_FAILED
from stages.train.course import Course
from stages.train.keeper import Keeper, stops_between_steps
from stages.train.loop import Execution, Learner, train
from stages.train.state import restore


def keep_initial(cell: Cell, facts: PrivacyFacts) -> None:
    """Epsilon 0: nothing is trained."""
    initial = saved.sha256(initial_model_dir(cell.model))
    nothing = TrainingFacts(
        cell=str(cell), privacy=facts.of_a_model(), train=None, trained_parameters=0, initial_model=initial, key="none"
    )
    write_outputs(cell, None, nothing, Meter().read(steps=0), None)


def fine_tune(cell: Cell, p: params.Params, facts: PrivacyFacts, ranks: Ranks) -> None:
    """Train, and write the outputs; goes on with a training that was interrupted."""
    records = charged_records(data_dir(cell.dataset))
    t, data = p.train.on(cell.dataset), PreparedSplit(data_dir(cell.dataset), "train")
    method, manifest = t.methods[cell.method], Manifest.read(data_dir(cell.dataset))
    plan = plan_of(cell, p, facts, data.units)
    initial = saved.sha256(initial_model_dir(cell.model))
    without = set() if with_adapters(method.trainable) else {"lora_rank"}
    without |= {"schedule"} if method.schedule == "constant" else set()
    without |= {"optimizer"} if method.optimizer == "adamw" else set()
    without |= {"views"} if method.views == 1 else set()
    used = t.model_dump(exclude={"methods", "overrides"}) | method.model_dump(exclude_none=True, exclude=without)
    keeps_figures = p.privacy.unsafe_diagnostics and cell.is_private
    refuse_what_processes_cannot(ranks, method, keeps_figures)

    encoder, images = encoder_and_images(cell, method, data, manifest, initial)
    bank = banks.read(initial_model_dir(cell.model)) if named(method.loss).needs_bank else None
    used |= bank.facts if bank else {}
    about = About(manifest.labels, manifest.has_questions, method.model_dump(exclude_none=True), bank)
    course = Course(plan.steps, method.schedule, method.average)
    learner = learner_of(cell, p, encoder, about, ranks, course)
    asks = manifest.has_questions and named(method.loss).reads_questions
    reader = BatchReader(data, images, "one" if asks else None, method.views, method.vary)
    same = {"train": used, "initial_model": initial, "data": manifest.data_hash, "diagnostics": keeps_figures}
    same |= {"has_questions": True} if manifest.has_questions else {}
    # Last: what can fail before the first step has not failed, and now the run is charged.
    with begun(cell, p.privacy, plan, same, records, ranks) as begin:
        figures = defaultdict(list, begin.figures or {}) if keeps_figures else None
        if begin.step:
            averaged = bool(course.averages(begin.step - 1))
            restore(begin.tensors, learner.parameters, learner.optimizer, ranks, averaged)
        with stops_between_steps() as asked:
            every = 60 * p.compute.checkpoint_minutes
            keeper = Keeper(begin.run, learner.parameters, learner.optimizer, ranks, every, asked, plan.steps)
            folder = begin.run.curve if begin.run else None
            seen = curve.Curve(folder, curve_steps(cell, p, plan, ranks, learner), learner.parameters)

            def after(done: int) -> None:
                seen(done)
                keeper(done, figures)

            watch = None if figures is None else lambda step: keep(step, figures)
            device = device_of(p.compute.device).type
            workers = input_workers(p.compute, device)
            how = Execution(p.compute.records_at_once, ranks, begin.step, workers, after=after, watch=watch)
            meter = Meter(device, ranks.world, begin.step)
            train(learner, reader, plan, begin.key, how, private=cell.is_private)
            costs = meter.read(plan.steps)
        trained = {name: whole(q.detach()) for name, q in learner.parameters.items()}
        if begin.run is None:
            return  # the first process has it
        model = learner.model
        if ranks.sharded:
            model = encoder_and_images(cell, method, data, manifest, initial)[0].model
            for name, q in chosen_parameters(model, method, cell.seed, about).items():
                q.data.copy_(trained[name])
        if with_adapters(method.trainable):
            merge_adapters(model)
        training = TrainingFacts(
            cell=str(cell),
            privacy=facts.of_a_model(),
            train=used,
            trained_parameters=sum(tensor.numel() for tensor in trained.values()),
            initial_model=initial,
            key=begin.key.origin,
            run=begin.run.id,
            unit=manifest.unit,
            diagnostics=figures,
        )
        write_outputs(cell, model, training, costs, begin.run.curve)
        begin.run.finish()


def input_workers(compute: params.Compute, device: str) -> int:
    if compute.input_workers == "auto":
        return 4 if device == "cuda" else 0
    return compute.input_workers


def learner_of(cell: Cell, p: params.Params, encoder: Encoder, about: About, ranks: Ranks, course: Course) -> Learner:
    t, device = p.train.on(cell.dataset), device_of(p.compute.device)
    method, model = t.methods[cell.method], encoder.model.to(device)
    special = speed_up(model, p.compute)
    parameters = chosen_parameters(model, method, cell.seed, about)
    if ranks.sharded:
        shard(model, parameters, device, ranks.world)
        parameters = {name: q for name, q in model.named_parameters() if name in parameters}
    objective = objective_of(method.loss, encoder, parameters, about, t.precision == "bf16", special)
    optimizer = adamw(parameters, method.lr, t) if method.optimizer == "adamw" else sgd(parameters, cell, method)
    return Learner(model, parameters, optimizer, objective, course)


def chosen_parameters(
    model: torch.nn.Module, method: params.Method, seed: int, about: About
) -> dict[str, torch.nn.Parameter]:
    reached = functools.partial(named(method.loss).reaches, about=about)
    return trainable_parameters(model, method.trainable, method.lora_rank, seed, reached)


def charged_records(folder: Path) -> Records:
    """Whom the training will be charged to: the records of data that are what was prepared, in the ledger they name."""
    require_lock_uncommitted()
    secret.require(Manifest.read(folder).ledger, str(folder))
    require_unchanged(folder)
    return Records.read(folder)


def curve_steps(cell: Cell, p: params.Params, plan: Plan, ranks: Ranks, learner: Learner) -> list[int]:
    """Of the learning curve. None of adapters, which are merged at the end, nor where no process has all weights."""
    method, test = p.train.on(cell.dataset).methods[cell.method], PreparedSplit(data_dir(cell.dataset), "test")
    if ranks.sharded or with_adapters(method.trainable):
        return []
    points, private_test = p.evaluate.curve, Manifest.read(data_dir(cell.dataset)).private_test
    if points == "auto" and (private_test or tasks.named(cell.task).is_written):
        points = 0  # the size of a private test split must choose nothing; and beam search takes many passes
    size = sum(q.numel() * q.element_size() for q in learner.parameters.values())
    return curve.kept_steps(points, plan.steps, plan.sampling.batch_size * method.views, test.rows, size)


def write_outputs(
    cell: Cell, model: torch.nn.Module | None, training: TrainingFacts, costs: Costs, on_the_way: Path | None
) -> None:
    """`training` goes last: it is what says that the training is done."""
    try:
        curve.write(cell.curve_dir, on_the_way)
        with new_folder(cell.model_dir) as folder:
            saved.save_changes(model, initial_model_dir(cell.model), folder)
        training = training.model_copy(update={"weights": secret.digest_of(cell.model_dir)})
        write_json(cell.costs_json, costs.model_dump())
        write_json(cell.training_json, training.model_dump())
    except WRITING_FAILED as error:
        raise UserError(
            f"the trained model could not be written to {cell.model_dir.parent} ({error}). Make room there and run the "
            f"same command again: it goes on from the last checkpoint in {cell.checkpoints}, charged nothing more"
        ) from None


def encoder_and_images(
    cell: Cell, method: params.Method, data: PreparedSplit, manifest: Manifest, initial: str
) -> tuple[Encoder, Images]:
    """The initial model and its view of the images: what frozen towers made of them, or the pixels."""
    folder = initial_model_dir(cell.model)
    if method.trainable in ON_FROZEN_TOWERS:
        features = Features(features_dir(cell.dataset, cell.model))
        features.require(manifest.data_hash, initial)
        return features.encoder(saved.heads(folder) or {}), features.images("train")
    encoder = saved.load(folder)
    return encoder, decoded(data, encoder)


def adamw(parameters: dict[str, torch.nn.Parameter], lr: float, t: params.Train) -> torch.optim.AdamW:
    """Tensors that are split among processes and those that are not cannot be updated in one go."""
    groups = [[q for q in parameters.values() if is_split(q) is split] for split in (False, True)]
    settings: dict[str, Any] = {"lr": lr, "betas": t.betas, "eps": t.eps, "weight_decay": t.weight_decay}
    return torch.optim.AdamW([{"params": group} for group in groups if group], **settings)


def sgd(parameters: dict[str, torch.nn.Parameter], cell: Cell, method: params.Method) -> torch.optim.SGD:
    """Plain steps. A private gradient is a sum over units: it is divided by how many the plan expects, a public number.

    So one learning rate means the same with and without privacy, and for batches of any size; AdamW knows no scale.
    """
    expected = mechanism_of(cell.method, method, 0.0).expected_units(method.batch_size) if cell.is_private else {}
    return torch.optim.SGD(parameters.values(), lr=method.lr / (sum((expected or {}).values()) or 1.0))


def refuse_what_processes_cannot(ranks: Ranks, method: params.Method, keeps_figures: bool) -> None:
    if ranks.world > 1 and method.trainable in ON_FROZEN_TOWERS:
        raise UserError(
            f"trainable: {method.trainable} trains two matrices: one process is enough; run without torchrun"
        )
    if ranks.sharded and method.loss == "writing":
        raise UserError("the loss writing is not supported with split tensors; set compute.sharded to false")
    if ranks.world > 1 and keeps_figures:
        raise UserError("unsafe_diagnostics is not supported with several processes; set compute.processes to 1")


def speed_up(model: Any, compute: params.Compute) -> bool:
    """As compute asks; whether the model is now of a kind that vmap cannot take."""
    if isinstance(model, Heads):
        return False  # two matrices: nothing to gain
    if compute.gradient_checkpointing:
        model.set_grad_checkpointing(True)
    if compute.compile:
        model.compile(dynamic=True)  # batches vary in size
    return compute.gradient_checkpointing or compute.compile


def plan_of(cell: Cell, p: params.Params, facts: PrivacyFacts, n: int) -> Plan:
    """What will be done. A calibration that was made for anything else is refused. A secret n does not enter it."""
    method, g = p.train.on(cell.dataset).methods[cell.method], facts.guarantee
    public_n = p.privacy.public_n.get(cell.dataset)
    sampling = sampling_of(p.privacy.sampling, n, method.batch_size, public_n)
    mechanism = mechanism_of(cell.method, method, g.sigma if g else 0.0)
    plan = Plan(sampling, mechanism, method.steps or sampling.steps(cast(float, method.epochs)))
    planned = g and (g.n, g.batch_size, g.steps, g.sensitivity, g.adjacency, g.sampler, g.delta, g.convention)
    needed: tuple[object, ...] | None = None
    if cell.is_private:
        needed = (sampling.n, sampling.batch_size, plan.steps, plan.factor, sampling.adjacency.value)
        needed += (p.privacy.sampling, delta_of(p.privacy.delta, sampling.n), p.privacy.convention)
    made_for = (facts.target, facts.dataset, facts.method, facts.public_n, planned)
    if made_for != (cell.epsilon, cell.dataset, cell.method, public_n, needed):
        raise UserError(f"{cell.privacy_json} was made for other data, values or another cell; run: dvc repro")
    verify(facts, plan)
    return plan


def mechanism_of(name: str, method: params.Method, sigma: float) -> Mechanism:
    mechanism = METHODS[name].planned(method.model_dump(), sigma)
    mechanism.accept(method.loss, named(method.loss).is_sum_over_records)
    return mechanism


def keep(step: Diagnostics, figures: dict[str, list[float]]) -> None:
    """Private figures, for debugging: only with unsafe_diagnostics, which the run is tagged with."""
    finite = [i for i, norm in enumerate(step.norms) if math.isfinite(norm) and math.isfinite(step.losses[i])]
    figures["batch_size"].append(step.records)
    figures["mean_loss"].append(statistics.fmean(step.losses[i] for i in finite) if finite else 0.0)
    figures["median_norm"].append(statistics.median(step.norms[i] for i in finite) if finite else 0.0)
    figures["not_finite"].append(step.not_finite)
