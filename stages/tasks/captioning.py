"""Captions of the test images by beam search, scored against what people wrote of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from stages import progress
from stages.sections import PositiveInt
from stages.tasks.base import examples
from stages.tasks.base.examples import Example, Examples
from stages.tasks.base.results import Metrics
from stages.tasks.base.task import Answer, HeldOut, ScoresInPaper
from stages.tasks.base.writing import Writing, WritingSettings
from stages.tasks.measures.java import require_java

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from stages.data.prepared import PreparedSplit
    from stages.models.encoder import Encoder, WholeEncoder
    from stages.tasks.measures.caption_scores import CaptionScores


class CaptionSettings(WritingSettings):
    caption_tokens: PositiveInt  # at most
    spice_jars: str | None  # a folder with Stanford CoreNLP's files, without which SPICE is not run


class Captioning(Writing):
    name = "captioning"
    pipeline = "image-to-text"
    reads_questions = False
    unfit_data = "has questions"
    ability = "captions"
    preset = "captions"
    settings = CaptionSettings
    page_title = "Captions"
    outputs: ClassVar[Mapping[str, str]] = {"caption": "string"}
    in_paper = ScoresInPaper(
        heading="The paper's captioning, with ours",
        items="test images",
        titles={
            "bleu_1": "BLEU-1",
            "bleu_2": "BLEU-2",
            "bleu_3": "BLEU-3",
            "bleu_4": "BLEU-4",
            "rouge_l": "ROUGE-L",
            "cider": "CIDEr",
            "spice": "SPICE",
            "meteor": "METEOR (ours only)",
        },
        about_epsilon="Those of the paper's captioning are not known: it gives neither batch size nor epochs for it, "
        "and the size n of its part of VizWiz in two ways (5,000 image-caption pairs, section 4.1; 15% of the training "
        "set of 23,000, section 4.3).",
        about_data="Published is a BLIP on photos of VizWiz, ours is what its block names. Scores depend on the test "
        "images and how people describe them, so those of two datasets do not compare. CIDEr can be up to 10.",
    )

    def require_tools(self) -> None:
        require_java()

    def evaluate(
        self, encoder: "Encoder", test: HeldOut, settings: CaptionSettings, device: "torch.device"
    ) -> "Captions":
        from stages.models import writing
        from stages.tasks.measures import caption_scores

        writer = writing.require_decoder(encoder, self.name, self.ability)
        require_java()  # before the work, not after it
        encoder.model.to(device).eval()
        search, generated, rows = {"beams": settings.beams, "most_tokens": settings.caption_tokens}, [], test.data.rows
        for start in progress.bar(range(0, rows, settings.batch_size), "caption", "batches"):
            some = range(start, min(start + settings.batch_size, rows))
            generated += writing.captions(writer, test.images(some).to(device), **search)
        references = [list(test.data.texts_and_label(row)[0]) for row in range(rows)]
        scores = caption_scores.score(references, generated, Path(settings.spice_jars) if settings.spice_jars else None)
        return Captions(test.data, generated, references, scores, search)

    def is_share(self, score: str) -> bool:
        return False

    def title_of(self, score: str) -> str:
        return f"{self.in_paper.titles[score]} x 100"

    def serve(self, encoder: "WholeEncoder", facts: dict) -> Answer:
        import pandas as pd

        from stages.models import writing
        from stages.tasks.base.pictures import pictures

        writer = writing.require_decoder(encoder, self.name, self.ability)

        def answer(table: "pd.DataFrame") -> "pd.DataFrame":
            images = pictures(encoder, table["image"])
            return pd.DataFrame({"caption": writing.captions(writer, images, **facts["settings"])})

        return answer


@dataclass(frozen=True)
class Captions:
    data: "PreparedSplit"
    generated: list[str]  # one per row of the test split
    references: list[list[str]]
    scores: "CaptionScores"
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


TASK = Captioning()
