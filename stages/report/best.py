"""Which private model is the best one at each epsilon, and what it is to be compared with before it is given away."""

from dataclasses import dataclass

import pandas as pd

from stages.report.drawing import drawn
from stages.report.table import is_not_sound


@dataclass(frozen=True)
class Best:
    """Of the methods that have a sound guarantee at one target epsilon, the one with the highest mean score."""

    epsilon: str
    row: pd.Series | None  # None where no guarantee holds
    as_good: list[str]  # other methods whose interval and its interval overlap
    above_zero_shot: float | None  # None where zero-shot is not in the sweep
    below_non_private: float | None  # the best of all methods
    why_none: str = ""


def best(sweep: pd.DataFrame) -> list[Best]:
    """`sweep` is the part of the summary for one (task, dataset, model); epsilons from large to small."""
    private = sweep[~sweep["epsilon"].isin(["0", "inf"])]
    sound = drawn(private[~is_not_sound(private)])
    zero_shot, non_private = (sweep[sweep["epsilon"] == epsilon]["mean"].max() for epsilon in ("0", "inf"))
    found = []
    for epsilon in sorted(private["epsilon"].unique(), key=float, reverse=True):
        rows = sound[sound["epsilon"] == epsilon]
        if rows.empty:
            why = "; ".join(private[private["epsilon"] == epsilon]["guarantee"].unique())
            found.append(Best(epsilon, None, [], None, None, why))
            continue
        row = rows.loc[rows["mean"].idxmax()]
        others = rows[(rows["method"] != row["method"]) & (rows["high"] >= row["low"])]
        above, below = row["mean"] - zero_shot, non_private - row["mean"]
        found.append(
            Best(
                epsilon,
                row,
                list(others["method"]),
                None if pd.isna(above) else float(above),
                None if pd.isna(below) else float(below),
            )
        )
    return found
