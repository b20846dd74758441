"""The results of a sweep, one row a (dataset, model, method, epsilon) with mean and deviation over seeds."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import pandas as pd

from stages import tasks
from stages.errors import UserError
from stages.keys import Cell
from stages.privacy import secret
from stages.privacy.claim import verify_training
from stages.privacy.facts import TrainingFacts, round_up
from stages.report.statement import guarantee_tag, paper_epsilon, sound_epsilon
from stages.tasks.base.results import Metrics

HOW_TO_READ = (
    "with sensitivity 2C (C for `example` under Poisson sampling), by the better of RDP and PLD. Paper's epsilon: what "
    "the paper's convention (sensitivity C, RDP) would claim for the same noise. Scores of a non-private row are "
    "functions of the private data that no epsilon covers."
)


@dataclass(frozen=True)
class Outcome:
    """A cell with all that is known of it."""

    cell: Cell
    metrics: Metrics
    training: TrainingFacts


def read_outcome(cell: Cell) -> Outcome:
    """Refuses a training whose claim is not that of its noise."""
    training = TrainingFacts.read(cell.training_json)
    verify_training(training)
    if not cell.model_dir.is_dir() or training.weights != secret.digest_of(cell.model_dir):
        raise UserError(f"{cell.model_dir} is not the model that {cell.training_json} is about; run: dvc repro")
    return Outcome(cell, Metrics.read(cell.metrics_json), training)


def summarise(
    outcomes: Iterable[Outcome], together: Callable[[list[TrainingFacts]], float] | None = None
) -> pd.DataFrame:
    """Seeds become trials. Of the scores, the primary one, times 100; `low` and `high` bound the error bar.

    `together` gives the epsilon of what is made of several models; without it, that of a mean is not known (NaN).
    """
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
        g = first.training.privacy.guarantee
        weakest = max((o.training for o in trials), key=sound_epsilon)  # the claim that holds for all of them
        rows.append(
            {
                "task": task,
                "dataset": dataset,
                "model": model,
                "method": method,
                "epsilon": epsilon,
                "epsilon_sound": sound_epsilon(weakest),
                "epsilon_of_mean": together([o.training for o in trials]) if together else math.nan,
                "epsilon_paper": paper_epsilon(first.training),
                "delta": g.delta if g else math.nan,
                "sigma": g.sigma if g else math.nan,
                "score": first.metrics.primary,
                "mean": mean,
                "std": std,
                "low": low,
                "high": high,
                "trials": len(scores),
                "guarantee": guarantee_tag(weakest),
            }
        )
    return pd.DataFrame(rows)


def by_sweep(summary: pd.DataFrame) -> dict[str, dict[str, dict[str, float]]]:
    """The scores of the table and nothing else, for `dvc metrics show` and `dvc exp show`: one column per row of it."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for row in summary.itertuples():
        methods = found.setdefault(f"{row.task} {row.dataset} {row.model}", {})
        methods.setdefault(row.method, {})[f"epsilon {row.epsilon}"] = round(row.mean, 2)
    return found


def markdown(summary: pd.DataFrame, joint: Mapping[str, str] | None = None) -> str:
    """Table 1 of the paper, per model: rows epsilon (largest first), columns dataset and method.

    `joint` has, by dataset, what is to be said of all models together.
    """
    parts = []
    for (task, model, score), table in summary.groupby(["task", "model", "score"], sort=False):
        columns = list(table[["dataset", "method"]].drop_duplicates().itertuples(index=False, name=None))
        trials = int(table["trials"].max())
        header = ["epsilon (target)", "sound epsilon", *([f"of the mean of {trials}"] if trials > 1 else [])]
        for dataset, method in columns:
            header += [f"{dataset} / {method}", "paper's epsilon"]
        lines = [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
        for epsilon in sorted(table["epsilon"].unique(), key=float, reverse=True):
            row = table[table.epsilon == epsilon]
            cells = [epsilon_name(epsilon), round_up(row["epsilon_sound"].max(), 3)]
            if trials > 1:
                cells.append(round_up(row["epsilon_of_mean"].max(), 3))
            for dataset, method in columns:
                cells += _cells(row[(row.dataset == dataset) & (row.method == method)])
            lines.append(f"| {' | '.join(cells)} |")
        title = f"**{task}, {model}**: {tasks.named(task).title_of(score)} on the test split, {trials_in_words(trials)}"
        parts.append("\n".join([title, "", *lines]))
    note = f"Sound epsilon: the largest of its row, {HOW_TO_READ}"
    together = [f"{dataset}: {sentence}." for dataset, sentence in (joint or {}).items()]
    return "\n\n".join([*parts, *not_sound(summary), note, *together]) + "\n"


def not_sound(summary: pd.DataFrame) -> list[str]:
    """The warning that stands with a table, if it needs one."""
    unsound = summary[is_not_sound(summary)]
    return [f"NOT A SOUND GUARANTEE: {'; '.join(unsound['guarantee'].unique())}."] if len(unsound) else []


def is_not_sound(summary: pd.DataFrame) -> pd.Series:
    """By row: whether a guarantee was meant to hold and does not hold as it should."""
    return summary["guarantee"].str.contains("not sound|tests only|unsafe")


def _cells(chosen: pd.DataFrame) -> list[str]:
    if chosen.empty:
        return ["", ""]
    row = chosen.iloc[0]
    return [value(row), round_up(row["epsilon_paper"], 3)]


def value(row: pd.Series) -> str:
    """The score of a row of the summary, as it stands in every table."""
    return f"{row['mean']:.2f}" + ("" if math.isnan(row["std"]) else f" ± {row['std']:.2f}")


def epsilon_name(epsilon: str) -> str:
    return {"0": "0 (zero-shot)", "inf": "inf (non-private)"}.get(epsilon, epsilon)


def trials_in_words(count: int) -> str:
    return "one trial" if count == 1 else f"mean ± standard deviation of {count} trials"
