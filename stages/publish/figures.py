"""What a run says in numbers: its parameters, its scores, the epsilon that bounds it, and what its training cost.

A score of a private test split is none of them. What a training cost depends on private data (stages/costs.py): it is
published only where params.yaml asks for it; how many steps were made and how many records a step expects, always.
"""

import math

from stages import tasks
from stages.costs import Costs
from stages.report import curves
from stages.report.statement import paper_epsilon, sound_epsilon
from stages.report.table import Outcome

BOUND = "sound_epsilon"  # a metric too, since MLflow compares parameters as texts only


def parameters(outcome: Outcome, costs: Costs | None) -> dict:
    """Epsilons are numbers, so that the page sorts and plots them; where there is no bound there is none.

    The page that compares runs plots the first score against the first parameter: no name comes before `epsilon`.
    """
    cell, training, g = outcome.cell, outcome.training, outcome.training.privacy.guarantee
    values = {"private_dataset": cell.dataset, "model": cell.model, "method": cell.method, "seed": cell.seed}
    epsilons = {
        "epsilon": float(cell.epsilon),
        "epsilon_sound": sound_epsilon(training),
        "epsilon_paper": paper_epsilon(training),
    }
    values |= {name: f"{value:.10g}" for name, value in epsilons.items() if value < math.inf}
    values |= {f"train.{key}": value for key, value in (training.train or {}).items()}
    values |= {"trained_parameters": training.trained_parameters}
    if costs and training.train:  # the plan, which is public
        values |= {"plan.steps": costs.steps, "plan.records": costs.steps * training.train["batch_size"]}
    if g is not None:
        facts = ("delta", "sigma", "z", "q", "n", "accountant", "adjacency", "convention", "sampler", "sensitivity")
        values |= {f"privacy.{name}": getattr(g, name) for name in facts}
        values |= {"privacy.T": g.steps, "privacy.clip_norm": (training.train or {})["clip_norm"]}
    return values


def scores(outcome: Outcome) -> dict[str, float]:
    """Shares in percent, as in the tables; other scores as their authors define them."""
    m, task = outcome.metrics, outcome.cell.task
    ends = [_shown(task, m.primary, m.low, "_95_low"), _shown(task, m.primary, m.high, "_95_high")]
    return dict([_shown(task, *item) for item in m.scores.items()] + ends) | {"n_test": m.n}


def learning(outcome: Outcome) -> list[tuple[int, str, float]]:
    """The primary score on the way: step, name and value."""
    name = f"learning.{primary(outcome)}"
    share = tasks.named(outcome.cell.task).is_share(outcome.metrics.primary)
    return [(step, name, score if share else score / 100) for step, score in curves.points(outcome)]


def primary(outcome: Outcome) -> str:
    """The name of the score that models are compared by, as it is published."""
    return _shown(outcome.cell.task, outcome.metrics.primary, 0.0)[0]


def bound(outcome: Outcome) -> dict[str, float]:
    epsilon = sound_epsilon(outcome.training)
    return {BOUND: epsilon} if epsilon < math.inf else {}


def cost(costs: Costs) -> dict[str, float]:
    return {
        "cost.seconds": round(costs.seconds),
        "cost.steps_per_second": float(f"{costs.steps_per_second:.3g}"),
        "cost.peak_memory_mb": round(costs.peak_memory_mb),
    }


def minutes(costs: Costs) -> tuple[int, int]:
    """When the training began and ended, in whole minutes, as MLflow counts time.

    >>> minutes(Costs(started=1e6, seconds=8, steps=20, made=20, peak_memory_mb=500, device="cpu", processes=1))
    (999960000, 1000020000)
    """
    first, last = math.floor(costs.started / 60), math.ceil((costs.started + costs.seconds) / 60)
    return 60_000 * first, 60_000 * max(last, first + 1)


def _shown(task: str, score: str, value: float, end: str = "") -> tuple[str, float]:
    share = tasks.named(task).is_share(score)
    return (f"{score}_percent{end}", 100 * value) if share else (f"{score}{end}", value)
