"""README.md of a release: a model card as Hugging Face reads it, YAML first, then what a person wants to know."""

import io
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML

from stages import tasks
from stages.keys import Cell
from stages.markdown import table
from stages.models.families.base.family import Family
from stages.release.words import NO_AUDIT
from stages.report.statement import guarantee_tag, statement
from stages.report.table import Outcome

UNSTATED = "other"  # Hugging Face's word for a licence that is none of its list


@dataclass(frozen=True)
class Card:
    outcome: Outcome
    family: Family
    folder: str  # its name
    joint: str | None  # what all releases from the records tell together; None where no record was used
    scores_stay: bool  # whether the test split is private
    licence: str  # of the weights, by Hugging Face's names
    licences: list[tuple[str, str]]  # of what they were made from

    def text(self) -> str:
        head = io.StringIO()
        yaml = YAML()
        yaml.default_flow_style = False
        yaml.dump(self._front_matter(), head)
        return f"---\n{head.getvalue()}---\n\n{self._body()}"

    @property
    def _cell(self) -> Cell:
        return self.outcome.cell

    def _front_matter(self) -> dict[str, Any]:
        cell, metrics = self._cell, self.outcome.metrics
        pipeline = tasks.named(cell.task).pipeline
        named = {"license_name": "see-the-model-card", "license_link": "README.md"} if self.licence == UNSTATED else {}
        found = {
            "license": self.licence,
            **named,
            "library_name": self.family.library,
            "pipeline_tag": pipeline,
            "tags": ["differential-privacy", "dp-clip", cell.task],
            "datasets": [cell.dataset],
        }
        if self.scores_stay:
            return found
        result = {
            "task": {"type": pipeline, "name": cell.task},
            "dataset": {"type": cell.dataset, "name": cell.dataset, "split": "test"},
            "metrics": [{"type": name, "name": name, "value": value} for name, value in metrics.scores.items()],
        }
        return {
            **found,
            "metrics": list(metrics.scores),
            "model-index": [{"name": self.folder, "results": [result]}],
        }

    def _body(self) -> str:
        cell = self._cell
        loading = self.family.loading(".", tasks.named(cell.task).ability)
        return (
            "\n\n".join(
                [
                    f"# {self.folder}",
                    self._what(),
                    "## How to load it",
                    f"In this folder (elsewhere with its path in place of the dot):\n\n```python\n{loading}\n```",
                    "`task.json` has what the task needs beside the weights, as class names and prompts.",
                    "## Intended use",
                    f"{cell.task.capitalize()} of data like `{cell.dataset}`, and comparing what privacy costs. It was "
                    "tested on nothing else, and not for decisions about people.",
                    "## Scores",
                    self._scores(),
                    "## Privacy",
                    _without_title(statement(self.outcome.training, self.joint)).strip(),
                    "The same as a text is in `privacy.md`, for programs in `privacy.json`.",
                    "## Audit",
                    NO_AUDIT,
                    "## Licences",
                    table(["what", "licence"], [["these weights", self.licence], *self.licences]),
                ]
            )
            + "\n"
        )

    def _what(self) -> str:
        cell, training = self._cell, self.outcome.training
        made = (
            f"trained on the private records of `{cell.dataset}` by the method `{cell.method}` of DP-CLIP, seed "
            f"{cell.seed}, for a target of epsilon {cell.epsilon}"
            if cell.is_private
            else "as it is: nothing private was used (epsilon 0)"
        )
        return f"The model `{cell.model}`, {made}. Guarantee: **{guarantee_tag(training)}**."

    def _scores(self) -> str:
        if self.scores_stay:
            return "The test split is private, so no score on it is given."
        m = self.outcome.metrics
        rows = [
            [name, f"{value:.4g}", f"{m.low:.4g} to {m.high:.4g}" if name == m.primary else "not computed"]
            for name, value in m.scores.items()
        ]
        rows += [[name, f"not run: {reason}", ""] for name, reason in m.not_run.items()]
        return (
            f"On the public test split of `{self._cell.dataset}`, {m.n} items. They are functions of the weights and "
            f"of public data, and so have the same guarantee.\n\n{table(['score', 'value', '95% interval'], rows)}"
        )


def _without_title(text: str) -> str:
    """The card has a title of its own, and names the model."""
    return text.split("\n\n", 2)[2]
