"""Images with questions: the JSON that VQA publishes, or a CSV file.

    questions.json     {"data_type": "abstract_v002", "data_subtype": "val2015",
                        "questions": [{"question_id": 235730, "image_id": 23573, "question": "Is it raining?"}, ...]}
    annotations.json   {"annotations": [{"question_id": 235730, "answer_type": "yes/no",
                                         "answers": [{"answer": "no"}, ... of ten people]}, ...]}
    data.csv           question,answer,image      (the image's file name, with or without its ending)

The privacy unit is the image with all of its questions and answers. Rows of a CSV file that ask the same of one image
are answers to one question.
"""

import csv
import dataclasses
import re
from collections import defaultdict
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from PIL import Image
from pydantic import Field, model_validator

from stages.data.rows import Question
from stages.errors import Private, UserError, unusable
from stages.sources.described import Described, ImageFiles, Inside, Photo, is_id, is_text, lists, short

KINDS = ("yes/no", "number", "other")
IMAGE_COLUMNS = ("image", "image_id", "file_name")


class VqaSplit(ImageFiles):
    """Questions and annotations as VQA publishes them, or one CSV file."""

    questions: Inside | None = None
    annotations: Inside | None = None  # without it, questions are answered and not scored
    file_names: Annotated[str, Field(pattern=r"\{.*\}")] | None = None  # of image ids, as COCO_val2014_{:012d}.jpg
    csv: Inside | None = None  # columns question, answer and image

    @property
    def file(self) -> str:
        return self.csv or self.questions or ""  # one of them is given

    def read(self, root: Path):
        return _read_csv(root, self) if self.csv else _read_json(root, self)

    @model_validator(mode="after")
    def _one_kind(self) -> "VqaSplit":
        if (self.questions is None) == (self.csv is None):
            raise ValueError("give either questions (and annotations) or csv")
        if self.csv and (self.annotations or self.file_names):
            raise ValueError("annotations and file_names go with questions; a csv file has the answers and the names")
        return self


class Vqa(Described):
    section: ClassVar[str] = "vqa"
    said, noun, belongs = "questions", "question", "all of its questions and answers"

    source: Literal["vqa"] = "vqa"
    train: VqaSplit
    test: VqaSplit

    @property
    def has_questions(self):
        return True

    @model_validator(mode="after")
    def _answers_to_learn_from(self) -> "Vqa":
        if self.train.questions and not self.train.annotations:
            raise ValueError("train.annotations: training needs the answers; only the test split can be without")
        return self


def _read_json(root: Path, split: VqaSplit) -> tuple[list[Photo], list[Private]]:
    content, (entries,) = lists(root / split.file, "questions")
    names = split.file_names or _file_names(content, root / split.file)
    photos: dict[int | str, Photo] = {}
    asked: dict[int | str, tuple[Photo, Question]] = {}
    found = [p for i, entry in enumerate(entries) for p in _ask(photos, asked, names, f"questions[{i}]", entry)]
    problems = [problem.within(split.file) for problem in found]
    if split.annotations:
        problems += [problem.within(split.annotations) for problem in _answer(asked, root / split.annotations)]
    for photo, question in asked.values():
        photo.questions.append(question)
    return list(photos.values()), problems


def _file_names(content: dict, path: Path) -> str:
    """Of an image id, as the published image files are called."""
    kind, subset = content.get("data_type"), content.get("data_subtype")
    if not (is_text(kind) and is_text(subset) and re.fullmatch(r"[\w-]+", kind + subset)):
        raise UserError(f"{path} has no data_type and data_subtype; give file_names, as COCO_val2014_{{:012d}}.jpg")
    return f"COCO_{subset}_{{:012d}}.jpg" if kind == "mscoco" else f"{kind}_{subset}_{{:012d}}.png"


def _ask(photos: dict, asked: dict, names: str, where: str, entry: object) -> list[Private]:
    """Take one entry of `questions`, and say what is wrong with it."""
    if not isinstance(entry, dict) or not all(is_id(entry.get(key)) for key in ("question_id", "image_id")):
        detail = f"{where} must have a question_id, an image_id and a question; got {short(entry)}"
        return [Private("questions without a question_id or an image_id", detail)]
    question, image, text = entry["question_id"], entry["image_id"], entry.get("question")
    if question in asked:
        return [Private("questions whose id is there twice", f"{where}: question id {question!r} is there twice")]
    if image not in photos:
        try:
            file_name = names.format(image)
        except (ValueError, IndexError, KeyError):
            detail = f"{where}: image_id {image!r} of question {question!r} does not fit the file names {names}"
            return [Private("questions whose image_id does not fit the file names", detail)]
        photos[image] = Photo(image, file_name, wanted=True)
    asked[question] = (photos[image], Question(str(question), "", ()))
    if not is_text(text) or not text.strip():
        detail = f"{where}: question {question!r} must be a text that is not empty; got {short(text)}"
        return [Private("questions that are empty or no text", detail)]
    asked[question] = (photos[image], Question(str(question), " ".join(text.split()), ()))
    return []


