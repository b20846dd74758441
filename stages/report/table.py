"""The results of a sweep, one row a (dataset, model, method, epsilon) with mean and deviation over seeds."""

import json
import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from stages.errors import UserError
from stages.evaluate.results import Metrics
from stages.keys import Cell
from stages.privacy.facts import PrivacyFacts
from stages.report.statement import guarantee_tag


@dataclass(frozen=True)
class Outcome:
    """A cell with all that is known of it."""

    cell: Cell
    metrics: Metrics
    facts: PrivacyFacts
    training: dict

    @property
    def tag(self) -> str:
        return guarantee_tag(self.facts, self.training.get("key"))

    @property
    def epsilon_sound(self) -> float:
        return self.facts.guarantee.epsilon if self.facts.guarantee else self.cell.epsilon_number

    @property
    def epsilon_paper(self) -> float:
        return self.facts.guarantee.epsilon_paper if self.facts.guarantee else self.cell.epsilon_number


def read_outcome(cell: Cell) -> Outcome:
    if not cell.training_json.is_file():
        raise UserError(f"no result for {cell}: {cell.training_json} is missing; run: dvc repro")
    training = json.loads(cell.training_json.read_text(encoding="utf-8"))
    return Outcome(cell, Metrics.read(cell.metrics_json), PrivacyFacts.read(cell.privacy_json), training)


def summarise(outcomes: Iterable[Outcome]) -> pd.DataFrame:
    """Seeds become trials. Scores are in percent; `low` and `high` bound the error bar."""
    groups: dict[tuple, list[Outcome]] = {}
    for o in outcomes:
        c = o.cell
        groups.setdefault((c.task, c.dataset, c.model, c.method, c.epsilon), []).append(o)
    rows = []
    for (task, dataset, model, method, epsilon), trials in groups.items():
        first = trials[0]
        scores = [100 * o.metrics.score for o in trials]
        mean, std = statistics.fmean(scores), statistics.stdev(scores) if len(scores) > 1 else math.nan
        if len(scores) > 1:
            low, high = mean - std, mean + std
        else:
            low, high = 100 * first.metrics.low, 100 * first.metrics.high
        g = first.facts.guarantee
        rows.append(
            {
                "task": task,
                "dataset": dataset,
                "model": model,
                "method": method,
                "epsilon": epsilon,
                "epsilon_sound": first.epsilon_sound,
                "epsilon_paper": first.epsilon_paper,
                "delta": g.delta if g else math.nan,
                "sigma": g.sigma if g else math.nan,
                "score": first.metrics.primary,
                "mean": mean,
                "std": std,
                "low": low,
                "high": high,
                "trials": len(scores),
                "guarantee": first.tag,
            }
        )
    return pd.DataFrame(rows)


def markdown(summary: pd.DataFrame) -> str:
    """Table 1 of the paper, per model: rows epsilon (largest first), columns dataset and method."""
    parts = []
    for (task, model, score), table in summary.groupby(["task", "model", "score"], sort=False):
        columns = list(table[["dataset", "method"]].drop_duplicates().itertuples(index=False, name=None))
        header = ["epsilon (target)"]
        for dataset, method in columns:
            header += [f"{dataset} / {method}", "sound epsilon", "paper's epsilon"]
        lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
        for epsilon in sorted(table["epsilon"].unique(), key=float, reverse=True):
            cells = [_name(epsilon)]
            for dataset, method in columns:
                chosen = table[(table.dataset == dataset) & (table.method == method) & (table.epsilon == epsilon)]
                cells += _cells(chosen)
            lines.append(f"| {' | '.join(cells)} |")
        trials = int(table["trials"].max())
        parts.append(f"**{task}, {model}**: {score} in % on the test split, {_trials(trials)}\n\n" + "\n".join(lines))
    unsound = summary[summary["guarantee"].str.contains("not sound|tests only")]
    notes = [f"Not a sound guarantee: {dict.fromkeys(unsound['guarantee'])}"] if len(unsound) else []
    notes.append(
        "Sound epsilon: sensitivity 2C, the smaller of RDP and PLD. Paper's epsilon: what the paper's convention "
        "(sensitivity C, RDP) would claim for the same noise."
    )
    return "\n\n".join(parts + notes) + "\n"


def _cells(chosen: pd.DataFrame) -> list[str]:
    if chosen.empty:
        return ["", "", ""]
    row = chosen.iloc[0]
    value = f"{row['mean']:.2f}" + ("" if math.isnan(row["std"]) else f" ± {row['std']:.2f}")
    return [value, _number(row["epsilon_sound"]), _number(row["epsilon_paper"])]


def _name(epsilon: str) -> str:
    return {"0": "0 (zero-shot)", "inf": "inf (non-private)"}.get(epsilon, epsilon)


def _number(value: float) -> str:
    return "inf" if math.isinf(value) else f"{value:.3g}"


def _trials(count: int) -> str:
    return "one trial" if count == 1 else f"mean ± standard deviation of {count} trials"
