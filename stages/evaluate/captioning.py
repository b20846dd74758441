"""Captions of the test images by beam search, scored against what people wrote of them."""

import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from stages import params
from stages.errors import UserError
from stages.evaluate import caption_scores
from stages.evaluate.results import Metrics
from stages.models.batches import Images
from stages.models.encoder import Encoder
from stages.prepare.format import PreparedSplit

SHOWN = 12  # pictures on the sheet


@dataclass(frozen=True)
class Captions:
    data: PreparedSplit
    generated: list[str]  # one a row of the test split
    references: list[list[str]]
    scores: caption_scores.CaptionScores
    settings: dict[str, int]  # with which they were generated; the published model has them too

    def metrics(self) -> Metrics:
        low, high = self.scores.interval()
        return Metrics(
            primary="cider",
            n=len(self.generated),
            low=low,
            high=high,
            not_run=self.scores.not_run,
            **self.scores.corpus,
        )

    def details(self) -> dict:
        rows = zip(self.generated, self.references, self.scores.per_image["cider"], strict=True)
        return {
            "settings": self.settings,
            "captions": [
                {"row": i, "caption": caption, "references": references, "cider": cider}
                for i, (caption, references, cider) in enumerate(rows)
            ],
        }

    def draw(self, title: str, path: Path) -> None:
        """A sheet of the first pictures, each with what was generated and one of its references."""
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt

        count = min(SHOWN, len(self.generated))
        figure, grid = plt.subplots(-(-count // 4), 4, figsize=(13, 3.6 * -(-count // 4)), layout="constrained")
        for axes in grid.flat:
            axes.axis("off")
        for i, axes in zip(range(count), grid.flat, strict=False):
            axes.imshow(self.data.row(i).pixels())
            told = f"{self.generated[i] or '(nothing)'}\n(reference: {self.references[i][0]})"
            axes.set_title(told.replace("$", r"\$"), fontsize=8, wrap=True)
        figure.suptitle(title)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")  # a box stands for it; the page has it
            figure.savefig(path, dpi=100)
        plt.close(figure)


def evaluate(
    encoder: Encoder, data: PreparedSplit, images: Images, config: params.Evaluate, device: torch.device
) -> Captions:
    from stages.models import blip

    if not isinstance(encoder, blip.BlipEncoder):
        raise UserError("captioning needs a model with a caption decoder, a BLIP; this one is a CLIP")
    caption_scores.require_java()  # before the work, not after it
    encoder.model.to(device).eval()
    settings, generated = {"beams": config.beams, "most_tokens": config.caption_tokens}, []
    for start in tqdm(range(0, data.rows, config.batch_size), desc="caption", unit=" batches", disable=None):
        rows = range(start, min(start + config.batch_size, data.rows))
        generated += blip.captions(encoder, images(rows).to(device), **settings)
    references = [list(data.texts_and_label(row)[0]) for row in range(data.rows)]
    jars = config.spice_jars and Path(config.spice_jars)
    return Captions(data, generated, references, caption_scores.score(references, generated, jars), settings)
