"""Exponents: the slope of log error against log x, with a bootstrap interval over trials."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 2000
TOLERANCE = 0.1  # of an exponent that is called the same
FEWEST = 3  # points of a line


@dataclass(frozen=True)
class Exponent:
    of: str  # which error, in which quantity, by which method
    predicted: float
    fitted: float
    low: float
    high: float
    points: int
    decades: float

    @property
    def agrees(self) -> bool:
        return abs(self.fitted - self.predicted) <= TOLERANCE


def fit(of: str, predicted: float, x: Sequence[float], errors: Sequence[Sequence[float]], seed: int = 0) -> Exponent:
    """`errors` has the trials of each x.

    >>> found = fit("e", -0.5, [1, 10, 100], [[1, 1.1, 0.9], [0.32, 0.3, 0.33], [0.1, 0.11, 0.09]])
    >>> round(found.fitted, 2), found.low < -0.5 < found.high, found.agrees, found.decades
    (-0.5, True, True, 2.0)
    """
    rng = np.random.default_rng(seed)
    logs, trials = np.log(np.asarray(x, dtype=float)), [np.asarray(e, dtype=float) for e in errors]
    if len(logs) < FEWEST:
        raise ValueError(f"a line through {len(logs)} points says nothing of an exponent; {FEWEST} are needed")

    def slope(means: np.ndarray) -> np.ndarray:
        centred = logs - logs.mean()
        return np.log(means) @ centred / (centred @ centred)

    again = np.stack([e[rng.integers(len(e), size=(RESAMPLES, len(e)))].mean(1) for e in trials], axis=1)
    low, high = np.quantile(slope(again), [0.025, 0.975])
    found = slope(np.array([e.mean() for e in trials]))
    decades = float(np.ptp(logs) / np.log(10))
    return Exponent(of, predicted, float(found), float(low), float(high), len(logs), round(decades, 2))
