"""The ledger: what has been spent on the records, over all runs ever made on them (README.md section 5).

A charge names the run's whole planned event and the records it is for (records.py); it is written before the run's
first step (write-ahead), so a crash can lose a charge only together with the run that it was for. Charges add up where
they have records in common: the total of a dataset is the largest composed epsilon over its records. A version with
one record more or less, a subset, a renamed copy and an overlapping dataset need nothing to be said about them.

Where it is: LEDGER_DIR, or `ledger` in the working copy that the others belong to (secret.py). Copies of the data in
separate clones without a common LEDGER_DIR have ledgers that do not know each other.
"""

import datetime
import functools
import runpy
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    NeighboringRelation,
    SelfComposedDpEvent,
    rdp,
)

from stages.errors import UserError
from stages.privacy import secret
from stages.privacy.accounting import pld_interval
from stages.privacy.chain import Chain
from stages.privacy.facts import round_up
from stages.privacy.pld import PLDAccountant
from stages.privacy.records import Records, keep, kept
from stages.privacy.sampling import SAMPLERS, Neighbours, Sampling

ALL = "all"  # in place of a set of records: every record there is or will be


@dataclass(frozen=True)
class Charge:
    """The public facts of one planned run. Two runs with equal facts are still two charges."""

    cell: str
    private: bool  # False: no bound holds (epsilon inf, a noise key that anyone can recompute, unsafe_diagnostics)
    n: int
    q: float
    steps: int
    sigma: float
    clip_norm: float
    z: float  # standard deviation / sensitivity: what is accounted
    sampler: str = "poisson"
    neighbours: str | None = None  # None: those that go with the sampler

    @property
    def sampling(self) -> Sampling:
        own = (Neighbours(self.neighbours),) if self.neighbours else ()
        return SAMPLERS[self.sampler](self.n, round(self.q * self.n), *own)

    def step(self) -> DpEvent:
        return self.sampling.event(GaussianDpEvent(self.z))

    def event(self) -> DpEvent:
        return SelfComposedDpEvent(self.step(), self.steps)


@dataclass(frozen=True)
class Entry:
    run: str
    charge: Charge
    records: str  # the id of a set of them
    images: int = 1  # the most that a record of the set has


class Ledger:
    """All charges ever made, on whatever data."""

    def __init__(self, folder: Path | None = None):
        folder = folder or secret.folder()
        self._folder, self._sets = folder, folder / "records"
        self.chain = Chain(folder / "charges.jsonl")

    def charge(self, run: str, charge: Charge, records: Records, delta: float, budget: float | None = None) -> None:
        """Write the charge of `run` before its first step. The same run again (a resumed one) costs nothing more."""
        _refuse_old_format(self._folder)
        with self.chain.locked():
            known = self._entries()
            for entry in known:
                if entry.run == run:
                    _refuse_changes(entry, charge, records)
                    return
            self._refuse_other_units(records, known)
            new = Entry(run, charge, keep(records, self._sets), max(1, records.images))
            for together in self._by_record(records, [*known, new]):
                _refuse_other_neighbours(together, charge)
                if budget is not None:
                    _refuse_over_budget(together, charge, delta, budget)
            self._append(new)

    def _refuse_other_units(self, records: Records, known: list[Entry]) -> None:
        """Where one record is several of an earlier run, that run's epsilon is not what it told about the record."""
        for entry in {entry.records: entry for entry in known if entry.records != ALL}.values():
            if records.images_among(kept(entry.records, self._sets)) > max(entry.images, 1):
                raise UserError(
                    f"a record of these data has several images that {entry.charge.cell} was charged for one by one, "
                    "as records of their own: what that run tells about them together has no known epsilon. Nothing "
                    "was trained; use the same `unit` for all trainings on these images"
                )

    def take_over(self, run: str, charge: Charge, records: Records | None) -> None:
        """A charge that was made elsewhere, as it is; None for one of which nobody knows whom it was for."""
        with self.chain.locked():
            if run not in [entry.run for entry in self._entries()]:
                self._append(Entry(run, charge, ALL if records is None else keep(records, self._sets)))

    def on(self, records: Records) -> dict[str, Charge]:
        """By run, every charge that is for one of these records at least."""
        entries = self.entries()
        runs = {entry.run for together in self._by_record(records, entries) for entry in together}
        return {entry.run: entry.charge for entry in entries if entry.run in runs}

    def total(self, records: Records, delta: float, runs: Collection[str] | None = None) -> float:
        """The largest epsilon of a record: that of all private charges on it together, or of those in `runs`."""
        entries = [entry for entry in self.entries() if runs is None or entry.run in runs]
        by_record = self._by_record(records, entries)
        return max((total_epsilon([e.charge for e in together], delta) for together in by_record), default=0.0)

    def entries(self) -> list[Entry]:
        _refuse_old_format(self._folder)
        with self.chain.locked():
            return self._entries()

    def _by_record(self, records: Records, entries: list[Entry]) -> list[list[Entry]]:
        """The charges that are for one record, for every kind of record there is among `records`."""
        names = dict.fromkeys(entry.records for entry in entries if entry.records != ALL)
        sets = {name: kept(name, self._sets) for name in names}
        return [
            [entry for entry in entries if entry.records == ALL or entry.records in member]
            for member in records.memberships(sets)
        ]

    def _append(self, entry: Entry) -> None:
        time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        about = {"run": entry.run, "records": entry.records, "images": entry.images, "charge": asdict(entry.charge)}
        self.chain.append({"time": time, **about})

    def _entries(self) -> list[Entry]:
        found: dict[str, Entry] = {}
        for line in self.chain.entries():
            try:
                entry = Entry(line["run"], Charge(**line["charge"]), line["records"], line["images"])
            except (TypeError, KeyError):
                raise self.chain.damaged("a line of it is no charge") from None
            if entry.run in found:
                raise self.chain.damaged(f"run {entry.run} is in it twice")
            found[entry.run] = entry
        return list(found.values())


