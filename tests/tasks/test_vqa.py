"""Answers from prepared data to scores, by the stages' own commands, and on real questions where they are there."""

import base64
import json
import sys
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from ruamel.yaml import YAML

from stages import params
from stages.data.prepared import PreparedSplit, write
from stages.data.rows import Dataset, Question, Row, png
from stages.errors import UserError
from stages.models import saved, writing
from stages.models.batches import BatchReader, decoded
from stages.models.encoder import WholeEncoder
from stages.params.schema import merge
from stages.privacy.randomness import Key
from stages.tasks import vqa
from stages.tasks.base.task import HeldOut
from tests.conftest import Project
from tests.prepare.test_vqa import config
from tests.prepare.test_vqa import make as made_by_hand
from tests.report.test_publish import SCRIPT
from tests.tasks.test_captioning import captioning_params, run_cell

CPU = torch.device("cpu")
PICTURE = png(torch.zeros(64, 64, 3, dtype=torch.uint8).numpy())


def vqa_params(**sections) -> dict:
    values = captioning_params()
    values["sweep"]["task"] = ["vqa"]
    values["prepare"]["public-scenes"] |= {"style": "wide", "questions": True}
    values["evaluate"] |= {"answer_tokens": 4}
    return values | sections


def test_real_photos_with_questions_from_their_table_to_exact_match(project, shared_data):
    """DAQUAR's sample: a record is a photo with its questions and answers."""
    split = {"images": "images"}
    daquar = {
        "path": str(shared_data / "daquar"),
        "train": split | {"csv": "data_train.csv"},
        "test": split | {"csv": "data_eval.csv", "units": 10},
        "in_both": "out-of-train",
    }
    project.write_params(vqa_params(vqa={"mine": daquar}))
    metrics, details = run_cell(project, "vqa/mine/tiny-blip/batch/eps-1/seed-0")
    assert metrics["n"] == len(details["examples"]) and metrics["primary"] == "exact_match"
    assert 0 <= metrics["low"] <= metrics["exact_match"] <= metrics["high"] <= 1
    assert "questions with 1" in metrics["not_run"]["vqa_accuracy"]
    training = (project.folder / "runs/vqa/mine/tiny-blip/batch/eps-1/seed-0/training.json").read_text()
    assert json.loads(training)["privacy"]["guarantee"]["n"] == 148
    moved = saved.changed(project.folder / "runs/vqa/mine/tiny-blip/batch/eps-1/seed-0/model")
    assert moved and all(name.startswith(("vision_model.", "vision_proj.")) for name in moved)


def answerer() -> WholeEncoder:
    return saved.create("stages/models/configs/tiny-blip", ["what color is the red circle? yes no 1 2 3 blue"])


def test_real_questions_without_answers_are_answered_and_not_scored(tmp_path, shared_data):
    root = made_by_hand(tmp_path / "in")
    (root / "real").symlink_to(shared_data / "vqa-abstract")
    test = {"questions": "real/OpenEnded_abstract_v002_val2015_questions.json", "images": "real/images", "units": 5}
    write(tmp_path / "out", "real", config(root, test=test).load())
    data, encoder = PreparedSplit(tmp_path / "out", "test"), answerer()
    result = vqa.TASK.evaluate(encoder, HeldOut(data, decoded(data, encoder)), params.load().evaluate, CPU)
    metrics = result.metrics()
    assert (metrics.primary, metrics.n) == ("answered", 3 * data.rows) and 0 <= metrics.score <= 1
    assert set(metrics.not_run) == {"exact_match", "vqa_accuracy", "vqa_accuracy_official"}
    examples = result.details()["examples"]
    assert all(e["score"] is None and e["question"] for e in examples) and len(examples) == 3 * data.rows
    result.draw("real", tmp_path / "sheet.png")
    assert (tmp_path / "sheet.png").stat().st_size > 50_000


def data_of(folder, *rows: list[Question]) -> PreparedSplit:
    made = [Row.asked(PICTURE, tuple(questions), f"row-{i}") for i, questions in enumerate(rows)]
    train = [Row.asked(PICTURE, (Question("t", "is it?", ("yes",)),), "train")]
    write(folder, "mine", Dataset("made by the test", "none", None, train, made))
    return PreparedSplit(folder, "test")


def test_scores_by_kind_with_an_interval_over_images(tmp_path, monkeypatch):
    data = data_of(
        tmp_path / "d",
        [Question("a", "is it red?", ("yes",) * 10), Question("b", "how many?", ("two",) * 8 + ("3",) * 2)],
        [
            Question("c", "what is it?", ("dog",) * 7 + ("cat",) * 3, kind="other"),
            Question("d", "is it?", ("no",) * 10),
        ],
    )
    said = iter(["Yes.", "3", "a cat", "yes"])
    seen = []

    def answers(encoder, images, questions, **settings):
        seen.append((len(images), settings))
        return [next(said) for _ in questions]

    monkeypatch.setattr(writing, "answers", answers)
    settings = params.load().evaluate.model_copy(update={"batch_size": 3, "answer_list": ["yes", "no"]})
    encoder = answerer()
    metrics = vqa.TASK.evaluate(encoder, HeldOut(data, decoded(data, encoder)), settings, CPU).metrics()
    assert [count for count, _ in seen] == [3, 1] and seen[0][1]["answer_list"] == ["yes", "no"]
    assert metrics.n == 4 and not metrics.not_run and metrics.primary == "exact_match"
    expected = {"exact_match": 0.25, "exact_match_yes_no": 0.5, "exact_match_number": 0.0, "exact_match_other": 0.0}
    expected |= {"vqa_accuracy": (1 + 2 / 3 + 1 + 0) / 4, "vqa_accuracy_official": (1 + 0.6 + 0.9 + 0) / 4}
    expected |= {"vqa_accuracy_official_yes_no": 0.5, "vqa_accuracy_official_number": 0.6}
    assert {name: metrics.scores[name] for name in expected} == pytest.approx(expected)
    # images have sums 1 and 0 over a mean of 0.25: deviations 0.5 and -0.5, error sqrt(0.5 * 2) / 4
    assert metrics.high == pytest.approx(0.25 + 1.96 * 0.25) and metrics.low == 0.0


