"""The one result schema of every task: a few numbers for tables and DVC, details beside them."""

import math
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from stages.errors import UserError


class Metrics(BaseModel):
    """metrics.json. `low` and `high` are the ends of a 95% interval for the primary score over the n test items."""

    model_config = ConfigDict(frozen=True, extra="allow")  # further scores of a task, each a number
    primary: str
    n: int
    low: float
    high: float

    @property
    def score(self) -> float:
        return self.model_extra[self.primary]

    @property
    def scores(self) -> dict[str, float]:
        return dict(self.model_extra)

    @classmethod
    def read(cls, path: Path) -> "Metrics":
        if not path.is_file():
            raise UserError(f"no result at {path}; run: dvc repro")
        return cls.model_validate_json(path.read_text(encoding="utf-8"))


def wilson_interval(successes: int, n: int, z: float = 1.96) -> tuple[float, float]:
    """95% interval of a proportion (Wilson 1927); stays inside [0, 1] and is right for small n.

    >>> [round(x, 3) for x in wilson_interval(90, 100)]
    [0.826, 0.945]
    """
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)