def total_epsilon(charges: Iterable[Charge], delta: float) -> float:
    """Epsilon of all private charges together: the smaller of RDP and PLD, where both have an analysis."""
    private = [charge for charge in charges if charge.private]
    if not private:
        return 0.0
    steps: Counter[DpEvent] = Counter()
    for charge in private:
        steps[charge.step()] += charge.steps
    return _composed_epsilon(frozenset(steps.items()), private[0].sampling.relation, delta)


@functools.lru_cache(maxsize=1024)
def _composed_epsilon(steps: frozenset[tuple[DpEvent, int]], relation: NeighboringRelation, delta: float) -> float:
    """Of so many steps of each event: the order in which runs were made does not matter."""
    composed = ComposedDpEvent([SelfComposedDpEvent(step, count) for step, count in steps])
    by_rdp: float = rdp.RdpAccountant(neighboring_relation=relation).compose(composed).get_epsilon(delta)
    # Finer than the calibration's grid, or a run calibrated to the whole budget would not fit into it.
    by_pld = PLDAccountant(relation, value_discretization_interval=pld_interval(by_rdp) / 2)
    return min(by_rdp, by_pld.compose(composed).get_epsilon(delta)) if by_pld.supports(composed) else by_rdp


def _refuse_other_neighbours(together: list[Entry], now: Charge) -> None:
    """Epsilons for different notions of neighbours do not add up to one. `together` ends with the one asked for.

    Zero-out and add-or-remove do: a guarantee for the one is one for the other (sampling.py).
    """
    if not now.private:
        return
    mine, before = now.sampling, [entry.charge.sampling for entry in together[:-1] if entry.charge.private]
    if others := [sampling.adjacency.value for sampling in before if sampling.relation != mine.relation]:
        raise UserError(
            f"this run's guarantee is for {mine.adjacency.value} and those of the runs charged to these records so "
            f"far for {others[0]}: for different neighbours there is no common total. Nothing was trained; set "
            "privacy.sampling as it was"
        )


def _refuse_over_budget(together: list[Entry], now: Charge, delta: float, budget: float) -> None:
    """`together` ends with the one that is asked for."""
    if not now.private:
        raise UserError(
            f"{now.cell} gives no privacy, and there is a budget of epsilon {budget:g} on its records. "
            "Nothing was trained; take it out of the sweep or set privacy.budget to null"
        )
    charges = [entry.charge for entry in together]
    if (spent := total_epsilon(charges, delta)) > budget:
        before = total_epsilon(charges[:-1], delta)
        raise UserError(
            f"this run would bring the total spent on a record to epsilon {round_up(spent, 4)} at delta {delta:.3g}, "
            f"over the budget of {budget:g} (spent so far: {round_up(before, 4)}, also by runs on other datasets that "
            "have the record). Nothing was trained; raise privacy.budget or stop here"
        )


def _refuse_changes(before: Entry, now: Charge, records: Records) -> None:
    pairs = [(f.name, getattr(before.charge, f.name), getattr(now, f.name)) for f in fields(Charge)]
    changed = [f"{name} was {old!r} and is {new!r}" for name, old, new in pairs if old != new]
    if before.records not in (ALL, records.id):
        changed.append("the records are others")
    if changed:
        raise UserError(f"run {before.run} cannot go on with other values than it was charged for:", changed)


def _refuse_old_format(folder: Path) -> None:
    if old := [path for path in folder.glob("*.jsonl") if path.name != "charges.jsonl"]:
        raise UserError(
            f"{folder} has {len(old)} privacy ledger(s) of the time before charges went by record. Nothing is "
            "trained before they are taken over: python -m stages.ledger --convert"
        )


if __name__ == "__main__":  # the command, which reads params.yaml, is stages/ledger
    runpy.run_module("stages.ledger", run_name="__main__")
