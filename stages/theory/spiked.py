"""The paper's model of data: x = U1 z + xi and y = U2 z + xi~, one signal seen in two modalities, each with its noise.

The coordinates of z are signs times the square roots of the signal's variances, which are 1 to 1/kappa. Noises are
Gaussian with covariances whose largest eigenvalue is 1 / snr and whose effective rank (trace / largest) is as chosen;
the other eigenvalues fall off geometrically.

    >>> round(float(noise_spectrum(6, effective_rank=2.0).sum()), 6)
    2.0
"""

import functools
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class Spiked:
    d1: int
    d2: int
    r: int
    snr: float  # s^2 of the paper, the same in both modalities
    effective_rank: float
    kappa: float = 1.0

    @property
    def rd(self) -> int:
        return self.r * (self.d1 + self.d2)

    @property
    def complexity(self) -> float:
        """r + s1^-2 r_e + s2^-2 r_e, on which the statistical error depends."""
        return self.r + 2 * self.effective_rank / self.snr

    def draw(self, rng: np.random.Generator, trials: int, n: int) -> "Sample":
        """Independent data for every trial."""
        variances = np.linspace(1, 1 / self.kappa, self.r)
        z = (2 * rng.integers(2, size=(trials, n, self.r), dtype=np.int8) - 1) * np.sqrt(variances, dtype=np.float32)
        bases = [np.linalg.qr(rng.standard_normal((trials, d, self.r))).Q for d in (self.d1, self.d2)]
        seen = [self._seen(rng, z, basis) for basis in bases]
        population = (bases[0] * variances) @ bases[1].swapaxes(1, 2)
        return Sample(torch.from_numpy(seen[0]), torch.from_numpy(seen[1]), torch.from_numpy(population))

    def _seen(self, rng: np.random.Generator, z: np.ndarray, basis: np.ndarray) -> np.ndarray:
        d = basis.shape[1]
        scale = np.sqrt(noise_spectrum(d, self.effective_rank) / self.snr).astype(np.float32)
        noise = rng.standard_normal((*z.shape[:2], d), dtype=np.float32) * scale
        return noise + z.astype(np.float32) @ basis.swapaxes(1, 2).astype(np.float32)


@dataclass(frozen=True)
class Sample:
    x: torch.Tensor  # (trials, n, d1), float32
    y: torch.Tensor  # (trials, n, d2), float32
    population: torch.Tensor  # (trials, d1, d2): the cross-covariance that generates them

    @functools.cached_property
    def rows(self) -> torch.Tensor:
        """(trials * n + 1, d1 + d2): the records of all trials, and at the end one of zeros, which adds nothing."""
        return torch.nn.functional.pad(torch.cat([self.x, self.y], dim=-1).flatten(0, 1), (0, 0, 0, 1))


def noise_spectrum(d: int, effective_rank: float) -> np.ndarray:
    """1, rho, rho^2, ... with the sum that is asked for."""
    if not 1 <= effective_rank <= d:
        raise ValueError(f"the effective rank of a {d} x {d} covariance is between 1 and {d}; got {effective_rank}")
    low, high = 0.0, 1.0
    for _ in range(60):
        rho = (low + high) / 2
        low, high = (rho, high) if (rho ** np.arange(d)).sum() < effective_rank else (low, rho)
    return high ** np.arange(d)
