"""Which cells of the sweep in params.yaml to run, as a form that Prefect's page shows."""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from flows.graph import Graph
from stages.errors import UserError
from stages.keys import METHODS, TASKS, Cell, canonical_epsilon
from stages.params import Params


def _epsilon(value: object) -> str:
    try:
        return canonical_epsilon(value)
    except UserError as error:
        raise ValueError(str(error)) from None


class Selection(BaseModel):
    """A part of the sweep in params.yaml. What is left empty is not narrowed down; all empty: the whole sweep."""

    model_config = ConfigDict(extra="forbid")

    dataset: list[str] = Field([], description="Names in sweep.dataset of params.yaml. Empty: all of them.")
    epsilon: list[Annotated[str, BeforeValidator(_epsilon)]] = Field(
        [],
        description="Privacy targets in sweep.epsilon: 0 is the initial model, inf is training without privacy, "
        "smaller numbers are more private. Empty: all of them.",
        examples=[["0", "1", "inf"]],
    )
    method: list[Literal[METHODS]] = Field(  # type: ignore[valid-type]  # the names of files, known when run
        [], description="What is clipped: the batch (the paper's), groups of it, or each example. Empty: all of them."
    )
    seed: list[int] = Field([], description="Repetitions in sweep.seed. Empty: all of them.")
    model: list[str] = Field([], description="Names in sweep.model. Empty: all of them.")
    task: list[Literal[TASKS]] = Field(  # type: ignore[valid-type]
        [], description="Tasks in sweep.task. Empty: all of them."
    )


def targets(selection: Selection, params: Params) -> list[str]:
    """The DVC stages that the selection asks for; refuses what params.yaml does not have."""
    wanted = {axis: values for axis, values in selection if values}
    if not wanted:
        return ["publish"]  # the whole sweep, its tables and MLflow
    cells = list(params.cells())
    problems = []
    for axis, values in wanted.items():
        known = {getattr(cell, axis) for cell in cells}
        problems += [
            f"{axis} {value} is not one of {', '.join(sorted(map(str, known)))}"
            for value in values
            if value not in known
        ]
    if problems:
        raise UserError(
            "the selection asks for what the sweep in params.yaml does not have; add it there first:", problems
        )
    chosen = [cell for cell in cells if all(getattr(cell, axis) in values for axis, values in wanted.items())]
    return [stage_of(cell) for cell in chosen]


def stage_of(cell: Cell, kind: str = "evaluate") -> str:
    """A stage of the cell, by default the last, as DVC names it."""
    return f"{kind}@{cell.task}-{cell.dataset}-{cell.model}-{cell.method}-{cell.epsilon}-{cell.seed}"


def by_cell(nodes: Graph, params: Params) -> Graph:
    """Training and evaluation of a cell as one node: the model that one makes is there for the other."""
    names: dict[str, str] = {}
    for cell in params.cells():
        name = f"{cell.task}: {cell.dataset}, {cell.model}, {cell.method}, epsilon {cell.epsilon}, seed {cell.seed}"
        names |= {stage_of(cell, "train"): name, stage_of(cell): name}
    return nodes.joined(lambda stage: names.get(stage, stage))
