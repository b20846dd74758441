"""How much one private step really gives away, at least: an adversary who runs it thousands of times.

Two neighbouring datasets: with the target record, and with an empty one in its place, that contributes nothing. Every
run has a key of the operating system, and goes through the training's own sampler, assignment to units, and
private_gradient (clip, sum, noise). The adversary is the one that the accounting is about: it knows the data, the code
and all draws but two, whether the target was drawn and what the noise is. So it knows the noiseless sums with and
without the target, and looks at

    T = how far the output lies from the sum without towards the sum with, in standard deviations of the noise

which is N(0, 1) without the target, and N(distance / (sigma C), 1) with it. The claim of a step is a trade-off: (1 - q)
N(0, 1) + q N(mu, 1) against N(0, 1), mu = 1 / z. From how often an event is seen on both sides, with Clopper and
Pearson's bounds, follows the least mu for which the claim could be true, and from that the least epsilon.

The events are fixed beforehand. A bound fails with probability 10^-8, so a false alarm of one audit has probability
below 10^-7.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import beta, norm

from stages.privacy import factored
from stages.privacy.accounting import Plan, epsilon_pld
from stages.privacy.grid import grid_of
from stages.privacy.mechanism import Mechanism
from stages.privacy.randomness import Key
from stages.privacy.sampling import Sampling
from stages.train import loop
from stages.train.loop import Work, private_gradient

FAILS = 1e-8  # the probability that a bound does not hold
LARGEST = 40.0  # mu beyond which no one asks
DELTA, INTERVAL = 1e-5, 1e-3
AT_ONCE = 64


@dataclass(frozen=True)
class Step:
    """What is audited: a claim, and what runs. The target is the last record."""

    claimed: Plan
    objective: object
    parameters: Mapping[str, torch.Tensor]
    records: tuple[Mapping[str, torch.Tensor], ...]  # of each step that the adversary sees
    sampler: Sampling | None = None  # where it is not the claimed one
    mechanism: Mechanism | None = None

    @property
    def mu(self) -> float:
        """Of all steps together; several only without sampling, where they are one Gaussian."""
        assert len(self.records) == 1 or self.claimed.sampling.q == 1
        return np.sqrt(len(self.records)) / self.claimed.z

    def run(self, with_target: bool) -> tuple[float, int]:
        """T, and how many others were drawn."""
        key, target = Key.from_os(), self.claimed.sampling.n - 1
        mechanism = self.mechanism or self.claimed.mechanism
        T, others = 0.0, np.array([])
        for t, rows in enumerate(self.records):
            drawn = (self.sampler or self.claimed.sampling).sample(key, t, target + 1)
            others, times = drawn[drawn != target], (drawn == target).sum()
            without, with_it = (
                self._batch(rows, batch, mechanism, key, t)
                for batch in (others, np.append(others, [target] * max(1, times)))
            )
            records, units = with_it if with_target and times else without
            size = self.claimed.sampling.batch_size
            output, _ = private_gradient(
                self.objective, self.parameters, records, Work(units), mechanism, key, t, AT_ONCE, size
            )
            start, end = (self._sum(*batch, mechanism, size) for batch in (without, with_it))
            towards = (end - start) / np.linalg.norm(end - start)
            T += (flat(output) - start) @ towards / (mechanism.sigma * mechanism.clip_norm)
        return T / np.sqrt(len(self.records)), len(others)

    def _batch(self, rows, drawn: np.ndarray, mechanism: Mechanism, key: Key, t: int):
        """Records and the unit of each; in the order of units, so that equal batches look the same."""
        units = mechanism.assign(drawn, key, t)
        order = np.argsort(units, kind="stable")
        return {k: v[drawn[order]] for k, v in rows.items()} if len(drawn) else {}, units[order]

    def _sum(self, rows, units: np.ndarray, mechanism: Mechanism, size: int) -> np.ndarray:
        summed = factored.clipped_sum if self.objective.factors else loop.clipped_sum
        expected = mechanism.expected_units(size)
        C = mechanism.clip_norm
        return flat(summed(self.objective, self.parameters, rows, units, C, AT_ONCE, expected)[0]) * grid_of(C)


def flat(tensors) -> np.ndarray:
    return np.concatenate([t.detach().double().numpy().ravel() for t in tensors])


@contextmanager
def remembered() -> Iterator[None]:
    """A noiseless sum is a pure function: of the same records in the same units it is computed once."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (loop, factored):
            patch.setattr(module, "clipped_sum", _remembering(module.clipped_sum))
        yield


def _remembering(summed: Callable) -> Callable:
    known = {}

    def once(objective, parameters, records, units, *rest):
        key = (units.tobytes(), *(rows.numpy().tobytes() for rows in records.values()))
        if key not in known:
            known[key] = summed(objective, parameters, records, units, *rest)
        total, figures = known[key]
        return [t.clone() for t in total], figures

    return once


def audit(step: Step, runs: int) -> tuple[float, float]:
    """(the claimed epsilon, a lower bound on the real one), at DELTA."""
    with remembered():
        without, with_it = (np.array([step.run(there) for _ in range(runs)]) for there in (False, True))
    claimed, q = step.mu, step.claimed.sampling.q
    # If batches had one size, the number of others would show whether the target is there.
    one_less = step.claimed.sampling.batch_size - 1
    nears = [lambda T, _: 0.75 * claimed < T, lambda T, _: 1.5 * claimed < T]
    fars = [lambda T, _: 0.5 * claimed >= T, lambda T, others: (0.5 * claimed >= T) & (others == one_less)]

    def shares(event: Callable) -> list[int]:
        return [int(event(*sample.T).sum()) for sample in (without, with_it)]

    least = [_least_mu(*shares(event)[::-1], runs, lambda mu, share: _more(mu, share, q)) for event in nears]
    least += [_least_mu(*shares(event), runs, lambda mu, share: _less(mu, share, q)) for event in fars]
    found = max(least)
    return _epsilon(step, claimed), np.inf if found == LARGEST else _epsilon(step, found)


def _least_mu(often: int, seldom: int, runs: int, power: Callable[[float, float], float]) -> float:
    """The smallest mu under which an event of the one share on one side may have the other share on the other."""
    high = beta.ppf(FAILS, often, runs - often + 1) if often else 0.0
    low = beta.isf(FAILS, seldom + 1, runs - seldom) if seldom < runs else 1.0
    if power(LARGEST, low) < high:
        return LARGEST
    return brentq(lambda mu: power(mu, low) - high, 0.0, LARGEST) if power(0.0, low) < high else 0.0


def _more(mu: float, share: float, q: float) -> float:
    """The largest share with the target of an event that has `share` without it."""
    return q * norm.sf(norm.isf(share) - mu) + (1 - q) * share


def _less(mu: float, share: float, q: float) -> float:
    """The largest share without the target of an event that has `share` with it."""
    if share >= 1:
        return 1.0
    cut = brentq(lambda c: (1 - q) * norm.cdf(c) + q * norm.cdf(c - mu) - share, -LARGEST, 2 * LARGEST)
    return norm.cdf(cut)


def _epsilon(step: Step, mu: float) -> float:
    """Of one step with this mu (steps without sampling are one)."""
    return epsilon_pld(replace(step.claimed.with_z(1 / mu), steps=1), DELTA, INTERVAL) if mu > 0 else 0.0
