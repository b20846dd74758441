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
import functools
import re
from collections import defaultdict
from pathlib import Path

from PIL import Image

from stages.errors import UserError
from stages.params import VqaSplit
from stages.prepare import described
from stages.prepare.described import Kind, Photo, is_id, is_text, lists, short
from stages.prepare.format import Question

KINDS = ("yes/no", "number", "other")
IMAGE_COLUMNS = ("image", "image_id", "file_name")


def _read(root: Path, split: VqaSplit) -> tuple[list[Photo], list[str]]:
    return _read_csv(root, split) if split.csv else _read_json(root, split)


QUESTIONS = Kind("questions", "question", _read)
quick_look = functools.partial(described.quick_look, kind=QUESTIONS)
load = functools.partial(described.load, kind=QUESTIONS)


def _read_json(root: Path, split: VqaSplit) -> tuple[list[Photo], list[str]]:
    content, (entries,) = lists(root / split.questions, "questions")
    names = split.file_names or _file_names(content, root / split.questions)
    photos: dict[int | str, Photo] = {}
    asked: dict[int | str, tuple[Photo, Question]] = {}
    found = [p for i, entry in enumerate(entries) for p in _ask(photos, asked, names, f"questions[{i}]", entry)]
    problems = [f"{split.questions}: {problem}" for problem in found]
    if split.annotations:
        problems += [f"{split.annotations}: {problem}" for problem in _answer(asked, root / split.annotations)]
    for photo, question in asked.values():
        photo.questions.append(question)
    return list(photos.values()), problems


def _file_names(content: dict, path: Path) -> str:
    """Of an image id, as the published image files are called."""
    kind, subset = content.get("data_type"), content.get("data_subtype")
    if not (is_text(kind) and is_text(subset) and re.fullmatch(r"[\w-]+", kind + subset)):
        raise UserError(f"{path} has no data_type and data_subtype; give file_names, as COCO_val2014_{{:012d}}.jpg")
    return f"COCO_{subset}_{{:012d}}.jpg" if kind == "mscoco" else f"{kind}_{subset}_{{:012d}}.png"


def _ask(photos: dict, asked: dict, names: str, where: str, entry: object) -> list[str]:
    """Take one entry of `questions`, and say what is wrong with it."""
    if not isinstance(entry, dict) or not all(is_id(entry.get(key)) for key in ("question_id", "image_id")):
        return [f"{where} must have a question_id, an image_id and a question; got {short(entry)}"]
    question, image, text = entry["question_id"], entry["image_id"], entry.get("question")
    if question in asked:
        return [f"{where}: question id {question!r} is there twice"]
    if image not in photos:
        try:
            file_name = names.format(image)
        except (ValueError, IndexError, KeyError):
            return [f"{where}: image_id {image!r} of question {question!r} does not fit the file names {names}"]
        photos[image] = Photo(image, file_name, wanted=True)
    asked[question] = (photos[image], Question(str(question), "", ()))
    if not is_text(text) or not text.strip():
        return [f"{where}: question {question!r} must be a text that is not empty; got {short(text)}"]
    asked[question] = (photos[image], Question(str(question), " ".join(text.split()), ()))
    return []


def _answer(asked: dict[int | str, tuple[Photo, Question]], path: Path) -> list[str]:
    """Give each question of `asked` its answers."""
    problems, answered = [], set()
    for i, entry in enumerate(lists(path, "annotations")[1][0]):
        where = f"annotations[{i}]"
        if not isinstance(entry, dict) or not is_id(entry.get("question_id")):
            problems.append(f"{where} must have a question_id and answers; got {short(entry)}")
            continue
        question, kind = entry["question_id"], entry.get("answer_type")
        if question not in asked:
            problems.append(f"{where}: question_id {question!r} is not among the questions")
        elif question in answered:
            problems.append(f"{where}: question {question!r} is annotated twice")
        elif kind not in (*KINDS, None):
            problems.append(f"{where}: answer_type of question {question!r} must be one of {KINDS}; got {short(kind)}")
        elif not (answers := _texts(entry.get("answers"))):
            problems.append(
                f"{where}: answers of question {question!r} must be a list of {{answer: text}}; "
                f"got {short(entry.get('answers'))}"
            )
        else:
            photo, its = asked[question]
            asked[question] = (photo, dataclasses.replace(its, answers=answers, kind=kind))
        answered.add(question)
    return problems + [f"question {question!r} has no annotation" for question in asked if question not in answered]


def _texts(answers: object) -> tuple[str, ...]:
    """None at all, if one of them is not as it should be. People did give empty answers."""
    if not isinstance(answers, list) or not all(isinstance(a, dict) and is_text(a.get("answer")) for a in answers):
        return ()
    return tuple(" ".join(a["answer"].split()) for a in answers)


def _read_csv(root: Path, split: VqaSplit) -> tuple[list[Photo], list[str]]:
    path, stems = root / split.csv, _by_stem(root / split.images)
    photos: dict[str, Photo] = {}
    problems: list[str] = []
    for line, row in _rows(path):
        values = {key: " ".join((row.get(key) or "").split()) for key in ("question", "answer", "image")}
        if empty := [key for key, value in values.items() if not value]:
            problems.append(f"{split.csv}, line {line}: empty {' and '.join(empty)}")
            continue
        image = values["image"]
        if len(files := stems.get(image, [])) > 1:
            problems.append(f"{split.csv}, line {line}: image {image} may be {' or '.join(sorted(files))}")
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
        raise UserError(f"{path} cannot be read: {error}; it must be CSV in UTF-8") from None
    image = next((name for name in IMAGE_COLUMNS if name in columns), None)
    if image is None or not {"question", "answer"} <= set(columns):
        raise UserError(f"{path} must have the columns question, answer and image; it has {columns}")
    return [(line, {**row, "image": row[image]}) for line, row in rows]


def _by_stem(folder: Path) -> dict[str, list[str]]:
    """File names by their name without the ending: some tables name images so."""
    endings, found = Image.registered_extensions(), defaultdict(list)
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.suffix.lower() in endings:
            found[path.stem].append(path.name)
    return found
