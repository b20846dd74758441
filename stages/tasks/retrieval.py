"""Images found by a text and texts found by an image, among those of the test split, by cosine similarity.

Equal texts are one text, which belongs to all images that have it. An image has found its texts if any of them is
among the first; a text has found its images likewise. Of equal similarities the wrong one comes first.

Retrieval is what a contrastive loss trains for; the paper leaves it to future work.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from stages import progress
from stages.tasks.base import examples
from stages.tasks.base.examples import Example, Examples
from stages.tasks.base.results import Metrics, mean_interval
from stages.tasks.base.task import Answer, Chosen, HeldOut, ScoresInPaper, Settings, Task

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import torch

    from stages.data.prepared import PreparedSplit
    from stages.models.encoder import Encoder, WholeEncoder

DEPTHS = (1, 5, 10)
SERVED = 5  # images that a published model answers with
SHOWN = 3  # images on the page, for each query
DIRECTIONS = {"text_to_image": "text to image", "image_to_text": "image to text"}
SCORES = {
    "mean_recall": "mean recall",
    **{f"{key}_recall_{k}": f"{words}, recall at {k}" for key, words in DIRECTIONS.items() for k in DEPTHS},
    **{f"{key}_median_rank": f"{words}, median rank" for key, words in DIRECTIONS.items()},
}


class Retrieval(Task):
    name = "retrieval"
    pipeline = "zero-shot-image-classification"
    reads_features = True
    page_title = "Images found by a text"
    inputs = ("query", "folder")
    outputs: ClassVar[Mapping[str, str]] = {"images": "string"}
    in_paper = ScoresInPaper(
        heading="Retrieval, ours",
        items="test images",
        titles=SCORES,
        about_epsilon="The paper has no retrieval: it names other tasks as future work.",
        about_data="Recalls depend on how many images and texts there are to choose from.",
    )

    def problems(self, chosen: Chosen) -> list[str]:
        found = [
            f"sweep.dataset: retrieval needs texts of images, and {name!r} has questions"
            for name in chosen.datasets
            if chosen.has_questions.get(name)
        ]
        return found + super().problems(chosen)

    def evaluate(self, encoder: "Encoder", test: HeldOut, settings: Settings, device: "torch.device") -> "Found":
        import torch

        from stages.models.encoder import require_comparing

        require_comparing(encoder, self.name)
        encoder.model.to(device).eval()
        own = [tuple(dict.fromkeys(test.data.texts_and_label(row)[0])) for row in range(test.data.rows)]
        texts = sorted({text for its in own for text in its})
        features: dict[str, list[torch.Tensor]] = {"image": [], "text": []}
        with torch.no_grad():
            for start in progress.bar(range(0, len(own), settings.batch_size), "images", "batches"):
                some = range(start, min(start + settings.batch_size, len(own)))
                features["image"].append(encoder.model.encode_image(test.images(some).to(device), normalize=True))
            for start in progress.bar(range(0, len(texts), settings.batch_size), "texts", "batches"):
                tokens = encoder.tokenize(texts[start : start + settings.batch_size]).to(device)
                features["text"].append(encoder.model.encode_text(tokens, normalize=True))
            similarity = torch.cat(features["text"]) @ torch.cat(features["image"]).T  # (texts, images)
        return Found(test.data, texts, own, similarity.float().cpu().numpy())

    def is_share(self, score: str) -> bool:
        return "rank" not in score

    def facts(self, data: Path, details: Path) -> dict:
        return {"shown": SERVED}

    def serve(self, encoder: "WholeEncoder", facts: dict) -> Answer:
        """A query, and a folder of images on the machine that serves (reach.py): names of its best images, as JSON."""
        import pandas as pd
        import torch

        from stages.data.pixels import Unusable
        from stages.tasks.base import reach
        from stages.tasks.base.pictures import is_picture, pictures

        @lru_cache(maxsize=1)
        @torch.no_grad()
        def encoded(folder: str, listed: tuple[tuple[str, int], ...]) -> "tuple[list[str], torch.Tensor]":
            """Of a folder with these files, each with the time of its last change; what is no image is left out."""
            names, features = [], []
            for name, _ in listed:
                with suppress(Unusable, reach.Refused):
                    picture = pictures(encoder, [str(Path(folder, name))])
                    features.append(encoder.model.encode_image(picture, normalize=True))
                    names.append(name)
            if not names:
                raise reach.Refused(f"no image in {reach.shown(folder)}")
            return names, torch.cat(features)

        def images_of(folder: str) -> "tuple[list[str], torch.Tensor]":
            where = reach.named(folder)
            if not os.path.isdir(where):
                raise reach.Refused(f"there is no folder {reach.shown(folder)} on the machine that serves")
            files = sorted(path for path in where.iterdir() if is_picture(path))
            return encoded(folder, tuple((path.name, path.stat().st_mtime_ns) for path in files))

        @torch.no_grad()
        def best(query: str, folder: str) -> str:
            names, features = images_of(folder)
            text = encoder.model.encode_text(encoder.tokenize([query]), normalize=True)[0]
            order = (features @ text).argsort(descending=True)[: facts["shown"]]
            return json.dumps([names[i] for i in order])

        def answer(table: "pd.DataFrame") -> "pd.DataFrame":
            pairs = zip(table["query"], table["folder"], strict=True)
            return pd.DataFrame({"images": [best(query, folder) for query, folder in pairs]})

        return answer


@dataclass(frozen=True)
class Found:
    data: "PreparedSplit"
    texts: list[str]  # each once
    own: list[tuple[str, ...]]  # by row of the test split, its texts
    similarity: "np.ndarray"  # (texts, images)

    @cached_property
    def belongs(self) -> "np.ndarray":
        """(texts, images)"""
        import numpy as np

        place, belongs = {text: i for i, text in enumerate(self.texts)}, np.zeros(self.similarity.shape, dtype=bool)
        for row, its in enumerate(self.own):
            belongs[[place[text] for text in its], row] = True
        return belongs

    @cached_property
    def ranks(self) -> "dict[str, np.ndarray]":
        from stages.tasks.measures.ranks import ranks

        return {
            "text_to_image": ranks(self.similarity, self.belongs),
            "image_to_text": ranks(self.similarity.T, self.belongs.T),
        }

    def metrics(self) -> Metrics:
        import numpy as np

        from stages.tasks.measures.ranks import recall

        scores = {f"{key}_recall_{k}": recall(found, k) for key, found in self.ranks.items() for k in DEPTHS}
        scores |= {f"{key}_median_rank": float(np.median(found)) for key, found in self.ranks.items()}
        each = self._of_each_image()
        low, high = mean_interval([[value] for value in each], 0.0, 1.0)
        mean = sum(each) / len(each)
        return Metrics(primary="mean_recall", n=len(self.own), low=low, high=high, mean_recall=mean, **scores)

    def _of_each_image(self) -> list[float]:
        """The mean of both directions and all depths: for the image, and for the texts that belong to it."""
        import numpy as np

        hits = {key: np.mean([found <= k for k in DEPTHS], axis=0) for key, found in self.ranks.items()}
        by_text = [hits["text_to_image"][self.belongs[:, row]].mean() for row in range(len(self.own))]
        return [float(image + text) / 2 for image, text in zip(hits["image_to_text"], by_text, strict=True)]

    def details(self) -> dict:
        return self._examples().model_dump()

    def draw(self, title: str, path: Path) -> None:
        examples.draw(self._examples(), self.data, title, path)

    def _examples(self) -> Examples:
        """For each image its first text as a query, with the images that it finds."""
        place, made, scores = {text: i for i, text in enumerate(self.texts)}, [], self._of_each_image()
        for row, its in enumerate(self.own):
            query = place[its[0]]
            rank, first = int(self.ranks["text_to_image"][query]), (-self.similarity[query]).argsort(kind="stable")
            made.append(
                Example(
                    row=row,
                    question=its[0],
                    said=f"first at place {rank} of {len(self.own)}",
                    references=list(its[1:]),
                    score=scores[row],
                    found=[int(i) for i in first[:SHOWN]],
                )
            )
        return Examples(settings={}, examples=made)


TASK = Retrieval()
