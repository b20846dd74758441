"""Algorithm 1: sample, gradient of each clip unit, clip, noise, step. Nothing else sees the private data.

What leaves this module is the trained weights. Losses, norms and batch sizes are functions of the private data: they
are neither logged nor kept, unless the caller gives a `watch` for them (stages/privacy/README.md section 1).
"""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from stages import progress
from stages.distributed.ranks import ALONE, Part, Ranks
from stages.distributed.shards import local, part_of, place
from stages.models.ahead import ahead
from stages.models.batches import BatchReader, Chosen
from stages.models.views import NUMBERS
from stages.privacy import factored, places
from stages.privacy.accounting import Plan
from stages.privacy.gradients import (
    Diagnostics,
    Objective,
    clipped_sum,
    clipped_sum_of_shared,
    gradient,
    shared_gradient,
)
from stages.privacy.grid import grid_of
from stages.privacy.mechanism import Expected, Mechanism
from stages.privacy.noise import noised
from stages.privacy.onepass import GOLDEN
from stages.privacy.passes import no_limit
from stages.privacy.randomness import Key
from stages.train.course import Course

logger = logging.getLogger(__name__)

# Public constants applied after the noise: the scale's are CLIP's, and a bias is not beyond what the scale can bring.
RANGES = {"logit_scale": (-math.inf, math.log(100)), "logit_bias": (-100.0, 100.0)}


@dataclass(frozen=True)
class Learner:
    """What is trained: the model in place, and of it only `parameters`."""

    model: torch.nn.Module
    parameters: Mapping[str, torch.nn.Parameter]
    optimizer: torch.optim.Optimizer
    objective: Objective
    course: Course | None = None  # None: one learning rate throughout, and the last weights


@dataclass(frozen=True)
class Execution:
    """How the steps are computed and looked at. No setting here changes what a step is."""

    at_once: int  # records through the model together
    ranks: Ranks = ALONE
    done: int = 0  # so many steps were made before
    workers: int = 0  # processes that read images ahead of the step
    after: Callable[[int], None] | None = None  # called after each step, with how many are done
    watch: Callable[[Diagnostics], None] | None = None  # given what is private in each step


def train(learner: Learner, reader: BatchReader, plan: Plan, key: Key, how: Execution, *, private: bool) -> None:
    """Run the steps of the plan. Without `private`, each takes the gradient of the whole batch as it is."""
    model, parameters, objective = learner.model, learner.parameters, learner.objective
    mechanism, steps, ranks = plan.mechanism if private else None, plan.steps, how.ranks
    course, fixed = learner.course or Course(steps), _not_trained(model, parameters)
    # No dropout: features must be the same in both passes of a batch in pieces. Batch normalisation keeps its public
    # averages: they would carry private data without noise.
    model.eval()
    if (on_gpu := next(iter(parameters.values())).device.type == "cuda") and mechanism:
        # The same bits for a unit whoever else is there: sums of some kernels take another order every time.
        torch.use_deterministic_algorithms(True, warn_only=True)
    if mechanism and not ranks.sharded and places_matter(learner, reader, plan, key, how.at_once):
        logger.warning(
            "this processor rounds a unit's gradient by its place among others: units go through the model one by one, "
            "which takes longer (stages/privacy/places.py)"
        )
        objective.one_by_one = True
    drawn = (_drawn(plan, mechanism, reader, ranks, key, t) for t in range(how.done, steps))
    read = ahead(((step, step.chosen.rows) for step in drawn), reader.images, how.workers, pinned=on_gpu)
    hidden = not ranks.is_first  # one progress bar
    for step, images in progress.bar(read, "train", "steps", done=how.done, total=steps, hidden=hidden):
        t, work = step.t, step.work
        records = _records(objective, reader, step, images, key)
        if mechanism is None:
            gradients = plain_gradient(objective, parameters, records, work, how.at_once)
        else:
            gradients, figures = private_gradient(
                objective,
                parameters,
                records,
                work,
                mechanism,
                key,
                t,
                how.at_once,
                plan.sampling.batch_size,
                reader.views,
            )
            if how.watch and figures is not None:
                how.watch(figures)
        for parameter, g in zip(parameters.values(), gradients, strict=True):
            parameter.grad = part_of(parameter, g.to(parameter.dtype))
        course.set_rate(learner.optimizer, t)
        learner.optimizer.step()  # line 7
        for name in RANGES.keys() & parameters.keys():
            parameters[name].data.clamp_(*getattr(model, f"{name}_range", RANGES[name]))
        course.keep(parameters, learner.optimizer, t)
        if how.after:
            how.after(t + 1)
    _assert_unchanged(model, fixed)


class Work:
    """What this process computes of a batch: some of its clip units, or some records of every one (ranks.py)."""

    def __init__(self, units: np.ndarray, ranks: Ranks = ALONE, one_unit: bool = False):
        self.ranks = ranks
        self.parts: list[Part] | None = None
        places = ranks.whole_units(units, one_unit)
        if places is None:
            self.parts = ranks.parts(units)
            places = np.concatenate([np.array([], dtype=int), *(part.records for part in self.parts)])
        self.places: np.ndarray = places  # in the batch
        self.units = units[self.places]