def _answer(asked: dict[int | str, tuple[Photo, Question]], path: Path) -> list[Private]:
    """Give each question of `asked` its answers."""
    problems, answered = [], set()
    for i, entry in enumerate(lists(path, "annotations")[1][0]):
        if not isinstance(entry, dict) or not is_id(entry.get("question_id")):
            detail = f"annotations[{i}] must have a question_id and answers; got {short(entry)}"
            problems.append(Private("annotations without a question_id", detail))
            continue
        question = entry["question_id"]
        if wrong := _wrong_answer(entry, question in asked, question in answered):
            problems.append(dataclasses.replace(wrong, detail=f"annotations[{i}]: {wrong.detail}"))
        else:
            photo, its = asked[question]
            answers, kind = _texts(entry["answers"]), entry.get("answer_type")
            asked[question] = (photo, dataclasses.replace(its, answers=answers, kind=kind))
        answered.add(question)
    return problems + [
        Private("questions without an annotation", f"question {question!r} has no annotation")
        for question in asked
        if question not in answered
    ]


def _wrong_answer(entry: dict, known: bool, again: bool) -> Private | None:
    question, kind, answers = entry["question_id"], entry.get("answer_type"), entry.get("answers")
    if not known:
        detail = f"question_id {question!r} is not among the questions"
        return Private("annotations whose question_id is not among the questions", detail)
    if again:
        return Private("questions that are annotated twice", f"question {question!r} is annotated twice")
    if kind not in (*KINDS, None):
        detail = f"answer_type of question {question!r} must be one of {KINDS}; got {short(kind)}"
        return Private(f"annotations whose answer_type is none of {', '.join(KINDS)}", detail)
    if not _texts(answers):
        detail = f"answers of question {question!r} must be a list of {{answer: text}}; got {short(answers)}"
        return Private("annotations whose answers are no list of {answer: text}", detail)
    return None


def _texts(answers: object) -> tuple[str, ...]:
    """None at all, if one of them is not as it should be. People did give empty answers."""
    if not isinstance(answers, list) or not all(isinstance(a, dict) and is_text(a.get("answer")) for a in answers):
        return ()
    return tuple(" ".join(a["answer"].split()) for a in answers)


def _read_csv(root: Path, split: VqaSplit) -> tuple[list[Photo], list[Private]]:
    path, stems = root / split.file, _by_stem(root / split.images)
    photos: dict[str, Photo] = {}
    problems: list[Private] = []
    for line, row in _rows(path):
        values = {key: " ".join((row.get(key) or "").split()) for key in ("question", "answer", "image")}
        if empty := [key for key, value in values.items() if not value]:
            what = " and ".join(empty)
            problems.append(Private(f"{split.csv}: lines with empty {what}", f"{split.csv}, line {line}: empty {what}"))
            continue
        image = values["image"]
        if len(files := stems.get(image, [])) > 1:
            detail = f"{split.csv}, line {line}: image {image} may be {' or '.join(sorted(files))}"
            problems.append(Private(f"{split.csv}: lines whose image may be one of several files", detail))
            continue
        name = files[0] if files else image
        photo = photos.setdefault(name, Photo(name, name, wanted=True))
        before = next((i for i, q in enumerate(photo.questions) if q.text == values["question"]), None)
        if before is None:
            photo.questions.append(Question(f"{split.csv}:{line}", values["question"], (values["answer"],)))
        else:
            its = photo.questions[before]
            photo.questions[before] = dataclasses.replace(its, answers=(*its.answers, values["answer"]))
    return list(photos.values()), problems


def _rows(path: Path) -> list[tuple[int, dict]]:
    """With their line numbers, and the column of the image called `image`."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            rows = [(reader.line_num, row) for row in reader]
            columns = reader.fieldnames or []
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except (OSError, ValueError, csv.Error) as error:
        raise unusable(f"{path} cannot be read; it must be CSV in UTF-8", str(error)) from None
    image = next((name for name in IMAGE_COLUMNS if name in columns), None)
    if image is None or not {"question", "answer"} <= set(columns):
        # the first line of a file without column names is a private one
        raise unusable(f"{path} must have the columns question, answer and image", f"it has {columns}")
    return [(line, {**row, "image": row[image]}) for line, row in rows]


def _by_stem(folder: Path) -> dict[str, list[str]]:
    """File names by their name without the ending: some tables name images so."""
    endings, found = Image.registered_extensions(), defaultdict(list)
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.suffix.lower() in endings:
            found[path.stem].append(path.name)
    return found
