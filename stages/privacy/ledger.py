"""The ledger: what has been spent on a dataset, over all runs ever made on it (privacy.md section 5).

One file for each private split, named by its content hash: an append-only list of charges, each line holding the hash
of the line before it. A run writes its whole planned event before its first step (write-ahead), so a crash can lose a
charge only together with the run that it was for. Beside it, the head says how many lines there must be.

    python -m stages.privacy.ledger                       what was spent, for every dataset of params.yaml
    python -m stages.privacy.ledger --dataset mnist5k     for one

What is defended: accidents. Torn writes, concurrent runs, edited, reordered, removed or added lines are refused. What
is not: someone who rewrites or deletes the lines together with the head (the hashes have no key), or who trains on a
copy of the data elsewhere. LEDGER_DIR moves it, for clones that share data.
"""

import argparse
import contextlib
import datetime
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import dp_accounting
from dp_accounting import pld, rdp

from stages.atomic import write_json
from stages.errors import UserError
from stages.errors import run as run_command
from stages.privacy.accounting import pld_interval
from stages.privacy.facts import round_up
from stages.privacy.sampling import SAMPLERS, Sampling

FOLDER = Path("ledger")
START = "0" * 64  # the hash before the first line


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

    @property
    def sampling(self) -> Sampling:
        return SAMPLERS[self.sampler](self.n, round(self.q * self.n))

    def event(self) -> dp_accounting.DpEvent:
        step = self.sampling.event(dp_accounting.GaussianDpEvent(self.z))
        return dp_accounting.SelfComposedDpEvent(step, self.steps)


