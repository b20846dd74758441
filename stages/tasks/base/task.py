"""What every task declares. The rest of the project asks these objects and knows no task by its name."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from stages import losses
from stages.keys import LOSSES
from stages.models import families
from stages.sections import AutoOrCount, PositiveInt, Section

if TYPE_CHECKING:  # none of it is needed to read params.yaml, and it takes seconds
    import pandas as pd
    import torch

    from stages.data.prepared import PreparedSplit
    from stages.data.rows import Labels
    from stages.models.batches import Images
    from stages.models.encoder import Encoder, WholeEncoder
    from stages.tasks.base.results import Metrics


class Settings(Section):
    """What a task reads of the section `evaluate` of params.yaml, which has the fields of all tasks."""

    batch_size: PositiveInt
    curve: AutoOrCount = "auto"  # points of the learning curve


@dataclass(frozen=True)
class Chosen:
    """What params.yaml chooses for the tasks of the sweep. Entries are as written there, and may have mistakes."""

    datasets: list[str]
    models: Mapping[str, dict]  # by name, what its section says
    methods: Mapping[str, dict]
    has_questions: Mapping[str, bool]  # by dataset, also of those that models learn from: in place of captions


@dataclass(frozen=True)
class HeldOut:
    """The test split as a task takes it."""

    data: "PreparedSplit"
    images: "Images"  # what the encoder takes as the images of rows
    labels: "Labels | None" = None


class Result(Protocol):
    """What an evaluation found: for metrics.json and details.json, and as a picture."""

    def metrics(self) -> "Metrics": ...

    def details(self) -> dict: ...

    def draw(self, title: str, path: Path) -> None: ...


@dataclass(frozen=True)
class ScoresInPaper:
    """How the scores stand beside the paper's (report/paper.md), whose figures are in report/published.yaml."""

    heading: str
    items: str  # what the test split counts
    titles: dict[str, str]  # by score: those of the paper in its order, and those it does not have
    about_epsilon: str
    about_data: str


Answer = Callable[["pd.DataFrame"], "pd.DataFrame"]  # from the columns of `inputs` to those of `outputs`


class Task(ABC):
    """Derive from it, and read captioning.py beside this."""

    name: ClassVar[str]  # that of the file

    # What it needs
    needs_labels: ClassVar[bool] = False
    ability: ClassVar[str] = "compares"  # that a model must have, of those in models/families
    preset: ClassVar[str | None] = None  # one with a model that has it, where most have not
    is_written: ClassVar[bool] = False  # by a model with a decoder
    unfit_parts: ClassVar[Mapping[str, str]] = {}  # by value of `trainable` that cannot train for it: why, what instead

    pipeline: ClassVar[str] = "other"  # what Hugging Face calls it, for the card of a released model

    # How it is evaluated, and how that is shown
    settings: ClassVar[type[Settings]] = Settings
    reads_features: ClassVar[bool] = False  # whether features of frozen towers can stand for the images
    page_title: ClassVar[str | None] = None  # of its page in report/gallery; details.json is then an `Examples`
    in_paper: ClassVar[ScoresInPaper | None] = None

    # A published model: columns in, all of them strings, and columns out with MLflow's name of their type, or `map` for
    # numbers by name
    inputs: ClassVar[tuple[str, ...]] = ("image",)
    outputs: ClassVar[Mapping[str, str]]

    def problems(self, chosen: Chosen) -> list[str]:
        """What of params.yaml cannot serve this task, each with what to do; nothing has run yet."""
        found = []
        for name, model in chosen.models.items():
            if not self.has_ability(model):
                see = f"; see the preset `{self.preset}`" if self.preset else "; take it out of the sweep"
                found.append(f"sweep.model: {self.name} {_needs(self.ability, name)}{see}")
            elif key := families.of(model).missing(model, self.ability):
                found.append(f"weights.{name}: {self.name} needs {key}")
        for name, method in chosen.methods.items():
            loss, part = str(method.get("loss")), str(method.get("trainable"))
            if loss in LOSSES and (why := losses.named(loss).unfit(self.needs_labels, self.is_written)):
                found.append(f"train.methods.{name}.loss: {loss} {why}")
            for ability in losses.named(loss).abilities if loss in LOSSES else ():
                unfit = [n for n, model in chosen.models.items() if ability not in families.of(model).abilities(model)]
                found += [f"train.methods.{name}.loss: {loss} {_needs(ability, model)}" for model in unfit]
            if why := self.unfit_parts.get(part):
                found.append(f"train.methods.{name}.trainable: {part!r} {why}")
        return found

    def has_ability(self, model: Mapping[str, Any]) -> bool:
        return self.ability in families.of(model).abilities(model)

    def require_tools(self) -> None:  # noqa: B027 (most tasks need none)
        """Refuse to begin where a program that the evaluation starts is not there."""

    @abstractmethod
    def evaluate(self, encoder: "Encoder", test: HeldOut, settings: Any, device: "torch.device") -> Result:
        """`settings` has the fields of `self.settings`."""

    def is_share(self, score: str) -> bool:
        """Whether it is a part of a whole, and shown in %; other scores are as their authors define them."""
        return True

    def title_of(self, score: str) -> str:
        """Of a primary score times 100, which is how tables and plots have it."""
        return f"{score.replace('_', ' ')} in %"

    @abstractmethod
    def facts(self, data: Path, details: Path) -> dict:
        """What a published model must know beside its weights, as JSON; public."""

    @abstractmethod
    def serve(self, encoder: "WholeEncoder", facts: dict) -> Answer:
        """`facts` are those above."""


def _needs(ability: str, model: str) -> str:
    return f"needs a model that {families.ABILITIES[ability]}, and {model!r} does not"
