"""Answers to the questions about the test images, in any words or out of a list, against what people answered."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from stages import progress
from stages.sections import Axis, PositiveInt
from stages.tasks.base import examples
from stages.tasks.base.examples import Example, Examples
from stages.tasks.base.results import Metrics, mean_interval, wilson_interval
from stages.tasks.base.task import Answer, HeldOut, ScoresInPaper
from stages.tasks.base.writing import Writing, WritingSettings
from stages.tasks.measures import answers as right

if TYPE_CHECKING:
    import pandas as pd
    import torch

    from stages.data.prepared import PreparedSplit
    from stages.data.rows import Question
    from stages.models.encoder import Encoder, WholeEncoder

ACCURACIES = {"vqa_accuracy": right.paper_accuracy, "vqa_accuracy_official": right.official_accuracy}


class AnswerSettings(WritingSettings):
    answer_tokens: PositiveInt  # at most
    answer_list: Axis[str] | None  # possible answers, of which the likeliest is taken; without them, any words


class Vqa(Writing):
    name = "vqa"
    pipeline = "visual-question-answering"
    reads_questions = True
    unfit_data = "has none; see the section `vqa`"
    ability = "answers"
    preset = "answers"
    settings = AnswerSettings
    page_title = "Answers"
    inputs = ("image", "question")
    outputs: ClassVar[Mapping[str, str]] = {"answer": "string"}
    in_paper = ScoresInPaper(
        heading="The paper's question answering, with ours",
        items="test questions",
        titles={
            "exact_match": "exact match",
            "exact_match_yes_no": "exact match, yes/no (ours only)",
            "exact_match_number": "exact match, number (ours only)",
            "exact_match_other": "exact match, other (ours only)",
            "vqa_accuracy": "min(1, people/3)",
            "vqa_accuracy_official": "VQA accuracy, official (ours only)",
            "vqa_accuracy_official_yes_no": "official, yes/no (ours only)",
            "vqa_accuracy_official_number": "official, number (ours only)",
            "vqa_accuracy_official_other": "official, other (ours only)",
        },
        about_epsilon="Those of the paper's question answering are not known: it gives neither n nor batch size nor "
        "epochs for it.",
        about_data="Published is a BLIP on the abstract scenes of VQA v2, ours is what its block names. Accuracy "
        "depends on the questions, so that of two datasets does not compare. The paper took its min(1, people/3) on "
        "the training set.",
    )

    def evaluate(
        self, encoder: "Encoder", test: HeldOut, settings: AnswerSettings, device: "torch.device"
    ) -> "Answers":
        from stages.models import writing

        writer = writing.require_decoder(encoder, self.name, self.ability)
        encoder.model.to(device).eval()
        how: dict[str, Any] = {
            "beams": settings.beams,
            "most_tokens": settings.answer_tokens,
            "answer_list": settings.answer_list,
        }
        asked = [(row, question) for row in range(test.data.rows) for question in test.data.questions(row)]
        said: list[str] = []
        for start in progress.bar(range(0, len(asked), settings.batch_size), "answer", "batches"):
            some = asked[start : start + settings.batch_size]
            pictures = test.images([row for row, _ in some]).to(device)
            said += writing.answers(writer, pictures, [question.text for _, question in some], **how)
        return Answers(test.data, asked, said, how)

    def serve(self, encoder: "WholeEncoder", facts: dict) -> Answer:
        import pandas as pd

        from stages.models import writing
        from stages.tasks.base.pictures import pictures

        writer = writing.require_decoder(encoder, self.name, self.ability)

        def answer(table: "pd.DataFrame") -> "pd.DataFrame":
            images, questions = pictures(encoder, table["image"]), table["question"].tolist()
            return pd.DataFrame({"answer": writing.answers(writer, images, questions, **facts["settings"])})

        return answer


@dataclass(frozen=True)
class Answers:
    data: "PreparedSplit"
    asked: list[tuple[int, "Question"]]  # with the row of its image
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

    def _scores(self, score: Callable[..., float]) -> list[float]:
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


TASK = Vqa()
