"""The one result schema of every task: a few numbers for tables and DVC, details beside them."""

import math
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, model_serializer

from stages.errors import UserError


class Metrics(BaseModel):
    """metrics.json. `low` and `high` are the ends of a 95% interval for the primary score over the n test items.

    `not_run` has the scores of the task that could not be computed here, each with the reason.
    """

    model_config = ConfigDict(frozen=True, extra="allow")  # further scores of a task, each a number
    primary: str
    n: int
    low: float
    high: float
    not_run: dict[str, str] = {}
    weights: str | None = None  # the keyed digest of the trained tensors that were evaluated (TrainingFacts.weights)

    @model_serializer(mode="wrap")
    def _without_what_is_empty(self, serialize) -> dict:
        empty = {name for name in ("not_run", "weights") if not getattr(self, name)}
        return {name: value for name, value in serialize(self).items() if name not in empty}

    @property
    def score(self) -> float:
        return self.scores[self.primary]

    @property
    def scores(self) -> dict[str, float]:
        return dict(self.model_extra or {})

    @classmethod
    def read(cls, path: Path) -> "Metrics":
        if not path.is_file():
            raise UserError(f"no result at {path}; run: dvc repro")
        return cls.model_validate_json(path.read_text(encoding="utf-8"))


def wilson_interval(successes: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """95% interval of a proportion (Wilson 1927); stays inside [0, 1] and is right for small n.

    By hand because scipy's `binomtest(...).proportion_ci(method="wilson")` takes 1.95996 for z: the reported ends would
    change in the seventh digit, and the intervals of other scores have 1.96 too.

    >>> [round(x, 3) for x in wilson_interval(90, 100)]
    [0.826, 0.945]
    """
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(values: Sequence[Sequence[float]], least: float, most: float, z: float = 1.96) -> tuple[float, float]:
    """95% interval of the mean of all values, which are independent from group to group (as the questions about one
    image are from those about another): ± 1.96 standard errors, within what a value can be at all.

    >>> [round(x, 3) for x in mean_interval([[0.2], [0.4], [0.6], [0.8]], 0, 10)]
    [0.247, 0.753]
    >>> [round(x, 3) for x in mean_interval([[0.2, 0.2], [0.4, 0.4], [0.6, 0.6], [0.8, 0.8]], 0, 10)]
    [0.247, 0.753]
    """
    groups, count = len(values), sum(map(len, values))
    if groups < 2:
        return least, most  # one says nothing of the spread
    mean = math.fsum(x for group in values for x in group) / count
    spread = math.fsum(math.fsum(x - mean for x in group) ** 2 for group in values)
    error = math.sqrt(spread * groups / (groups - 1)) / count
    return max(least, mean - z * error), min(most, mean + z * error)
