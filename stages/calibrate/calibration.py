"""A plan and a target (epsilon, delta) -> the noise of Algorithm 1 and every accountant's view of it."""

import math
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Literal

from stages.errors import UserError
from stages.privacy.accounting import Plan, calibrate_pld, calibrate_rdp, epsilon_pld, epsilon_rdp, pld_interval
from stages.privacy.claim import second_opinion
from stages.privacy.facts import Guarantee, Noise, TensorFlowPrivacy
from stages.privacy.sampling import PoissonSampling

AGREEMENT = 1e-6  # with TensorFlow Privacy's RDP epsilon; more is a mistake here or there, and stops the run


def calibrate(
    plan: Plan, sampler: str, epsilon: float, delta: float, convention: Literal["sound", "paper"] = "sound"
) -> Guarantee:
    """`plan` says how the batches are drawn and what is clipped; its sigma is replaced by the one that is needed."""
    sampling = plan.sampling
    by_rdp = calibrate_rdp(plan, epsilon, delta)
    by_pld = calibrate_pld(by_rdp, epsilon, delta)
    # The paper's reading: RDP, and the sensitivity taken to be C, so that z itself is used for sigma.
    plan = (by_pld or by_rdp) if convention == "sound" else by_rdp.with_z(by_rdp.z / by_rdp.factor)

    interval = pld_interval(epsilon)
    rdp, pld = epsilon_rdp(plan, delta), epsilon_pld(plan, delta, interval)
    accountant = "pld" if pld is not None and pld < rdp else "rdp"
    claimed = rdp if pld is None else min(rdp, pld)
    return Guarantee(
        epsilon=claimed,
        epsilon_rdp=rdp,
        epsilon_pld=pld,
        pld_interval=None if pld is None else interval,
        epsilon_paper=epsilon_rdp(plan.as_the_paper_reads_it(), delta),
        delta=delta,
        convention=convention,
        accountant=accountant,
        adjacency=sampling.adjacency.value,
        sampler=sampler,
        n=sampling.n,
        batch_size=sampling.batch_size,
        q=sampling.q,
        steps=plan.steps,
        z=plan.z,
        sigma=plan.sigma,
        sensitivity=plan.factor,
        noise_by_accountant={
            name: found and Noise(z=found.z, sigma=found.sigma) for name, found in (("rdp", by_rdp), ("pld", by_pld))
        },
        tensorflow_privacy=_tensorflow_privacy(plan, delta, rdp),
        second_opinion=second_opinion(plan, delta, claimed),
    )


def _tensorflow_privacy(plan: Plan, delta: float, by_rdp: float) -> TensorFlowPrivacy | None:
    """TensorFlow Privacy's own statement, for Poisson. `used_microbatching` is its name for sensitivity 2C."""
    sampling = plan.sampling
    if not isinstance(sampling, PoissonSampling):
        return None
    tfp = _its_library()
    microbatching = plan.factor == 2.0
    epochs = plan.steps * sampling.q
    if math.ceil(epochs / sampling.q) != plan.steps:  # how it counts steps: where rounding adds one, say a little less
        epochs = (plan.steps - 0.5) * sampling.q
    epsilon = tfp._compute_dp_sgd_example_privacy(epochs, plan.sigma, delta, microbatching, sampling.q)
    if abs(epsilon - by_rdp) > AGREEMENT:
        raise UserError(
            f"TensorFlow Privacy gives epsilon {epsilon!r} where this project's RDP accounting gives {by_rdp!r}; "
            f"they must agree to {AGREEMENT:g}. Nothing was trained. Install the versions of requirements.lock"
        )
    statement = tfp.compute_dp_sgd_privacy_statement(
        sampling.n, sampling.batch_size, epochs, plan.sigma, delta, used_microbatching=microbatching
    )
    return TensorFlowPrivacy(epsilon=epsilon, statement=statement)


def _its_library() -> ModuleType:
    """The file that has its accounting, by itself: the package also imports TensorFlow, which takes five seconds."""
    package = find_spec("tensorflow_privacy")
    if package is None or package.origin is None:
        raise UserError("the package tensorflow-privacy is not installed; run: make setup")
    path = Path(package.origin).parent / "privacy/analysis/compute_dp_sgd_privacy_lib.py"
    library = ModuleType("tensorflow_privacy_accounting")
    SourceFileLoader(library.__name__, str(path)).exec_module(library)
    return library
