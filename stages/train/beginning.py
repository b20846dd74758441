"""Where a training begins, or goes on: the run is on disk and charged to the ledger before its first step."""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass

import torch

from stages import params
from stages.distributed.handover import shared_secret
from stages.distributed.ranks import Ranks
from stages.errors import UserError
from stages.keys import Cell
from stages.privacy.accounting import Plan
from stages.privacy.facts import delta_of
from stages.privacy.ledger import Charge, Ledger
from stages.privacy.randomness import Key
from stages.privacy.records import Records
from stages.train.checkpoints import Checkpoint, UnfinishedRun

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Beginning:
    key: Key
    step: int  # so many are done
    run: UnfinishedRun | None = None  # this and what follows: on the first process alone
    tensors: dict[str, torch.Tensor] | None = None
    figures: dict[str, list[float]] | None = None


@contextmanager
def begun(
    cell: Cell, privacy: params.Privacy, plan: Plan, same: dict, records: Records, ranks: Ranks
) -> Iterator[Beginning]:
    """Charged once, however often it is begun. `same` is what a run that goes on must share with the one begun."""
    charge = charge_of(cell, privacy, plan)
    facts = {"cell": str(cell), "charge": asdict(charge), "noise_seed": privacy.unsafe_noise_seed, **same}
    facts = json.loads(json.dumps(facts))  # as they will be read: tuples are lists then
    if not ranks.is_first:
        yield _as_told(ranks, facts)
        return
    with ExitStack() as stack:
        try:
            run = stack.enter_context(UnfinishedRun.open(cell, facts, choose_key(cell, privacy)))
            write_ahead(run, charge, records, privacy)
        except UserError:
            ranks.told_by_first({"error": True})
            raise
        found = run.newest() or Checkpoint(0, {})
        ranks.told_by_first({"facts": facts, "origin": run.key.origin, "step": found.step})
        shared_secret(ranks, run.key.secret)
        if found.step:
            logger.info("going on after step %d of %d", found.step, plan.steps)
        yield Beginning(run.key, found.step, run, found.tensors, found.figures)


def _as_told(ranks: Ranks, facts: dict) -> Beginning:
    told = ranks.told_by_first(None)
    if "error" in told:
        sys.exit(2)  # the first process has said why
    if told["facts"] != facts:
        shared_secret(ranks, None)  # the first one waits for it
        raise UserError(f"process {ranks.rank} has other data, values or initial weights than the first one")
    return Beginning(Key(told["origin"], shared_secret(ranks, None)), told["step"])


def charge_of(cell: Cell, privacy: params.Privacy, plan: Plan) -> Charge:
    fixed = privacy.unsafe_noise_seed is not None
    return Charge(
        cell=str(cell),
        private=cell.is_private and not fixed and not privacy.unsafe_diagnostics,
        n=plan.sampling.n,
        q=plan.sampling.q,
        steps=plan.steps,
        sigma=plan.sigma,
        clip_norm=plan.mechanism.clip_norm,
        z=plan.z if cell.is_private else 0.0,
        sampler=privacy.sampling,
        neighbours=plan.sampling.neighbours and plan.sampling.neighbours.value,
    )


def write_ahead(run: UnfinishedRun, charge: Charge, records: Records, privacy: params.Privacy) -> None:
    """Charge the whole planned run to the records; over budget, nothing starts and nothing is left behind."""
    delta = delta_of(privacy.delta, charge.n)
    try:
        Ledger().charge(run.id, charge, records, delta, privacy.budget)
    except UserError:
        if run.is_new:
            run.finish()
        raise


def choose_key(cell: Cell, privacy: params.Privacy) -> Key:
    """A secret from the operating system; only non-private runs and tests repeat themselves."""
    if privacy.unsafe_noise_seed is not None:
        return Key.from_seed(privacy.unsafe_noise_seed + cell.seed)
    return Key.from_os() if cell.is_private else Key.from_seed(cell.seed)
