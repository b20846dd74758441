"""The points of the study: Algorithm 1 with the theorem's choices, one thing varied at a time."""

import dataclasses
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from stages.params import Theory
from stages.privacy.randomness import Key
from stages.theory import linear
from stages.theory.choices import choose, dimension
from stages.theory.descent import Descent
from stages.theory.spiked import Sample, Spiked

NEAR = 0.1  # distance of the first G from the minimiser; the trace starts five times as far away
LOOKS = 200  # points of the trace


@dataclass(frozen=True)
class Setting:
    series: str  # what it is part of: which quantity is varied
    method: str  # batch | group | none (the minimiser of the sample, without privacy)
    n: int
    epsilon: float
    delta: float
    d: int
    clip_norm: float

    @property
    def x(self) -> float:
        """Where it stands on the axis of its series."""
        if self.series == "log(1/delta)":
            return float(np.log(1 / self.delta))
        return {
            "n epsilon": self.n * self.epsilon,
            "epsilon": self.epsilon,
            "n": self.n,
            "rd": self.d,  # times r, which is 1
            "clip norm": self.clip_norm,
            "T": 0,
        }[self.series]


def settings(c: Theory) -> list[Setting]:
    usual = Setting("", "group", c.n, c.epsilon, c.delta, c.d, c.clip_norm)

    def varied(series: str, method: str, **values) -> Iterator[Setting]:
        ((field, wanted),) = values.items()
        clip_norm = c.batch_clip_norm if method == "batch" else c.clip_norm
        base = dataclasses.replace(usual, series=series, method=method, clip_norm=clip_norm)
        return (dataclasses.replace(base, **{field: value}) for value in wanted)

    return [
        *varied("n epsilon", "group", epsilon=c.epsilons),
        *varied("n epsilon", "group", n=[n for n in c.ns if n != c.n]),
        *varied("epsilon", "batch", epsilon=c.batch_epsilons),
        *varied("n", "batch", n=c.ns),
        *varied("rd", "group", d=c.ds),
        *varied("log(1/delta)", "group", delta=c.deltas),
        *varied("n", "none", n=c.statistical_ns),
        *(s for method in ("batch", "group") for s in varied("clip norm", method, clip_norm=c.clip_norms)),
        dataclasses.replace(usual, series="T"),
    ]


@dataclass(frozen=True)
class Point:
    setting: Setting
    distance: list[float]  # to the minimiser of the sample, a trial each
    lost: list[float]  # information, against the minimiser of the population
    steps: int = 0
    sigma: float = 0.0
    units: int = 1
    eta: float = 0.0
    clipped: float = 0.0  # share of unit gradients that were longer than c
    terms: dict[str, float] = dataclasses.field(default_factory=dict)  # of the bound, with constants 1
    unmet: list[str] = dataclasses.field(default_factory=list)  # conditions of the theorem
    trace: list[tuple[int, float, float]] = dataclasses.field(default_factory=list)  # step, mean distance, bound

    def on(self, series: str) -> "Point":
        """The same point on the axis of another series."""
        return dataclasses.replace(self, setting=dataclasses.replace(self.setting, series=series))

    @property
    def error(self) -> list[float]:
        """What the series is about: the statistical error, or the distance that noise leaves."""
        return self.lost if self.setting.method == "none" else self.distance


def measure(setting: Setting, c: Theory) -> Point:
    """Data and noise depend on the setting and the seed alone, so a point is the same in whatever order it is made."""
    model = Spiked(setting.d // 2, setting.d - setting.d // 2, 1, c.snr, c.effective_rank)
    seed = int.from_bytes(hashlib.blake2b(f"{setting} {c.seed}".encode(), digest_size=6).digest())
    rng = np.random.default_rng(seed)
    sample = model.draw(rng, c.trials, setting.n)
    best = linear.minimiser(covariances(sample), model.r, c.alpha)
    star = linear.minimiser(sample.population, model.r, c.alpha)
    if setting.method == "none":
        zero = [0.0] * c.trials
        terms = {"statistical": _statistical(model, setting)}
        return Point(setting, zero, linear.lost_information(best, star, model.d1).tolist(), terms=terms)

    constants = linear.Constants.of(covariances(sample), model.r, c.alpha)
    batch_size = round(c.sampling_rate * setting.n)
    units = max(1, batch_size // c.group_size) if setting.method == "group" else 1
    facts = (setting.clip_norm, setting.epsilon, setting.delta, model.rd, setting.d, 1 / (2 * constants.beta_u))
    plan, eta = choose(setting.n, batch_size, units, *facts)
    descent = Descent(plan, eta, c.alpha, Key.from_seed(seed))
    away = NEAR * (5 if setting.series == "T" else 1)
    direction = torch.from_numpy(rng.standard_normal(best.shape))
    start = best + away * direction / direction.square().sum((-2, -1), keepdim=True).sqrt()

    trace, every = [], max(1, plan.steps // LOOKS)
    noise = plan.sigma * setting.clip_norm / units  # standard deviation in each coordinate of the mean gradient
    floor = eta * noise**2 * dimension(model.rd, plan.steps, setting.n, setting.d) / constants.beta_l

    def look(t: int, g: torch.Tensor) -> None:
        if t % every == 0:
            bound = ((1 - eta * constants.beta_l) ** t * away**2 + floor) ** 0.5
            trace.append((t, linear.distance(g, best).mean().item(), bound))

    g, clipped = descent.run(sample, start, look if setting.series == "T" else None)
    distance = linear.distance(g, best)
    mean, start_left = distance.mean().item(), (1 - eta * constants.beta_l) ** (plan.steps / 2) * away
    subsampling = _subsampling(descent, sample, best) / (noise**2 * model.rd)
    checks = [
        (start_left < 0.5 * mean, f"far from the start: {start_left:.3g} of the first {away:g} are left"),
        (clipped < 0.01, f"clipping inactive: {clipped:.1%} clipped"),
        (mean < constants.gamma, f"within gamma of the minimum: {mean:.3g} > {constants.gamma:.3g}"),
        (subsampling < 0.2, f"subsampling negligible: {subsampling:.0%} of the noise's variance"),
    ]
    return Point(
        setting,
        distance.tolist(),
        linear.lost_information(g, star, model.d1).tolist(),
        plan.steps,
        plan.sigma,
        units,
        eta,
        clipped,
        terms={
            "optimisation": start_left,
            "privacy": floor**0.5,
            "statistical": _statistical(model, setting),
        },
        unmet=[what for holds, what in checks if not holds],
        trace=trace,
    )


def covariances(sample: Sample) -> torch.Tensor:
    return linear.cross_covariance(sample.x.double(), sample.y.double())


def _statistical(model: Spiked, setting: Setting) -> float:
    log = np.log(setting.n + setting.d)
    return float(np.sqrt(model.r * model.complexity**2 * log**3 / setting.n))


def _subsampling(descent: Descent, sample: Sample, best: torch.Tensor, draws: int = 20) -> float:
    """E ||g - grad L||^2 of a mini-batch at the minimiser, where grad L is zero; without clip and noise."""
    quiet = dataclasses.replace(descent.plan.mechanism, clip_norm=1e3, sigma=0.0)
    plan = dataclasses.replace(descent.plan, mechanism=quiet)
    bare = dataclasses.replace(descent, plan=plan)
    squares = [bare.step(sample, best, t)[0].square().sum((1, 2)).mean() for t in range(draws)]
    return torch.stack(squares).mean().item()
