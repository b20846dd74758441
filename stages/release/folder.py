"""What a release holds: the whole model in the layout of its own library, its card, and its privacy statement twice.

open_clip_config.json, open_clip_model.safetensors, tokenizer*.json     or config.json, model.safetensors, ...
task.json        what the task needs beside the weights: class names and prompts, or the settings of its search
README.md        the model card
privacy.md       what may be claimed, for people
privacy.json     and for programs, with the sha256 of the weights that it is true of
"""

import datetime
import importlib.metadata
from pathlib import Path
from typing import Any

from stages import tasks
from stages.atomic import write_json, write_text
from stages.errors import UserError
from stages.keys import Cell, data_dir, initial_model_dir
from stages.models import families, saved
from stages.models.families.base.family import Family
from stages.release.card import Card
from stages.report.joint import Joint
from stages.report.statement import guarantee_tag, statement
from stages.report.table import Outcome

CARD, STATEMENT, FACTS, TASK = "README.md", "privacy.md", "privacy.json", "task.json"


def default_folder(cell: Cell) -> Path:
    return Path("releases") / str(cell).replace("/", "-")


def family_of(cell: Cell) -> Family:
    return families.of_folder(initial_model_dir(cell.model))


def write_model(initial: Path, changes: Path, folder: Path) -> None:
    """Initial weights with what training changed, whole; loads where this project is not."""
    saved.save(saved.load(initial, changes), folder)
    for path in folder.iterdir():
        path.chmod(0o644)  # safetensors makes files for their owner alone


def write(folder: Path, card: Card, joint: Joint | None) -> None:
    """All of a release, into a folder that is empty."""
    cell = card.outcome.cell
    write_model(initial_model_dir(cell.model), cell.model_dir, folder)
    write_json(
        folder / TASK, {"task": cell.task, **tasks.named(cell.task).facts(data_dir(cell.dataset), cell.details_json)}
    )
    write_text(folder / CARD, card.text())
    write_text(folder / STATEMENT, statement(card.outcome.training, card.joint))
    write_json(folder / FACTS, facts(card.outcome, card.family, joint, saved.sha256(folder)))


def facts(outcome: Outcome, family: Family, joint: Joint | None, sha256: str) -> dict[str, Any]:
    """The weights are given away, so that a plain hash of them tells nothing more."""
    training, g = outcome.training, outcome.training.privacy.guarantee
    return {
        "cell": str(outcome.cell),
        "released": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
        "weights": {"file": family.layout.weights, "sha256": sha256},
        "claim": guarantee_tag(training),
        "guarantee": g and g.model_dump(exclude={"tensorflow_privacy"}),
        "protected_unit": training.unit,
        "clip_norm": (training.train or {}).get("clip_norm"),
        "charge": training.run,
        "joint": joint
        and {
            "delta": joint.delta,
            "released_models": joint.models,
            "released_epsilon": joint.published,
            "charged_runs": joint.runs,
            "charged_epsilon": joint.ever,
            "runs_without_guarantee": joint.without,
        },
        "audit": None,
        "made_with": f"dp-clip {importlib.metadata.version('dp-clip')}",
    }


def require_replaceable(to: Path, names: set[str]) -> None:
    """A folder that is there is replaced as a whole: only if it is an earlier release and holds nothing else."""
    if not to.exists():
        return
    if not to.is_dir():
        raise UserError(f"--to {to} is a file; name a folder that is not there yet")
    there = {path.name for path in to.iterdir()}
    if there and not (FACTS in there and there <= names):
        other = ", ".join(sorted(there - names)[:3]) or "no privacy.json"
        raise UserError(f"--to {to} is there and is not a release alone ({other}); name a folder that is not there yet")
