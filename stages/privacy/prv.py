"""A second opinion of another family than RDP: the privacy loss itself, as a random variable, with an error bound.

The privacy loss of T steps is the sum S of T independent losses L, and delta(epsilon) = E[max(0, 1 - e^(epsilon - S))]
(Gopi, Lee and Wutschitz 2021, "Numerical composition of differential privacy"). L is rounded to the nearest multiple of
h, and the sum of T rounded losses comes from one Fourier transform. What is not exact has a bound on either side:

    rounding      T errors of mean m, each in an interval of length h, add up to T m, and to more than T m + c or less
                  than T m - c with probability at most eta = e^(-2 c^2 / (T h^2)) each (Hoeffding)
    tails of L    are left out: a step falls there with probability at most T tau, by which delta may be larger
    the circle    on which the transform adds: what is outside of it is bounded by Chernoff
    arithmetic    of the transform and of the distribution function, in l1

Losses are weighted by e^(theta L) before the transform, and the sum is weighted back (an Esscher transform): the last
two are then relative to delta and not to 1. Neither order of a pair of neighbours is worse for every epsilon, so both
are looked at. Nothing here is shared with dp-accounting, whose PLD rounds in another way (connect-the-dots), always up.

    >>> lower, upper = interval(q=32 / 60_000, z=0.919, steps=56_250, delta=1 / 120_000)
    >>> round(lower, 3), round(upper, 3)  # RDP says 1.00
    (0.708, 0.715)
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft, optimize
from scipy.special import logsumexp, ndtr, ndtri

Floats = NDArray[np.float64]
WIDTH = 0.003  # c, as a part of an upper bound on epsilon
UNIT = 2.0**-53  # rounding of a float64
TAU = 1e-4  # T tau, of delta
OUTSIDE = 1e-9  # of the circle, of the weighted distribution


@functools.cache
def interval(q: float, z: float, steps: int, delta: float) -> tuple[float, float]:
    """The smallest epsilon of T Poisson-sampled Gaussians (rate q, noise z) lies between these two."""
    lowers, uppers = zip(*(_interval(Loss(q, z, removed), steps, delta) for removed in (True, False)), strict=True)
    return max(0.0, *lowers), max(0.0, *uppers)


@dataclass(frozen=True)
class Loss:
    """Of one step: log P/Q at x ~ P, where P = (1-q) N(0, z^2) + q N(1, z^2) and Q = N(0, z^2), or the other way round.

    As a function of x it is l(x) = log(1 - q + q e^((2x-1) / (2z^2))), or its negative.
    """

    q: float
    z: float
    removed: bool  # x is drawn with the record there; else without

    def at(self, x: Floats) -> Floats:
        with np.errstate(divide="ignore"):
            value: Floats = np.logaddexp(np.log1p(-self.q), math.log(self.q) + (2 * x - 1) / (2 * self.z**2))
        return value if self.removed else -value

    def density(self, x: Floats) -> Floats:
        without, with_it = (np.exp(-0.5 * ((x - mean) / self.z) ** 2) for mean in (0.0, 1.0))
        mixed: Floats = (1 - self.q) * without + self.q * with_it if self.removed else without
        return mixed / (self.z * math.sqrt(2 * math.pi))

    def tails(self, t: Floats) -> tuple[Floats, Floats]:
        """P[L <= t] and P[L > t], each to relative precision."""
        value = t if self.removed else -t
        with np.errstate(divide="ignore"):  # below the least loss, x is -inf
            x = self.z**2 * np.log(np.maximum(np.expm1(value) + self.q, 0.0) / self.q) + 0.5
        below, above = self._mixed(x, 1), self._mixed(x, -1)
        return (below, above) if self.removed else (above, below)

    def _mixed(self, x: Floats, sign: int) -> Floats:
        without: Floats = ndtr(sign * x / self.z)
        return (1 - self.q) * without + self.q * ndtr(sign * (x - 1) / self.z) if self.removed else without


class Line:
    """Points of x, `width` standard deviations to each side: sums over them are integrals over P.

    l is analytic for |Im x| < pi z^2, so in a strip of half-width d = min(z, 3 z^2) the trapezoidal rule errs by
    e^(-2 pi d / distance) = e^-50 of the integrand's size.
    """

    def __init__(self, loss: Loss, width: float):
        distance = min(loss.z, 3 * loss.z**2) / 8
        self.x = np.arange(-width * loss.z, 1 + width * loss.z + distance, distance)
        self.losses, self.weights = loss.at(self.x), loss.density(self.x) * distance

    def log_moment(self, theta: float) -> float:
        """log E[e^(theta L)]"""
        return float(logsumexp(theta * self.losses, b=self.weights))

    def chernoff(self, steps: int, delta: float) -> tuple[float, float]:
        """The least bound epsilon <= (T log E[e^(theta L)] + log(1/delta)) / theta, and its theta."""

        def bound(log_theta: float) -> float:
            theta = math.exp(log_theta)
            return (steps * self.log_moment(theta) + math.log(1 / delta)) / theta

        best = optimize.minimize_scalar(bound, bounds=(math.log(1e-3), math.log(1e9)), method="bounded")
        return float(best.fun), math.exp(best.x)


def _interval(loss: Loss, steps: int, delta: float) -> tuple[float, float]:
    """Once more with a finer h where Chernoff's bound, to which it was fitted, turns out to be much too large."""
    line = Line(loss, _width(steps, delta))
    bound, theta = line.chernoff(steps, delta)
    lower, upper = _with_error(WIDTH * bound, loss, line, theta, steps, delta)
    if upper < bound / 2:
        lower, upper = _with_error(WIDTH * max(upper, bound / 10), loss, line, theta, steps, delta)
    return lower, upper


