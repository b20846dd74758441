"""What may leave the house, and what may not: refused before anything is written.

Released are models whose claim holds: a sound (epsilon, delta) that was computed again from the plan, of the run that
was charged, for weights and records that are those of the run. Not released are models without a guarantee, and those
with the paper's noise, whatever `publish.not_private` says: a store in the house can be emptied again.

Epsilon 0 is released: these are the public initial weights, so nothing is charged and nothing adds up. It is what
others compare a private model with.
"""

from stages.data.manifest import Manifest
from stages.errors import UserError
from stages.keys import Cell, data_dir, initial_model_dir
from stages.models import saved
from stages.privacy import secret
from stages.privacy.facts import TrainingFacts, round_up
from stages.privacy.ledger import ALL, Ledger
from stages.privacy.records import Records
from stages.report.joint import Joint, Spending
from stages.report.table import Outcome, read_outcome


def released_outcome(cell: Cell) -> Outcome:
    """The cell with all that is known of it; refuses what must stay."""
    training = TrainingFacts.read(cell.training_json)
    if why := _no_guarantee(training):
        raise UserError(f"{cell} is not released: {why}")
    outcome = read_outcome(cell)
    _require_one_story(cell, training)
    if outcome.metrics.weights != training.weights:
        raise UserError(
            f"{cell.metrics_json} has the scores of another model than {cell.model_dir}, and they may be covered by no "
            f"epsilon. Nothing was released; run: dvc repro, or python -m stages.evaluate --cell {cell}"
        )
    if cell.is_private:
        _require_same_records(cell, training)
    elif saved.changed(cell.model_dir):
        raise UserError(f"{cell} is not released: its weights are not the initial ones; run: dvc repro")
    return outcome


def joint_within(outcome: Outcome, budget: float | None) -> tuple[Joint | None, frozenset[str]]:
    """What all models released so far tell together with this one, and the runs of those; refuses what is too much."""
    spending = Spending([outcome])
    joint = spending.joint(outcome.cell.dataset)
    if joint and budget is not None and joint.published > budget:
        raise UserError(
            f"{outcome.cell} is not released: with what was released before from the same records it would come to "
            f"epsilon {round_up(joint.published, 4)} at delta {joint.delta:.3g}, over privacy.release_budget of "
            f"{budget:g}. See what is out: python -m stages.ledger --dataset {outcome.cell.dataset}"
        )
    return joint, spending.released


def _no_guarantee(training: TrainingFacts) -> str | None:
    """Why its weights tell more than an epsilon says."""
    facts, g = training.privacy, training.privacy.guarantee
    if facts.target == "0":
        return None
    if g is None:
        return (
            "it was trained without privacy, so whoever is given its weights is given what they say about the private "
            "records. Release a cell with an epsilon"
        )
    if training.key != "os":
        return (
            "its noise came from a fixed seed, and whoever knows the seed can subtract it. Set "
            "privacy.unsafe_noise_seed to null and train it again"
        )
    if training.diagnostics is not None:
        return (
            "its run kept private figures of each step (unsafe_diagnostics), so it has no guarantee. Set "
            "privacy.unsafe_diagnostics to false and train it again"
        )
    if g.convention != "sound":
        return (
            f"its noise was chosen by the paper's convention, which is not sound: its epsilon is "
            f"{round_up(g.epsilon, 4)}, not {facts.target}. Set privacy.convention to sound and train it again"
        )
    return None


def _require_one_story(cell: Cell, training: TrainingFacts) -> None:
    """What the statement will say is what the cell, the data and the initial model say."""
    facts = training.privacy
    told = [
        ("cell", training.cell, str(cell)),
        ("task", facts.task, cell.task),
        ("dataset", facts.dataset, cell.dataset),
        ("method", facts.method, cell.method),
        ("target", facts.target, cell.epsilon),
        ("whether there is a guarantee", facts.guarantee is not None, cell.is_private),
        ("initial_model", training.initial_model, saved.sha256(initial_model_dir(cell.model))),
    ]
    if cell.is_private:
        told.append(("unit", training.unit, Manifest.read(data_dir(cell.dataset)).unit))
    if wrong := [f"{name} is {said!r} there and {found!r} here" for name, said, found in told if said != found]:
        raise UserError(
            f"{cell.training_json} is not about {cell} as it is here now. Nothing was released; run: dvc repro", wrong
        )


def _require_same_records(cell: Cell, training: TrainingFacts) -> None:
    """Of other records than the run was charged for, the joint epsilon would be that of others."""
    folder = data_dir(cell.dataset)
    secret.require(Manifest.read(folder).ledger, str(folder))
    charged = {entry.run: entry.records for entry in Ledger().entries()}.get(training.run or "")
    if charged not in (None, ALL, Records.read(folder).id):  # None: the report's own check says what is wrong
        raise UserError(
            f"{folder} has other records now than {cell} was trained on, so what was released from those cannot be "
            "added up. Nothing was released; run: dvc repro"
        )