def test_a_served_model_answers_as_it_did_when_it_was_evaluated(tmp_path, monkeypatch):
    def answers(_, images, questions, **how) -> list[str]:
        return [f"{image.shape}, {question}, {how}" for image, question in zip(images, questions, strict=True)]

    monkeypatch.setattr(writing, "answers", answers)  # a model that has not learned says the same to all questions
    data, encoder = data_of(tmp_path / "d", [Question(q, f"{q} color?", ("red",)) for q in ("what", "is")]), answerer()
    settings = params.load().evaluate.model_copy(update={"answer_tokens": 3})
    details = vqa.TASK.evaluate(encoder, HeldOut(data, decoded(data, encoder)), settings, CPU).details()
    (tmp_path / "details.json").write_text(json.dumps(details))
    facts = vqa.TASK.facts(tmp_path / "d", tmp_path / "details.json")
    assert facts == {"settings": {"beams": settings.beams, "most_tokens": 3, "answer_list": None}}
    asked = [example["question"] for example in details["examples"]]
    image = base64.b64encode(PICTURE).decode()
    said = vqa.TASK.serve(encoder, facts)(pd.DataFrame({"image": [image] * 2, "question": asked}))
    assert list(said) == list(vqa.TASK.outputs)
    assert said["answer"].tolist() == [example["said"] for example in details["examples"]]


def test_training_draws_one_question_with_one_answer_for_each_image(tmp_path):
    rows = [[Question("a", "is it red?", ("yes", "no")), Question("b", "how many?", ("2",))]] * 3
    data = data_of(tmp_path / "d", *rows)
    reader = BatchReader(data, lambda rows: torch.zeros(len(rows), 1))
    drawn = [reader.batch(np.arange(3), partial(Key.from_seed(i).by_record, "text", 0)).texts for i in range(40)]
    assert all(len(texts) == 3 for texts in drawn)
    assert {text for texts in drawn for text in texts} == {"is it red? yes", "is it red? no", "how many? 2"}


def test_dvc_brings_questions_to_a_published_model_that_answers(project, tmp_path):
    values = vqa_params()
    values["prepare"]["mine"] = {"source": "easy-vqa", "test": 5}
    project.write_params(values)
    done = project.run("dvc", "repro", "publish")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    table, paper = (project.folder / f"report/{name}.md" for name in ("table", "paper"))
    assert "exact match in %" in table.read_text() and "Table 7" in paper.read_text()
    page = (project.folder / "report/gallery/vqa-mine-tiny-blip.html").read_text()
    details = project.folder / "results/vqa/mine/tiny-blip/batch/eps-1/seed-0/details.json"
    examples = json.loads(details.read_text())["examples"]
    assert examples[0]["question"] in page
    image = tmp_path / "image.png"
    image.write_bytes(PreparedSplit(project.folder / "data/mine", "test").row(0).image)
    where = [f"sqlite:///{project.folder / 'mlflow.db'}", "models:/dp-clip.vqa.mine.tiny-blip.batch@eps-1"]
    asked = [e for e in examples if e["row"] == 0]
    table = {"image": [str(image)] * len(asked), "question": [e["question"] for e in asked]}
    said = Project(tmp_path).run(sys.executable, "-c", SCRIPT, *where, json.dumps(table))
    assert said.returncode == 0, said.stderr[-2000:]
    assert json.loads(said.stdout.splitlines()[-1]) == [{"answer": e["said"]} for e in asked]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"sweep": {"model": ["tiny-clip"]}}, "vqa needs a model that answers questions, and 'tiny-clip' does not"),
        ({"prepare": {"mine": {"questions": False}}}, "vqa needs questions, and 'mine' has none"),
        ({"prepare": {"public-scenes": {"questions": False}}}, "'public-scenes' has captions; a model for vqa"),
        ({"sweep": {"task": ["captioning"]}}, "captioning needs captions, and 'mine' has questions"),
        ({"train": {"methods": {"batch": {"trainable": "image-projection"}}}}, "reaches no caption and no answer"),
        (
            {
                "weights": {"w": {"architecture": "blip", "captioner": "a", "contrastive": "b"}},
                "sweep": {"model": ["w"]},
            },
            "weights.w: vqa needs answerer",
        ),
        (
            {"weights": {"w": {"architecture": "blip", "contrastive": "b"}}},
            "give either captioner or answerer",
        ),
    ],
)
def test_what_cannot_answer_is_refused_before_anything_runs(tmp_path, section, message):
    values = vqa_params()
    mine = {"source": "scenes", "style": "private", "questions": True, "train": 60, "test": 5, "seed": 0}
    values["prepare"]["mine"] = mine
    merge(values, section)
    path = tmp_path / "params.yaml"
    YAML(typ="safe").dump(values, path)
    with pytest.raises(UserError, match=message):
        params.load(path)


def test_a_clip_cannot_answer_and_says_so(tmp_path):
    clip = saved.create("stages/models/configs/tiny-clip")
    data = data_of(tmp_path / "d", [Question("a", "is it?", ("yes",))])
    with pytest.raises(UserError, match="vqa needs a model with a decoder"):
        vqa.TASK.evaluate(clip, HeldOut(data, decoded(data, clip)), params.load().evaluate, CPU)