def _width(steps: int, delta: float) -> float:
    """So many standard deviations: a step's x is further out with probability at most tau."""
    return -float(ndtri(TAU * delta / steps / 2))


def _with_error(c: float, loss: Loss, line: Line, theta: float, steps: int, delta: float) -> tuple[float, float]:
    eta, tau = 1e-3 * delta, TAU * delta / steps
    far = Line(loss, _width(steps, delta) + 30)
    h = c / math.sqrt(steps * math.log(1 / eta) / 2)

    first, last = (round(float(end) / h) for end in sorted(line.losses[[0, -1]]))
    t = h * np.arange(first, last + 1)  # the values of the rounded loss, except with probability tau
    below, above = loss.tails(np.append(t - h / 2, t[-1] + h / 2))
    left = below[1:] < 0.5  # differences are taken of the smaller tail
    probability = np.maximum(np.where(left, np.diff(below), -np.diff(above)), 0.0)
    error = 4 * UNIT * np.where(left, below[1:], above[:-1])

    # m: the mean of L less that of the rounded L. What is off the line has a part in it, of which the size is bounded.
    products = far.losses * far.weights
    off = (far.x < line.x[0]) | (far.x > line.x[-1])
    c += steps * (2 * float(np.abs(products[off]).sum()) + h * tau)
    c += steps * 64 * UNIT * float(np.abs(products).sum() + np.abs(t).max())
    moved = steps * (float(products.sum()) - float(t @ probability))

    total = WeightedSum(h, first, probability, error, theta, steps)
    upper = total.upper(delta - eta - steps * tau)
    return total.lower(delta + eta, upper) + moved - c, upper + moved + c


class WeightedSum:
    """The distribution of T rounded losses h (first + i), weighted by e^(theta s), on a circle around its mean."""

    def __init__(self, h: float, first: int, probability: Floats, error: Floats, theta: float, steps: int):
        t = h * (first + np.arange(len(probability)))
        top = float((theta * t).max())
        weighted, mass = probability * np.exp(theta * t - top), float(probability @ np.exp(theta * t - top))
        weighted /= mass
        mean = float(weighted @ t)
        spread = math.sqrt(steps * float(weighted @ (t - mean) ** 2)) + h
        self._theta, self._h, self._log_moment = theta, h, steps * (top + math.log(mass))

        half = _half(t - mean, weighted, spread, steps)
        size = 2 ** math.ceil(math.log2(2 * half / h + 2))
        start = round(steps * mean / h) - size // 2
        on_circle = np.bincount((first + np.arange(len(t))) % size, weights=weighted, minlength=size)
        composed = fft.irfft(fft.rfft(on_circle) ** steps, size)
        self._s = h * (start + np.arange(size))
        self._p = np.roll(composed, -(start % size))

        # In l2 a transform errs by 10 u log2(N) of its input (Higham 2002, 24.1); the power by T times that and 8 T u.
        transform = 10 * UNIT * math.log2(size)
        in_l2 = (steps * (transform + 8 * UNIT) + transform) * float(np.linalg.norm(weighted))
        in_l1 = math.sqrt(size) * in_l2 + steps * float(error @ np.exp(theta * t - top)) / mass
        self._error = OUTSIDE + 1.01 * in_l1  # of any sum of p with weights between 0 and 1

    def upper(self, delta: float) -> float:
        """An e with delta~(e) <= delta, next to the least."""
        e = self._root(float(self._s[0]), float(self._s[-1]), delta, +1)
        while self._log_delta(e, +1) > math.log(delta):
            e += self._h / 100
        return e

    def lower(self, delta: float, upper: float) -> float:
        """An e with delta~(e) >= delta, next to the largest."""
        gap = 8 * self._h
        while self._log_delta(upper - gap, -1) < math.log(delta):
            gap *= 2
            if upper - gap < self._s[0]:
                return -math.inf
        e = self._root(upper - gap, upper, delta, -1)
        while self._log_delta(e, -1) < math.log(delta):
            e -= self._h / 100
        return e

    def _root(self, low: float, high: float, delta: float, sign: int) -> float:
        aim = math.log(delta)
        return float(optimize.brentq(lambda e: self._log_delta(e, sign) - aim, low, high, xtol=self._h / 100))

    def _log_delta(self, e: float, sign: int) -> float:
        """log of M^T e^(-theta e) times the sum over s > e of p(s) e^(-theta (s-e)) (1 - e^(-(s-e))) and its error."""
        after = np.searchsorted(self._s, e, side="right")
        beyond = self._s[after:] - e
        found = float(self._p[after:] @ (np.exp(-self._theta * beyond) * -np.expm1(-beyond))) + sign * self._error
        return self._log_moment - self._theta * e + math.log(max(found, 1e-300))


def _half(centred: Floats, weighted: Floats, spread: float, steps: int) -> float:
    """So far to each side of the mean the sum of T has at most OUTSIDE: P[s > half] <= e^(-r half) E[e^(r t)]^T."""
    half = 0.0
    for sign in (1, -1):
        rates = sign * np.geomspace(0.3, 12, 12) / spread
        moments = [float(logsumexp(rate * centred, b=weighted)) for rate in rates]
        half = max(half, min((steps * m + math.log(2 / OUTSIDE)) / abs(r) for m, r in zip(moments, rates, strict=True)))
    return half