def private_gradient(
    objective: Objective,
    parameters: Mapping[str, torch.nn.Parameter],
    records: Mapping[str, torch.Tensor],
    work: Work,
    mechanism: Mechanism,
    key: Key,
    t: int,
    at_once: int,
    batch_size: float | None = None,
    views: int = 1,
) -> tuple[list[torch.Tensor], Diagnostics | None]:
    """Lines 4 to 6 of Algorithm 1. An empty batch is noise alone. The figures beside it are private.

    `batch_size` is the expected one, and `views` how many rows of `records` a record has: with them, passes through the
    model have the sizes that suit the plan.
    """
    C, ranks, figures = mechanism.clip_norm, work.ranks, None
    if work.parts is None:  # lines 4 and 5
        summed = factored.clipped_sum if objective.factors else clipped_sum
        expected = expected_rows(mechanism, batch_size, views)
        total, figures = summed(objective, parameters, records, work.units, C, at_once, expected)
        total = ranks.sum([g.double() for g in total]) if ranks.world > 1 else total  # exact: see gradients.py
    else:
        total = clipped_sum_of_shared(objective, parameters, records, work.parts, C, at_once, ranks)
    placed = [place(p) for p in parameters.values()]
    return noised(total, grid_of(C), mechanism.sigma * C, key, t, placed), figures  # line 6


def expected_rows(mechanism: Mechanism, batch_size: float | None, views: int) -> Expected | None:
    expected = mechanism.expected_units(batch_size)
    return expected and {size * views: units for size, units in expected.items()}


def places_matter(learner: Learner, reader: BatchReader, plan: Plan, key: Key, at_once: int) -> bool:
    """Asked with images of nobody: the answer is one about the processor and the shapes of the plan.

    Where tensors are split among processes, units go one by one anyhow.
    """
    objective, parameters = learner.objective, learner.parameters
    expected = expected_rows(plan.mechanism, plan.sampling.batch_size, reader.views)
    if objective.one_by_one or not (wanted := places.sizes(at_once, no_limit, expected)):
        return False
    batch = reader.batch(np.arange(max(wanted)) % reader.units, partial(key.by_record, "place", 0))
    numbers = torch.arange(batch.images.numel(), dtype=torch.float64)
    images = (numbers * GOLDEN).frac().to(batch.images.dtype).view(batch.images.shape)
    records = objective.records(replace(batch, images=images))
    return places.matter(objective, parameters, records, at_once, expected)


@dataclass(frozen=True)
class Drawn:
    """What step t has drawn, as far as this process computes it."""

    t: int
    work: Work
    units: np.ndarray  # those of the data, and of each the view
    view: np.ndarray
    chosen: Chosen


def _drawn(plan: Plan, mechanism: Mechanism | None, reader: BatchReader, ranks: Ranks, key: Key, t: int) -> Drawn:
    drawn = plan.sampling.sample(key, t, reader.units)  # line 3
    units = mechanism.assign(drawn, key, t) if mechanism else np.zeros(len(drawn), int)
    work = Work(np.repeat(units, reader.views), ranks, one_unit=mechanism is None or mechanism.one_unit)
    mine, view = np.divmod(work.places, reader.views)
    chosen = reader.choose(drawn[mine], partial(key.by_record, "text", t), view)
    return Drawn(t, work, drawn[mine], view, chosen)


def _records(
    objective: Objective, reader: BatchReader, step: Drawn, images: torch.Tensor, key: Key
) -> dict[str, torch.Tensor]:
    """What the objective takes of these views of records."""
    if not len(step.units):
        return {}
    if reader.variation:
        draws = key.by_record("view", step.t, step.units * reader.views + step.view, NUMBERS)
        images = reader.variation.of(images, draws)
    return dict(objective.records(step.chosen.batch(images)))


def plain_gradient(
    objective: Objective,
    parameters: Mapping[str, torch.nn.Parameter],
    records: Mapping[str, torch.Tensor],
    work: Work,
    at_once: int,
) -> list[torch.Tensor]:
    """An empty batch has gradient zero; the step still happens."""
    if not records:
        return [torch.zeros_like(local(parameter)) for parameter in parameters.values()]
    if work.parts is None:
        return gradient(objective, parameters, records, at_once)[0]
    return shared_gradient(objective, parameters, records, work.parts[0].own, at_once, work.ranks)[0]


def _not_trained(model: torch.nn.Module, parameters: Mapping[str, torch.nn.Parameter]) -> dict[str, torch.Tensor]:
    """By name. Of weights that are tied, all names are trained if one is."""
    tied, state = {id(parameter) for parameter in parameters.values()}, model.state_dict(keep_vars=True)
    fixed = {name: tensor for name, tensor in state.items() if name not in parameters and id(tensor) not in tied}
    return {name: tensor.detach().clone() for name, tensor in fixed.items()}


def _assert_unchanged(model: torch.nn.Module, fixed: Mapping[str, torch.Tensor]) -> None:
    """Only what went through the mechanism may differ from the public initial weights."""
    state = model.state_dict()
    changed = [name for name, tensor in fixed.items() if not torch.equal(state[name], tensor)]
    if changed:
        raise RuntimeError(f"tensors changed outside the private mechanism: {', '.join(changed)}; nothing was saved")
