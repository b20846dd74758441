"""Prompt-ensemble classification: the class whose prompts' mean feature has the highest cosine similarity."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from stages.errors import UserError
from stages.evaluate.results import Metrics, wilson_interval
from stages.models.batches import Images
from stages.models.encoder import Encoder
from stages.models.prompts import class_features
from stages.prepare.format import Labels, PreparedSplit


@dataclass(frozen=True)
class Confusion:
    classes: tuple[str, ...]
    counts: np.ndarray  # (true class, predicted class)

    def metrics(self) -> Metrics:
        n, correct = int(self.counts.sum()), int(np.trace(self.counts))
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

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        share = self.counts / np.maximum(self.counts.sum(axis=1, keepdims=True), 1)
        size = max(4.0, 0.45 * len(self.classes) + 1.5)
        figure, axes = plt.subplots(figsize=(size, size), layout="constrained")
        axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
        axes.set_xticks(range(len(self.classes)), self.classes, rotation=90 if len(self.classes) > 10 else 0)
        axes.set_yticks(range(len(self.classes)), self.classes)
        axes.set(xlabel="predicted", ylabel="true", title=title)
        if len(self.classes) <= 20:
            for (i, j), count in np.ndenumerate(self.counts):
                if count:
                    colour = "white" if share[i, j] > 0.5 else "black"
                    axes.text(j, i, str(count), ha="center", va="center", fontsize=7, color=colour)
        figure.savefig(path, dpi=120)
        plt.close(figure)


@torch.no_grad()
def evaluate(
    clip: Encoder,
    data: PreparedSplit,
    images: Images,
    labels: Labels | None,
    batch_size: int,
    device: torch.device,
) -> Confusion:
    if labels is None:
        raise UserError("this dataset has no class labels; classification needs a `label` column")
    clip.model.to(device).eval()
    classes = class_features(clip, labels, device)
    counts = np.zeros((len(labels.classes), len(labels.classes)), dtype=np.int64)
    for start in tqdm(range(0, data.rows, batch_size), desc="evaluate", unit=" batches", disable=None):
        rows = range(start, min(start + batch_size, data.rows))  # the last batch may be short
        batch = images(rows).to(device)
        predicted = (clip.model.encode_image(batch, normalize=True) @ classes.T).argmax(dim=1).cpu().numpy()
        np.add.at(counts, ([data.texts_and_label(i)[1] for i in rows], predicted), 1)
    return Confusion(labels.classes, counts)
