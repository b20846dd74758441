"""How trainings went: the score on the test split after some of the steps, a picture per sweep.

Weights on the way are covered by the run's own epsilon (stages/models/curve.py), so the curve of a private run costs
nothing more. Where none were kept, there is no picture.
"""

import json
from pathlib import Path

from stages import tasks
from stages.report.table import Outcome, epsilon_name

STYLES = {"batch": ":", "group": "--", "example": "-"}


def points(outcome: Outcome) -> list[tuple[int, float]]:
    """By step, the primary score times 100; with the end of the training, if there is anything before it."""
    path = outcome.cell.curve_json
    if not path.is_file() or not (found := json.loads(path.read_text(encoding="utf-8"))["scores"]):
        return []
    guarantee = outcome.training.privacy.guarantee
    end = guarantee.steps if guarantee else (outcome.training.train or {}).get("steps")
    on_the_way = [(int(step), 100 * score) for step, score in found.items()]
    return on_the_way + ([(end, 100 * outcome.metrics.score)] if end else [])


def draw(outcomes: list[Outcome], path: Path) -> None:
    """Of one sweep, its first seed; `path` is not made if there is nothing to draw."""
    first = outcomes[0].cell
    lines = [(o.cell, its) for o in outcomes if o.cell.seed == first.seed and (its := points(o))]
    if not lines:
        return
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    epsilons = sorted({cell.epsilon for cell, _ in lines}, key=float)
    for cell, its in lines:
        colour = f"C{epsilons.index(cell.epsilon)}"
        style = STYLES.get(cell.method, "-.")
        label = f"{cell.method}, epsilon {epsilon_name(cell.epsilon)}"
        axes.plot(*zip(*its, strict=True), marker=".", color=colour, linestyle=style, label=label)
    axes.set(
        xlabel="steps",
        ylabel=tasks.named(first.task).title_of(outcomes[0].metrics.primary),
        title=f"{first.dataset}, {first.model}, seed {first.seed}: test split on the way",
    )
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    figure.savefig(path, dpi=120)
    plt.close(figure)
