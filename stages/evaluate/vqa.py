"""Answers to the questions about the test images, in any words or out of a list, against what people answered."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tqdm import tqdm

from stages import params
from stages.evaluate import answers as right
from stages.evaluate import examples
from stages.evaluate.examples import Example, Examples
from stages.evaluate.results import Metrics, mean_interval, wilson_interval
from stages.models import writing
from stages.models.batches import Images
from stages.models.encoder import Encoder
from stages.prepare.format import PreparedSplit, Question

ACCURACIES = {"vqa_accuracy": right.paper_accuracy, "vqa_accuracy_official": right.official_accuracy}


@dataclass(frozen=True)
class Answers:
    data: PreparedSplit
    asked: list[tuple[int, Question]]  # with the row of its image
    said: list[str]
    settings: dict

    def metrics(self) -> Metrics:
        fewest = min(len(question.answers) for _, question in self.asked)
        if not fewest:
            return self._only_answered()
        scores = {"exact_match": self._scores(right.exact_match)}
        if fewest >= right.PEOPLE:
            scores |= {name: self._scores(accuracy) for name, accuracy in ACCURACIES.items()}
        reason = f"it needs {right.PEOPLE} answers to a question, and there are questions with {fewest}"
        low, high = mean_interval(self._by_image(scores["exact_match"]), 0.0, 1.0)
        return Metrics(
            primary="exact_match",
            n=len(self.said),
            low=low,
            high=high,
            not_run={name: reason for name in ACCURACIES if name not in scores},
            **{name: value for score in scores for name, value in self._by_kind(score, scores[score])},
        )

    def _only_answered(self) -> Metrics:
        """Nothing to compare with: that there are answers is all that can be counted."""
        answered = sum(bool(said.strip()) for said in self.said)
        low, high = wilson_interval(answered, len(self.said))
        reason = "the test split has questions without answers to compare with"
        return Metrics(
            primary="answered",
            n=len(self.said),
            low=low,
            high=high,
            not_run=dict.fromkeys(("exact_match", *ACCURACIES), reason),
            answered=answered / len(self.said),
        )

    def _scores(self, score) -> list[float]:
        return [score(said, question.answers) for said, (_, question) in zip(self.said, self.asked, strict=True)]

    def _by_image(self, scores: list[float]) -> list[list[float]]:
        groups: dict[int, list[float]] = {}
        for (row, _), score in zip(self.asked, scores, strict=True):
            groups.setdefault(row, []).append(score)
        return list(groups.values())

    def _by_kind(self, name: str, scores: list[float]) -> Iterator[tuple[str, float]]:
        """The mean of all questions, and of those of each kind that there is."""
        yield name, sum(scores) / len(scores)
        kinds = [question.kind or right.kind_of(question.answers) for _, question in self.asked]
        for kind in sorted(set(kinds)):
            its = [score for score, of in zip(scores, kinds, strict=True) if of == kind]
            yield f"{name}_{kind.replace('/', '_')}", sum(its) / len(its)

    def details(self) -> dict:
        return self._examples().model_dump()

    def draw(self, title: str, path: Path) -> None:
        examples.draw(self._examples(), self.data, title, path)

    def _examples(self) -> Examples:
        found = [
            Example(
                row=row,
                question=question.text,
                said=said,
                references=list(question.answers),
                score=right.exact_match(said, question.answers) if question.answers else None,
            )
            for said, (row, question) in zip(self.said, self.asked, strict=True)
        ]
        return Examples(settings=self.settings, examples=found)


def evaluate(
    encoder: Encoder, data: PreparedSplit, images: Images, config: params.Evaluate, device: torch.device
) -> Answers:
    writing.require_decoder(encoder, "vqa")
    encoder.model.to(device).eval()
    settings = {"beams": config.beams, "most_tokens": config.answer_tokens, "answer_list": config.answer_list}
    asked = [(row, question) for row in range(data.rows) for question in data.questions(row)]
    said: list[str] = []
    for start in tqdm(range(0, len(asked), config.batch_size), desc="answer", unit=" batches", disable=None):
        some = asked[start : start + config.batch_size]
        pictures = images([row for row, _ in some]).to(device)
        said += writing.answers(encoder, pictures, [question.text for _, question in some], **settings)
    return Answers(data, asked, said, settings)
