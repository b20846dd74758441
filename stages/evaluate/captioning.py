"""Captions of the test images by beam search, scored against what people wrote of them."""

from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from stages import params
from stages.evaluate import caption_scores, examples
from stages.evaluate.examples import Example, Examples
from stages.evaluate.results import Metrics
from stages.models import writing
from stages.models.batches import Images
from stages.models.encoder import Encoder
from stages.prepare.format import PreparedSplit


@dataclass(frozen=True)
class Captions:
    data: PreparedSplit
    generated: list[str]  # one a row of the test split
    references: list[list[str]]
    scores: caption_scores.CaptionScores
    settings: dict

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
        return self._examples().model_dump()

    def draw(self, title: str, path: Path) -> None:
        examples.draw(self._examples(), self.data, title, path)

    def _examples(self) -> Examples:
        rows = zip(self.generated, self.references, self.scores.per_image["cider"], strict=True)
        found = [Example(row=i, said=said, references=r, score=score) for i, (said, r, score) in enumerate(rows)]
        return Examples(settings=self.settings, examples=found)


def evaluate(
    encoder: Encoder, data: PreparedSplit, images: Images, config: params.Evaluate, device: torch.device
) -> Captions:
    writing.require_decoder(encoder, "captioning")
    caption_scores.require_java()  # before the work, not after it
    encoder.model.to(device).eval()
    settings, generated = {"beams": config.beams, "most_tokens": config.caption_tokens}, []
    for start in tqdm(range(0, data.rows, config.batch_size), desc="caption", unit=" batches", disable=None):
        rows = range(start, min(start + config.batch_size, data.rows))
        generated += writing.captions(encoder, images(rows).to(device), **settings)
    references = [list(data.texts_and_label(row)[0]) for row in range(data.rows)]
    jars = config.spice_jars and Path(config.spice_jars)
    return Captions(data, generated, references, caption_scores.score(references, generated, jars), settings)
