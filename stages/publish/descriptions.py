"""What MLflow's page says in words of an experiment, a sweep, a registered model and each of its versions.

What all models together tell about a record changes with every run on the same records, so it is a line of its own
that can be brought up to date wherever it stands:

>>> renewed("88.9 accuracy_percent. Together: epsilon 2\\nmore", Joint(1e-5, 3, 4.0, 5, 6.0, 0))
'88.9 accuracy_percent. Together: the 3 published have epsilon 4, all 5 runs ever 6, delta 1e-05\\nmore'
"""

import re

from stages.keys import Cell
from stages.privacy.facts import round_up
from stages.report.joint import Joint

LONGEST = 4900  # characters that every store takes
TOGETHER = re.compile(r"Together: .*")
OPTIMISTIC = "chosen by its score on the test split, so that score is optimistic"
STAY = "The scores on a private test split stay with the data."


def together(joint: Joint | None) -> str:
    if joint is None:
        return ""
    uncovered = f"; {joint.without} covered by no epsilon" if joint.without else ""
    return (
        f"Together: the {joint.models} published have epsilon {round_up(joint.published, 4)}, "
        f"all {joint.runs} runs ever {round_up(joint.ever, 4)}, delta {round_up(joint.delta, 3)}{uncovered}"
    )


def renewed(text: str, joint: Joint | None) -> str:
    return TOGETHER.sub(lambda _: together(joint), text) if joint else text


def of_sweep(cell: Cell, joint: Joint | None, table: str | None, picture: str | None) -> str:
    """Without a table where the scores stay with the data."""
    parts = [together(joint)]
    if table is None:
        parts.append(STAY)
    else:
        shown = f"The whole sweep on one page: `index.html` under *Artifacts*, beside `{picture}`. " if picture else ""
        parts.append(
            f"{shown}The metrics `best_..._eps_E` are the best scores of models with a sound guarantee at epsilon E, "
            f"each {OPTIMISTIC}. These models are `{sweep_name(cell)}` under *Models*, by the aliases `best-eps-E`."
        )
        parts.append(table)
    return _joined(parts)


def of_experiment(task: str, sentences: dict[str, str], table: str | None, score: str) -> str:
    """`sentences`: by dataset, what all models on it together tell."""
    parts = [f"Sweeps of {task}: a run per dataset and model, and within it a run per method, epsilon and seed."]
    parts += [f"- {dataset}: {sentence}" for dataset, sentence in sentences.items() if sentence]
    if table is None:
        parts.append(STAY)
    else:
        found = f"""`mlflow.search_logged_models(filter_string="metrics.sound_epsilon <= 3", order_by=\
[{{"field_name": "metrics.{score}", "ascending": False}}])`"""
        parts.append(f"Each sweep's table and picture are its run's. The best model under an epsilon: {found}")
        parts.append(table)
    return _joined(parts)


def of_registered(cell: Cell, guarantee: bool, sound: bool, joint: Joint | None) -> str:
    first = f"{cell.task} on {cell.dataset}, {cell.model}, trained by `{cell.method}`"
    if not guarantee:
        return f"NO GUARANTEE: {first}, without differential privacy. Whoever has it has what it says of the records."
    kind = "differentially private" if sound else "NOT SOUND: with the noise of the paper's convention"
    return f"{kind}: {first}. The alias eps-E is the first seed's model at epsilon E.\n{together(joint)}".strip()


def of_best(cell: Cell, joint: Joint | None) -> str:
    first = f"The best private models of all methods: {cell.task} on {cell.dataset}, {cell.model}. The alias best-eps-E"
    return f"{first} is the one at epsilon E, {OPTIMISTIC}.\n{together(joint)}".strip()


def of_version(guarantee: str, score: str | None, joint: Joint | None, chosen: bool = False) -> str:
    """Two lines: the guarantee; the score, and what all models together tell."""
    said = [score, OPTIMISTIC] if score and chosen else [score] if score else []
    second = [f"{', '.join(said)}." if said else "", together(joint)]
    return "\n".join(filter(None, [guarantee, " ".join(filter(None, second))]))


def sweep_name(cell: Cell) -> str:
    """The registered model of a sweep, which holds the best one of each epsilon."""
    return f"dp-clip.{cell.sweep.replace('/', '.')}"


def _joined(parts: list[str]) -> str:
    text = "\n\n".join(filter(None, parts))
    return text if len(text) <= LONGEST else f"{text[:LONGEST].rsplit(chr(10), 1)[0]}\n\nThe rest is in table.md."
