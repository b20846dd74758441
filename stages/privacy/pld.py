"""dp-accounting's PLD accountant, several times as fast: of a Poisson-sampled Gaussian all points at once.

dp-accounting inverts the privacy loss point by point in Python, tens of thousands of times for one epsilon, which is
most of a calibration. Here the same formulas, operation for operation, are applied to an array; where its code treats
a point apart it is asked for that point. Epsilons are the same to the last bit (tests/privacy/test_pld.py).

    >>> from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    >>> event = SelfComposedDpEvent(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0)), 100)
    >>> round(PLDAccountant(value_discretization_interval=1e-3).compose(event).get_epsilon(1e-5), 3)
    0.718
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from dp_accounting import DpEvent, GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent, pld
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss

Points = npt.NDArray[np.float64]


class PLDAccountant(pld.PLDAccountant):  # type: ignore[misc]
    _pld: Any  # what was composed so far

    def _maybe_compose(self, event: DpEvent, count: int, do_compose: bool) -> Any:
        """What is not a Poisson-sampled Gaussian under add-or-remove, and every refusal, is dp-accounting's."""
        ours = isinstance(event, PoissonSampledDpEvent) and isinstance(event.event, GaussianDpEvent)
        if ours and do_compose and self.neighboring_relation == NeighboringRelation.ADD_OR_REMOVE_ONE:
            q, z = event.sampling_probability, event.event.noise_multiplier
            if 0 < q < 1 and z > 0:
                step = _sampled_gaussian(z, q, self._value_discretization_interval)
                self._pld = self._pld.compose(step.self_compose(count))
                return None
        return super()._maybe_compose(event, count, do_compose)


def _sampled_gaussian(z: float, q: float, interval: float) -> Any:
    """As its `from_gaussian_mechanism` puts it together: rounded up, by connecting the dots."""

    def pmf(adjacency: AdjacencyType) -> Any:
        loss = _GaussianLoss(z, sampling_prob=q, adjacency_type=adjacency)
        return privacy_loss_distribution._create_pld_pmf_from_additive_noise(
            loss, value_discretization_interval=interval, use_connect_dots=True
        )

    return privacy_loss_distribution.PrivacyLossDistribution(pmf(AdjacencyType.REMOVE), pmf(AdjacencyType.ADD))


class _GaussianLoss(GaussianPrivacyLoss):  # type: ignore[misc]
    def get_delta_for_epsilon(self, epsilon: Points) -> Points:
        """The hockey-stick divergence at each point, clipped to [0, 1]."""
        adds, edge = self.adjacency_type == AdjacencyType.ADD, -math.log1p(-self.sampling_prob)
        inner = epsilon < edge if adds else epsilon > -edge
        deltas = np.zeros(len(epsilon)) if adds else -np.expm1(epsilon)
        x = self._inverse(epsilon[inner])
        deltas[inner] = self.mu_upper_cdf(x) - np.exp(epsilon[inner] + self.mu_lower_log_cdf(x))
        return np.clip(deltas, 0, 1)

    def _inverse(self, loss: Points) -> Points:
        """(points,): the largest x at which the privacy loss is at least `loss`: by way of the loss without sampling,
        log(1 + (exp(loss) - 1) / q) where a record is removed, and the negative of it at -loss where one is added.
        """
        sign = -1 if self.adjacency_type == AdjacencyType.ADD else 1
        a, b = np.log(1 / self.sampling_prob), np.log(1 / self.sampling_prob - 1)  # of exp(loss), and of the constant
        edge = sign * math.log(1 - self.sampling_prob)
        apart = (np.abs(loss - edge) <= 1e-8 * np.abs(loss)) | (loss == 0)
        d = sign * loss[~apart] + a
        found = np.empty(len(loss))
        found[~apart] = self.inverse_privacy_loss_without_subsampling(sign * (d + np.log1p(-np.exp(b - d))))
        found[apart] = [self.inverse_privacy_loss(each) for each in loss[apart]]
        return found
