"""Prompt-ensemble classification: the class whose prompts' mean feature has the highest cosine similarity."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from stages import progress
from stages.errors import UserError
from stages.tasks.base.results import Metrics, wilson_interval
from stages.tasks.base.task import Answer, HeldOut, Settings, Task

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import torch

    from stages.models.encoder import Encoder, WholeEncoder

LARGEST = 12.0  # inches of a confusion matrix: of a hundred classes it took a minute, drawn at full size


class Classification(Task):
    name = "classification"
    pipeline = "zero-shot-image-classification"
    needs_labels = True
    reads_features = True
    outputs: ClassVar[Mapping[str, str]] = {"label": "string", "similarity": "double", "probabilities": "map"}

    def evaluate(self, encoder: "Encoder", test: HeldOut, settings: Settings, device: "torch.device") -> "Confusion":
        import numpy as np
        import torch

        from stages.models.encoder import require_comparing
        from stages.models.prompts import class_features, class_scores

        if test.labels is None:
            raise UserError(f"this dataset has no class labels; {self.name} needs a `label` column")
        require_comparing(encoder, self.name)
        encoder.model.to(device).eval()
        classes = class_features(encoder, test.labels, device)
        true, predicted, rows = [], [], range(test.data.rows)
        for start in progress.bar(rows[:: settings.batch_size], "evaluate", "batches"):
            some = rows[start : start + settings.batch_size]  # the last batch may be short
            with torch.no_grad():
                scores = class_scores(encoder.model, test.images(some).to(device), classes)
                predicted += scores.argmax(dim=1).tolist()
            true += [test.data.texts_and_label(row)[1] for row in some]
        known = len(test.labels.classes)
        # sklearn's confusion_matrix is this, after a second of imports
        pairs = np.bincount(known * np.array(true) + np.array(predicted), minlength=known**2)
        return Confusion(test.labels.classes, pairs.reshape(known, known))

    def facts(self, data: Path, details: Path) -> dict:
        from stages.data.manifest import Manifest

        labels = Manifest.read(data).labels
        return {"labels": labels and labels.model_dump()}

    def serve(self, encoder: "WholeEncoder", facts: dict) -> Answer:
        import pandas as pd
        import torch

        from stages.data.rows import Labels
        from stages.models.prompts import class_features, class_scores
        from stages.tasks.base.pictures import pictures

        labels = Labels.model_validate(facts["labels"])
        classes = class_features(encoder, labels, torch.device("cpu"))

        def answer(table: "pd.DataFrame") -> "pd.DataFrame":
            scores = class_scores(encoder.model, pictures(encoder, table["image"]), classes)
            score, label = scores.max(dim=1)
            shares = (encoder.model.logit_scale.exp() * scores).softmax(dim=1)  # as the model was trained to compare
            return pd.DataFrame(
                {
                    "label": [labels.classes[i] for i in label],
                    "similarity": score.tolist(),
                    "probabilities": [dict(zip(labels.classes, row, strict=True)) for row in shares.tolist()],
                }
            )

        return answer


@dataclass(frozen=True)
class Confusion:
    classes: tuple[str, ...]
    counts: "np.ndarray"  # (true class, predicted class)

    def metrics(self) -> Metrics:
        n, correct = int(self.counts.sum()), int(self.counts.trace())
        low, high = wilson_interval(correct, n)
        return Metrics(primary="accuracy", n=n, low=low, high=high, accuracy=correct / n)

    def details(self) -> dict:
        totals = self.counts.sum(axis=1)
        per_class = {
            name: float(self.counts[i, i] / totals[i]) if totals[i] else None for i, name in enumerate(self.classes)
        }
        return {"per_class_accuracy": per_class, "confusion": self.counts.tolist()}

    def draw(self, title: str, path: Path) -> None:
        import matplotlib
        import numpy as np

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        share = self.counts / np.maximum(self.counts.sum(axis=1, keepdims=True), 1)
        size = min(max(4.0, 0.45 * len(self.classes) + 1.5), LARGEST)
        figure, axes = plt.subplots(figsize=(size, size), layout="constrained")
        axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
        axes.set_xticks(range(len(self.classes)), self.classes, rotation=90 if len(self.classes) > 10 else 0)
        axes.set_yticks(range(len(self.classes)), self.classes)
        axes.tick_params(labelsize=min(10.0, 50 * size / len(self.classes)))  # points: as much as a row has room for
        axes.set(xlabel="predicted", ylabel="true", title=title)
        if len(self.classes) <= 20:
            for (i, j), count in np.ndenumerate(self.counts):
                if count:
                    colour = "white" if share[i, j] > 0.5 else "black"
                    axes.text(j, i, str(count), ha="center", va="center", fontsize=7, color=colour)
        figure.savefig(path, dpi=120)
        plt.close(figure)


TASK = Classification()
