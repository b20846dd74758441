"""What is claimed of a model holds for the noise it had: every number is computed again from the plan that runs.

A privacy.json whose sigma was edited would otherwise train with that sigma under the old epsilon. So the accountants
run again before anything is charged (`verify`) and before anything is reported (`verify_training`), once for each
distinct plan; what differs is refused. The claim must also not lie below the interval of an accountant of another
family (prv.py). The cost for one plan is that of one PLD and one PRV: about half a second for the demo's.
"""

import functools
import math
from typing import Any

from stages.errors import UserError
from stages.privacy import prv
from stages.privacy.accounting import Plan, epsilon_pld, epsilon_rdp
from stages.privacy.facts import Guarantee, PrivacyFacts, SecondOpinion, TrainingFacts
from stages.privacy.methods import METHODS
from stages.privacy.methods.batch import BatchClipping
from stages.privacy.sampling import PoissonSampling, Sampling, sampling_of

AGREEMENT = 1e-6  # relative; the same accountants on the same plan differ by rounding alone


def verify(facts: PrivacyFacts, plan: Plan) -> None:
    """Refuse a guarantee that is not that of the plan, or not what the cell was to have. What is cheap comes first."""
    g = facts.guarantee
    if g is None:
        return
    for compare in (_the_plan, _by_rdp, _by_pld, _by_another_family):
        if problems := compare(g, plan, float(facts.target)):
            raise UserError(
                f"the calibration of {facts.dataset}, {facts.method}, target {facts.target} is not that of its noise. "
                "Nothing is trained or reported with it; run: dvc repro",
                problems,
            )


def verify_training(training: TrainingFacts) -> None:
    """The same of a finished training; the plan is rebuilt from what the training says it did."""
    facts, used = training.privacy, training.train or {}
    g = facts.guarantee
    if g is None:
        return
    try:
        sampling = sampling_of(g.sampler, g.n, used["batch_size"], facts.public_n)
        mechanism = METHODS[facts.method].planned(used, g.sigma)
        plan = Plan(sampling, mechanism, used.get("steps") or sampling.steps(used["epochs"]))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{training.cell}: training.json does not say what was trained ({error!r}); run: dvc repro"
        ) from None
    verify(facts, plan)


def second_opinion(plan: Plan, delta: float, epsilon: float) -> SecondOpinion | None:
    """Where the true epsilon of a plan lies, by another family; a claim below it is refused. None: it has no analysis.

    Sampling without replacement is analysed by RDP alone: no accountant of another family covers it.
    """
    if not isinstance(plan.sampling, PoissonSampling):
        return None
    lower, upper = prv.interval(plan.sampling.q, plan.z, plan.steps, delta)
    if not epsilon >= lower:
        raise UserError(
            f"epsilon {epsilon!r} is claimed at delta {delta:g}, and by the privacy loss it is {lower!r} at least. "
            "Nothing was trained; install the versions of requirements.lock"
        )
    return SecondOpinion(accountant="prv", lower=lower, upper=upper, error=(upper - lower) / 2)


def _the_plan(g: Guarantee, plan: Plan, target: float) -> list[str]:
    sampling = plan.sampling
    problems = _differences(
        ("adjacency", g.adjacency, sampling.neighbours and sampling.neighbours.value),
        ("n", g.n, sampling.n),
        ("batch_size", g.batch_size, sampling.batch_size),
        ("q", g.q, sampling.q),
        ("steps", g.steps, plan.steps),
        ("sensitivity", g.sensitivity, plan.factor),
        ("sigma", g.sigma, plan.sigma),
        ("z", g.z, plan.z),
        ("epsilon", g.epsilon, min(g.epsilon_rdp, g.epsilon_rdp if g.epsilon_pld is None else g.epsilon_pld)),
    )
    reached = g.epsilon if g.convention == "sound" else g.epsilon_paper
    over = [f"epsilon is {reached!r}, over the target {target:g}"] if reached > target * (1 + AGREEMENT) else []
    return problems + over


def _by_rdp(g: Guarantee, plan: Plan, target: float) -> list[str]:
    found = _rdp(plan.sampling, plan.z, plan.steps, g.delta)
    by_tensorflow = g.tensorflow_privacy.epsilon if g.tensorflow_privacy else g.epsilon_rdp
    return _differences(
        ("epsilon_rdp", g.epsilon_rdp, found),
        ("tensorflow_privacy.epsilon", by_tensorflow, found),
        ("epsilon_paper", g.epsilon_paper, _rdp(plan.sampling, plan.sigma, plan.steps, g.delta)),
    )


def _by_pld(g: Guarantee, plan: Plan, target: float) -> list[str]:
    covered = isinstance(plan.sampling, PoissonSampling)
    if covered != (g.pld_interval is not None):
        return [f"pld_interval is {g.pld_interval!r}"]
    found = _pld(plan.sampling, plan.z, plan.steps, g.delta, g.pld_interval) if covered else None
    return _differences(("epsilon_pld", g.epsilon_pld, found))


def _by_another_family(g: Guarantee, plan: Plan, target: float) -> list[str]:
    found, said = second_opinion(plan, g.delta, g.epsilon), g.second_opinion
    if found is None or said is None:
        return _differences(("second_opinion", said, found))
    # Its ends depend a little on the machine's arithmetic, by which the grid is chosen; where they are, hardly.
    off = max(abs(said.lower - found.lower), abs(said.upper - found.upper))
    return _differences(("second_opinion", said, found)) if off > 0.1 * found.error else []


@functools.cache
def _rdp(sampling: Sampling, z: float, steps: int, delta: float) -> float:
    """The accountants know of a mechanism no more than z: all clip units of one z share a result."""
    return epsilon_rdp(Plan(sampling, BatchClipping(1.0, 1.0), steps).with_z(z), delta)


@functools.cache
def _pld(sampling: Sampling, z: float, steps: int, delta: float, interval: float) -> float | None:
    return epsilon_pld(Plan(sampling, BatchClipping(1.0, 1.0), steps).with_z(z), delta, interval)


def _differences(*compared: tuple[str, Any, Any]) -> list[str]:
    return [
        f"{name} is {said!r} in the file and {found!r} for the plan"
        for name, said, found in compared
        if not (math.isclose(said, found, rel_tol=AGREEMENT) if isinstance(found, float) else said == found)
    ]
