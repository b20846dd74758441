"""What tasks have in common in which a model writes: captions of images, or answers to questions about them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from stages.keys import ON_FROZEN_TOWERS
from stages.sections import PositiveInt
from stages.tasks.base.task import Chosen, Settings, Task

TEXTS = {False: "captions", True: "questions"}  # by whether a dataset has questions


class WritingSettings(Settings):
    beams: PositiveInt  # of the search for what to write


class Writing(Task):
    reads_questions: ClassVar[bool]  # or captions
    unfit_data: ClassVar[str]  # said of a dataset that has the other

    is_written = True
    unfit_parts: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ON_FROZEN_TOWERS,
        "reaches no caption and no answer, which are written from what the vision tower sees; "
        "write image-tower, all or a LoRA",
    )

    def problems(self, chosen: Chosen) -> list[str]:
        """Also data without its texts, and models that have learned from other texts."""
        needs = TEXTS[self.reads_questions]
        found = [
            f"sweep.dataset: {self.name} needs {needs}, and {name!r} {self.unfit_data}"
            for name in chosen.datasets
            if chosen.has_questions.get(name, self.reads_questions) != self.reads_questions
        ]
        for name, model in chosen.models.items():
            data = model.get("data")
            texts = chosen.has_questions.get(data) if isinstance(data, str) else None
            if self.has_ability(model) and texts is not None and texts != self.reads_questions:
                found.append(
                    f"pretrain.{name}.data: {data!r} has {TEXTS[texts]}; a model for {self.name} learns from {needs}"
                )
        return found + super().problems(chosen)

    def facts(self, data: Path, details: Path) -> dict:
        """It writes as it did when it was evaluated."""
        return {"settings": json.loads(details.read_text(encoding="utf-8"))["settings"]}
