"""(epsilon, delta, n, batch size, epochs, method) -> the noise of Algorithm 1 and every accountant's view of it."""

from typing import Literal

from stages.errors import UserError
from stages.privacy.accounting import calibrate_pld, calibrate_rdp, epsilon_pld, epsilon_rdp, pld_interval
from stages.privacy.facts import Guarantee, Noise, TensorFlowPrivacy
from stages.privacy.mechanism import METHODS
from stages.privacy.sampling import PoissonSampling

AGREEMENT = 1e-6  # with TensorFlow Privacy's RDP epsilon; more is a mistake here or there, and stops the run


def calibrate(
    *,
    n: int,
    batch_size: int,
    epochs: float,
    epsilon: float,
    method: str,
    delta: float | None = None,
    convention: Literal["sound", "paper"] = "sound",
) -> Guarantee:
    delta = 1 / (2 * n) if delta is None else delta
    sampling = PoissonSampling(n, batch_size)
    T = sampling.steps(epochs)
    factor = METHODS[method].sensitivity_factor  # sigma = factor * z

    z_rdp = calibrate_rdp(sampling, T, epsilon, delta)
    z_pld = calibrate_pld(sampling, T, epsilon, delta, z_rdp)
    best = min(z for z in (z_rdp, z_pld) if z is not None)
    sigma = factor * best if convention == "sound" else z_rdp  # the paper's reading: sensitivity C, RDP
    z = sigma / factor

    by_rdp = epsilon_rdp(sampling, z, T, delta)
    by_pld = epsilon_pld(sampling, z, T, delta, pld_interval(epsilon))
    return Guarantee(
        epsilon=min(by_rdp, by_pld),
        epsilon_rdp=by_rdp,
        epsilon_pld=by_pld,
        epsilon_paper=epsilon_rdp(sampling, sigma, T, delta),
        delta=delta,
        convention=convention,
        accountant="rdp" if by_rdp <= by_pld else "pld",
        adjacency=sampling.relation.name,
        sampler=sampling.name,
        n=n,
        batch_size=batch_size,
        epochs=epochs,
        q=sampling.q,
        steps=T,
        z=z,
        sigma=sigma,
        sensitivity=factor,
        noise_by_accountant={
            "rdp": Noise(z=z_rdp, sigma=factor * z_rdp),
            "pld": z_pld and Noise(z=z_pld, sigma=factor * z_pld),
        },
        tensorflow_privacy=_second_opinion(sampling, T, epochs, sigma, delta, factor, by_rdp),
    )


def _second_opinion(sampling, T, epochs, sigma, delta, factor, by_rdp) -> TensorFlowPrivacy:
    """TensorFlow Privacy's own statement. `used_microbatching` is its name for sensitivity 2C."""
    from tensorflow_privacy.privacy.analysis import compute_dp_sgd_privacy_lib as tfp

    microbatching = factor == 2.0
    # It counts ceil(epochs / q) steps in floating point: where that is not T, give it epochs that round to T.
    if -(-epochs // sampling.q) != T:
        epochs = (T - 0.5) * sampling.q
    epsilon = tfp._compute_dp_sgd_example_privacy(epochs, sigma, delta, microbatching, sampling.q)
    if abs(epsilon - by_rdp) > AGREEMENT:
        raise UserError(
            f"TensorFlow Privacy gives epsilon {epsilon!r} where this project's RDP accounting gives {by_rdp!r}; "
            f"they must agree to {AGREEMENT:g}. Nothing was trained. Install the versions of requirements.lock"
        )
    statement = tfp.compute_dp_sgd_privacy_statement(
        sampling.n, sampling.batch_size, epochs, sigma, delta, used_microbatching=microbatching
    )
    return TensorFlowPrivacy(epsilon=epsilon, statement=statement)