class Ledger:
    """All charges on one private split."""

    def __init__(self, data_hash: str, folder: Path | None = None):
        folder = folder or Path(os.environ.get("LEDGER_DIR", FOLDER))
        self.data_hash = data_hash
        self.path = folder / f"{data_hash}.jsonl"
        self.head = folder / f"{data_hash}.head.json"

    def charge(self, run: str, charge: Charge, delta: float, budget: float | None = None) -> None:
        """Write the charge of `run` before its first step. The same run again (a resumed one) costs nothing more."""
        with self._locked():
            known = dict(self._verified())
            if run in known:
                _refuse_changes(run, known[run], charge)
                return
            _refuse_other_neighbours([*known.values(), charge])
            if budget is not None:
                _refuse_over_budget([*known.values(), charge], delta, budget)
            self._append(run, charge)

    def charges(self) -> dict[str, Charge]:
        with self._locked():
            return dict(self._verified())

    def _append(self, run: str, charge: Charge) -> None:
        lines = self._complete_lines()
        entry = {
            "data": self.data_hash,
            "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "run": run,
            "charge": asdict(charge),
            "previous": _hash(lines[-1]) if lines else START,
        }
        line = json.dumps(entry, sort_keys=True).encode()
        # A torn last line belongs to a run that never started: it is cut off, and the new one takes its place.
        with self.path.open("r+b" if self.path.exists() else "xb") as file:
            file.truncate(sum(len(each) + 1 for each in lines))
            file.seek(0, os.SEEK_END)
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._write_head(len(lines) + 1, line)

    def _write_head(self, count: int, last: bytes) -> None:
        write_json(self.head, {"lines": count, "last": _hash(last)})
        descriptor = os.open(self.head.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # the names of both files are on disk, not only what is in them
        finally:
            os.close(descriptor)

    def _complete_lines(self) -> list[bytes]:
        if not self.path.exists():
            return []
        return self.path.read_bytes().split(b"\n")[:-1]  # what follows the last newline was never finished

    def _verified(self) -> Iterator[tuple[str, Charge]]:
        """Every charge, in order; refuses a ledger whose lines are not the ones that were written."""
        lines, previous, seen = self._complete_lines(), START, set()
        for number, line in enumerate(lines, start=1):
            try:
                entry = json.loads(line)
                charge = Charge(**entry["charge"])
                run = entry["run"]
                intact = entry["previous"] == previous and entry["data"] == self.data_hash and run not in seen
            except (ValueError, TypeError, KeyError):
                intact = False
            if not intact:
                raise self._damaged(f"line {number} was changed, moved or belongs to other data")
            previous = _hash(line)
            seen.add(run)
            yield run, charge
        self._check_head(lines)

    def _check_head(self, lines: list[bytes]) -> None:
        try:
            head = (
                json.loads(self.head.read_text(encoding="utf-8")) if self.head.exists() else {"lines": 0, "last": START}
            )
            count, last = head["lines"], head["last"]
        except (ValueError, TypeError, KeyError):
            raise self._damaged(f"{self.head.name} cannot be read") from None
        if len(lines) < count:
            raise self._damaged(f"{count} lines were written and {len(lines)} are there")
        if len(lines) > count + 1:  # one more: the process ended between the line and its head
            raise self._damaged(f"{count} lines were written and {len(lines)} are there")
        if count and _hash(lines[count - 1]) != last:
            raise self._damaged(f"line {count} is not the one that was written")

    def _damaged(self, what: str) -> UserError:
        return UserError(
            f"the privacy ledger {self.path} is damaged: {what}. Nothing is trained on this data until it is whole "
            "again: restore both of its files from a backup"
        )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One reader or writer at a time, over all processes; released by the system if the process dies."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with (self.path.parent / f"{self.data_hash}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def total_epsilon(charges: list[Charge], delta: float) -> float:
    """Epsilon of all private charges together: the smaller of RDP and PLD, where both have an analysis."""
    private = [charge for charge in charges if charge.private]
    if not private:
        return 0.0
    relation = private[0].sampling.relation
    composed = dp_accounting.ComposedDpEvent([charge.event() for charge in private])
    by_rdp = rdp.RdpAccountant(neighboring_relation=relation).compose(composed).get_epsilon(delta)
    # Finer than the calibration's grid, or a run calibrated to the whole budget would not fit into it.
    by_pld = pld.PLDAccountant(relation, value_discretization_interval=pld_interval(by_rdp) / 2)
    return min(by_rdp, by_pld.compose(composed).get_epsilon(delta)) if by_pld.supports(composed) else by_rdp


def _refuse_other_neighbours(charges: list[Charge]) -> None:
    """Epsilons for different notions of neighbours do not add up to one. `charges` end with the one asked for."""
    *before, now = charges
    others = {charge.sampler for charge in before if charge.private} - {now.sampler}
    if now.private and others:
        raise UserError(
            f"this run samples {now.sampler}, and the runs charged to this data so far {min(others)}: their guarantees "
            f"are for different neighbours and have no common total. Nothing was trained; set privacy.sampling to "
            f"{min(others)}"
        )


def _refuse_over_budget(charges: list[Charge], delta: float, budget: float) -> None:
    """`charges` end with the one that is asked for."""
    if not charges[-1].private:
        raise UserError(
            f"{charges[-1].cell} gives no privacy, and there is a budget of epsilon {budget:g} on this data. "
            "Nothing was trained; take it out of the sweep or set privacy.budget to null"
        )
    if (spent := total_epsilon(charges, delta)) > budget:
        before = total_epsilon(charges[:-1], delta)
        raise UserError(
            f"this run would bring the total spent on this data to epsilon {round_up(spent, 4)} at delta {delta:.3g}, "
            f"over the budget of {budget:g} (spent so far: {round_up(before, 4)}). Nothing was trained; "
            "raise privacy.budget or stop here"
        )


def _refuse_changes(run: str, before: Charge, now: Charge) -> None:
    pairs = [(f.name, getattr(before, f.name), getattr(now, f.name)) for f in fields(Charge)]
    if changed := [f"{name} was {old!r} and is {new!r}" for name, old, new in pairs if old != new]:
        raise UserError(f"run {run} cannot go on with other values than it was charged for:", changed)


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def show(name: str, ledger: Ledger, delta: float, budget: float | None) -> str:
    charges = list(ledger.charges().values())
    private = [c for c in charges if c.private]
    lines = [f"{name}: {len(charges)} run(s), {len(private)} of them private"]
    lines += [
        f"  {c.cell}: epsilon {round_up(total_epsilon([c], delta), 4)} "
        f"(sigma {c.sigma:.4g}, q {c.q:.4g}, {c.steps} steps)"
        if c.private
        else f"  {c.cell}: NOT PRIVATE; no epsilon covers its release"
        for c in charges
    ]
    spent = total_epsilon(private, delta)
    relation = private[0].sampling.relation.name.replace("_", "-").lower() if private else "no private run"
    lines.append(f"  all private runs together: epsilon {round_up(spent, 4)} at delta {delta:.3g}, {relation}")
    if budget is not None:
        lines.append(f"  budget {budget:g}, of which {max(0.0, budget - spent):.4g} is left")
    return "\n".join(lines)


def main() -> None:
    from stages import params
    from stages.keys import data_dir
    from stages.prepare.format import Manifest

    parser = argparse.ArgumentParser(
        prog="python -m stages.privacy.ledger",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dataset", help="a name in params.yaml; default: the datasets of the sweep")
    p, dataset = params.load(), parser.parse_args().dataset
    for name in [dataset] if dataset else p.sweep.dataset:
        manifest = Manifest.read(data_dir(name))
        delta = p.privacy.delta_or_none or 1 / (2 * manifest.n)
        print(show(name, Ledger(manifest.train.sha256), delta, p.privacy.budget))


if __name__ == "__main__":
    run_command(main)
