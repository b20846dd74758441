"""What all models together tell about a record, beside what each of them tells by itself.

Whoever is given several models trained on the same records may combine them: their joint epsilon is that of all their
steps composed, and is larger than each model's own. It stands with every claim, as does that of all runs ever charged
to the records, published or not. What was ever released (stages/release) counts as published. A mean over trials is a
function of as many models.
"""

import datetime
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from stages.data.manifest import Manifest
from stages.errors import UserError
from stages.keys import data_dir
from stages.privacy import secret
from stages.privacy.facts import TrainingFacts, round_up
from stages.privacy.ledger import Charge, Ledger
from stages.privacy.records import Records
from stages.privacy.releases import Releases
from stages.report.statement import has_guarantee, sound_epsilon
from stages.report.table import Outcome


@dataclass(frozen=True)
class Joint:
    """Of the records of one dataset, when the report was made."""

    delta: float
    models: int  # private ones that are published together: of the sweep, in the store before, or ever released
    published: float  # their epsilon
    runs: int  # private ones ever charged to these records
    ever: float
    without: int  # runs ever made on them that no epsilon covers

    def sentence(self, which: str = "published together") -> str:
        uncovered = f"; {self.without} run(s) on these records are covered by no epsilon" if self.without else ""
        return (
            f"the {self.models} private model(s) {which} have epsilon {round_up(self.published, 4)}, "
            f"all {self.runs} private run(s) ever charged to these records {round_up(self.ever, 4)}, "
            f"at delta {round_up(self.delta, 3)}{uncovered} (as of {datetime.datetime.now(datetime.UTC):%Y-%m-%d})"
        )


class Spending:
    """Looks up in the ledger what was spent by the runs of a sweep, and by all others on the same records."""

    def __init__(self, outcomes: Sequence[Outcome], published_before: Collection[str] = ()):
        self._ledger = Ledger()
        charged = {entry.run: entry.charge for entry in self._ledger.entries()}
        self.released = Releases().runs()
        if lost := self.released - charged.keys():
            raise UserError(
                f"{len(lost)} run(s) that were released are not in the ledger {secret.folder()}: what they told about "
                "the records cannot be added up. Bring the whole folder back from a backup"
            )
        own = {o.training.run for o in outcomes if o.training.run is not None}
        self._runs = own | self.released | set(published_before)
        self._records: dict[str, Records] = {}
        for outcome in outcomes:
            folder = data_dir(outcome.cell.dataset)
            if outcome.cell.epsilon == "0":
                continue  # nothing was trained
            _require_charged(outcome, charged.get(outcome.training.run or ""))
            if outcome.cell.dataset not in self._records:
                secret.require(Manifest.read(folder).ledger, str(folder))
                self._records[outcome.cell.dataset] = Records.read(folder)
        self._deltas = {o.cell.dataset: g.delta for o in outcomes if (g := o.training.privacy.guarantee)}

    def joint(self, dataset: str) -> Joint | None:
        """None where nothing private was trained."""
        if dataset not in self._records or dataset not in self._deltas:
            return None
        records, delta = self._records[dataset], self._deltas[dataset]
        charges = self._ledger.on(records)
        private = {run for run, charge in charges.items() if charge.private}
        return Joint(
            delta=delta,
            models=len(private & self._runs),
            published=self._ledger.total(records, delta, self._runs),
            runs=len(private),
            ever=self._ledger.total(records, delta),
            without=len(charges) - len(private),
        )

    def together(self, trials: Sequence[TrainingFacts]) -> float:
        """Epsilon of a figure that is made of all these models, as their mean is."""
        each = [sound_epsilon(training) for training in trials]
        if len(trials) == 1 or max(each) in (0, float("inf")):
            return max(each)
        dataset = trials[0].privacy.dataset
        return self._ledger.total(self._records[dataset], self._deltas[dataset], {t.run for t in trials if t.run})


def _require_charged(outcome: Outcome, charge: Charge | None) -> None:
    """The claim is about the run that was charged, with the noise that was charged."""
    training, where = outcome.training, outcome.cell.training_json
    if charge is None:
        raise UserError(
            f"{where} is of a run that is not in the ledger {secret.folder()}: its model came from somewhere else, and "
            "what it tells about the records is not counted here. Set LEDGER_DIR to the ledger it was charged to, or "
            "train it here: dvc repro --force"
        )
    g = training.privacy.guarantee
    claimed: tuple[object, ...] = (training.cell, has_guarantee(training))
    charged: tuple[object, ...] = (charge.cell, charge.private)
    if g:
        claimed += (g.n, g.q, g.steps, g.sigma, g.z, (training.train or {}).get("clip_norm"))
        charged += (charge.n, charge.q, charge.steps, charge.sigma, charge.z, charge.clip_norm)
    if claimed != charged or training.cell != str(outcome.cell):
        raise UserError(f"{where} claims another cell, noise or number of steps than its run was charged for")
