"""Images with questions: VQA's JSON, CSV files, the package easy-vqa and generated scenes."""

import csv
import json
import re
from collections import Counter

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from stages.data.manifest import Manifest
from stages.data.prepared import PreparedSplit, write
from stages.errors import UserError
from stages.sources import scenes
from stages.sources.easy_vqa import EasyVqa
from stages.sources.scenes import Scenes
from stages.sources.vqa import Vqa
from stages.tasks.measures.answers import exact_match, kind_of
from tests.prepare.test_coco import prepared, problems_of

SUBSETS = {"train": "train2015", "test": "val2015"}


def split_of(name: str, **more) -> dict:
    return {"questions": f"{name}_questions.json", "annotations": f"{name}_annotations.json", "images": name, **more}


def config(root, train: dict | None = None, test: dict | None = None, **more) -> Vqa:
    return Vqa(path=str(root), train=train or split_of("train"), test=test or split_of("test"), **more)


def asked(name: str, images: int) -> tuple[dict, dict]:
    """VQA's two files: three questions an image, ten answers a question."""
    ids = [(1000 * (name == "test") + i, k) for i in range(images) for k in range(3)]
    questions = [{"question_id": 10 * i + k, "image_id": i, "question": f"what is  {k}?"} for i, k in ids]
    answers = [[{"answer": "yes" if k < 7 else "no", "answer_id": k} for k in range(10)] for _ in ids]
    annotations = [
        {"question_id": q["question_id"], "answer_type": "yes/no", "multiple_choice_answer": "yes", "answers": a}
        for q, a in zip(questions, answers, strict=True)
    ]
    facts = {"data_type": "abstract_v002", "data_subtype": SUBSETS[name], "task_type": "Open-Ended"}
    return facts | {"questions": questions}, facts | {"annotations": annotations}


def make(root, files: dict[str, tuple[dict, dict]] | None = None):
    root.mkdir(parents=True, exist_ok=True)
    for name, (questions, annotations) in (files or {name: asked(name, 4) for name in SUBSETS}).items():
        (root / f"{name}_questions.json").write_text(json.dumps(questions))
        (root / f"{name}_annotations.json").write_text(json.dumps(annotations))
        (root / name).mkdir(exist_ok=True)
        for i in {q["image_id"] for q in asked(name, 4)[0]["questions"]}:
            path = root / name / f"abstract_v002_{SUBSETS[name]}_{i:012d}.png"
            Image.new("RGB", (8, 6), (i % 250, 0, 0)).save(path)
    return root


def test_a_unit_is_an_image_with_all_of_its_questions_and_answers(tmp_path):
    splits = prepared(tmp_path / "out", config(make(tmp_path / "in")))
    rows = splits["train"]
    assert [row.unit for row in rows] == [f"train/abstract_v002_train2015_{i:012d}.png" for i in range(4)]
    assert [q.id for q in rows[2].questions] == ["20", "21", "22"] and rows[2].questions[1].text == "what is 1?"
    assert rows[2].questions[0].answers == ("yes",) * 7 + ("no",) * 3 and rows[2].questions[0].kind == "yes/no"
    assert Counter(rows[2].texts) == Counter(
        {f"what is {k}? {answer}": times for k in range(3) for answer, times in (("yes", 7), ("no", 3))}
    )
    assert Manifest.read(tmp_path / "out").n == 4 and config(tmp_path / "in").quick_look() == (4, False)


def test_the_hash_covers_questions_and_leaves_other_data_as_they_were(tmp_path):
    hashes = []
    for i, change in enumerate((None, ("question", "why?"), ("answer_type", "other"), ("question_id", 77))):
        files = {name: asked(name, 4) for name in SUBSETS}
        if change:
            key, value = change
            for content, kind in zip(files["test"], ("questions", "annotations"), strict=True):
                if key in content[kind][0]:
                    content[kind][0][key] = value
        write(tmp_path / f"out{i}", "mine", config(make(tmp_path / f"in{i}", files)).load())
        hashes.append(Manifest.read(tmp_path / f"out{i}").test.sha256)
    assert len(set(hashes)) == 4


def test_images_of_photos_are_named_as_coco_names_them_or_as_it_is_told(tmp_path):
    for facts, pattern, name in (
        ({"data_type": "mscoco", "data_subtype": "val2014"}, None, "COCO_val2014_{:012d}.jpg"),
        ({}, "scene-{:d}.jpg", "scene-{:d}.jpg"),
    ):
        root = make(tmp_path / name[:5])
        questions = {"questions": asked("test", 4)[0]["questions"], **facts}
        (root / "test_questions.json").write_text(json.dumps(questions))
        for i in range(1000, 1004):
            Image.new("RGB", (8, 6)).save(root / "test" / name.format(i))
        rows = prepared(tmp_path / f"out-{name[:5]}", config(root, test=split_of("test", file_names=pattern)))["test"]
        assert rows[0].unit == f"test/{name.format(1000)}"
    with pytest.raises(UserError, match="has no data_type and data_subtype; give file_names"):
        config(root).quick_look()


def test_all_problems_are_listed_with_ids_and_nothing_is_written(tmp_path):
    questions, annotations = asked("train", 4)
    entries, notes = questions["questions"], annotations["annotations"]
    entries[1]["question"] = " "
    entries[2]["question"] = None
    entries += [{"question_id": 0, "image_id": 1, "question": "again?"}, {"question_id": 900}, "why?"]
    entries += [{"question_id": 901, "image_id": 55, "question": "where?"}]
    entries += [{"question_id": 902, "image_id": "x", "question": "who?"}]
    notes[3]["answers"] = []
    notes[4]["answers"] = [{"answer": 3}]
    notes[5]["answer_type"] = "maybe"
    del notes[7]
    notes += [{"question_id": 999, "answers": []}, notes[0], {"answers": []}, 7]
    root = make(tmp_path / "in", {"train": (questions, annotations), "test": asked("test", 4)})
    (root / "train" / "abstract_v002_train2015_000000000002.png").write_text("this is no image")
    expected = [
        "questions[1]: question 1 must be a text that is not empty; got ' '",
        "questions[2]: question 2 must be a text that is not empty; got None",
        "questions[12]: question id 0 is there twice",
        "questions[13] must have a question_id",
        "questions[14] must have a question_id",
        "image 55: file abstract_v002_train2015_000000000055.png does not exist",
        "questions[16]: image_id 'x' of question 902 does not fit the file names",
        "annotations[3]: answers of question 10 must be a list",
        "annotations[4]: answers of question 11 must be a list",
        "annotations[5]: answer_type of question 12 must be one of",
        "annotations[11]: question_id 999 is not among the questions",
        "annotations[12]: question 0 is annotated twice",
        "annotations[13] must have a question_id",
        "annotations[14] must have a question_id",
        "question 21 has no annotation",
        "question 901 has no annotation",
        "image 2 (train/abstract_v002_train2015_000000000002.png): not a readable image",
    ]
    found = problems_of(tmp_path, config(root))
    for words in expected:
        assert sum(words in problem for problem in found) == 1, (words, found)
    assert len(found) == len(expected), found
    assert str(tmp_path) not in "\n".join(found)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("train_questions.json", "{}", r"must have the list questions; it has \[\]"),
        ("train_questions.json", "[]", "must have the list questions; it has list"),
        ("test_annotations.json", '{"annotations": 3}', "must have the list annotations"),
        ("test_annotations.json", "no json", "cannot be read"),
        ("test_annotations.json", None, "does not exist"),
    ],
)
def test_files_of_another_shape_are_found_before_anything_runs(tmp_path, file, content, words):
    root = make(tmp_path / "in")
    (root / file).unlink()
    if content is not None:
        (root / file).write_text(content)
    for look in (Vqa.quick_look, Vqa.load):
        with pytest.raises(UserError) as error:
            look(config(root))
        assert any(re.search(words, problem) for problem in error.value.details)


def test_only_the_test_split_may_be_without_answers(tmp_path):
    without = {"questions": "test_questions.json", "images": "test"}
    rows = prepared(tmp_path / "out", config(make(tmp_path / "in"), test=without))["test"]
    assert rows[0].texts == () and rows[0].questions[0].answers == () and len(rows[0].questions) == 3
    with pytest.raises(ValidationError, match="training needs the answers"):
        config(tmp_path / "in", train=without)
    for wrong in ({"images": "a"}, {"images": "a", "csv": "a.csv", "questions": "b.json"}):
        with pytest.raises(ValidationError, match="either questions"):
            config(tmp_path / "in", train=wrong)


def table(root, name: str, rows: list[list[str]], columns=("question", "answer", "image")) -> None:
    with (root / name).open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])


@pytest.fixture
def pictures(tmp_path):
    root = tmp_path / "in"
    (root / "images").mkdir(parents=True)
    for i, name in enumerate(("a.png", "b.jpg", "c.png", "c.jpg")):
        Image.new("RGB", (8, 6), (40 * i, 0, 0)).save(root / "images" / name)
    return root


def by_csv(root, **more) -> Vqa:
    return config(root, {"csv": "train.csv", "images": "images"}, {"csv": "test.csv", "images": "images"}, **more)


def test_a_table_of_questions_and_answers(tmp_path, pictures):
    table(pictures, "train.csv", [["what?", "one", "a.png"], ["who?", "two", "a"], ["what?", "three, four", "a"]])
    table(pictures, "test.csv", [["where?", "here", "b"]], columns=("question", "answer", "image_id"))
    rows = prepared(tmp_path / "out", by_csv(pictures))
    (row,) = rows["train"]
    assert row.unit == "images/a.png" and [q.text for q in row.questions] == ["what?", "who?"]
    assert row.questions[0].answers == ("one", "three, four") and row.texts[1] == "what? three, four"
    assert rows["test"][0].unit == "images/b.jpg"


def test_wrong_rows_of_a_table_are_listed_with_their_lines(tmp_path, pictures):
    table(
        pictures,
        "train.csv",
        [["what?", "", "a"], ["who?", "one", "c"], ["who?", "one", "nowhere"], ["who?", "1", "a"]],
    )
    table(pictures, "test.csv", [["where?", "here", "b"]])
    found = problems_of(tmp_path, by_csv(pictures))
    expected = [
        "line 2: empty answer",
        "line 3: image c may be c.jpg or c.png",
        "image 'nowhere': file nowhere does not",
    ]
    assert len(found) == 3 and all(any(words in problem for problem in found) for words in expected), found
    table(pictures, "train.csv", [["what?", "one"]], columns=("question", "answer"))
    with pytest.raises(UserError) as error:
        by_csv(pictures).quick_look()
    assert "must have the columns question, answer and image" in str(error.value)
    assert "it has ['question', 'answer']" in error.value.details[0] and "it has" not in str(error.value)


def test_an_image_in_both_splits_is_refused_or_left_to_the_public_one(tmp_path, pictures):
    table(pictures, "train.csv", [["what?", "one", "a"], ["who?", "two", "b"]])
    table(pictures, "test.csv", [["where?", "here", "b"]])
    (problem,) = problems_of(tmp_path, by_csv(pictures))
    assert "are one file: images/b.jpg (`in_both: out-of-train`" in problem
    source = by_csv(pictures, in_both="out-of-train")
    rows = prepared(tmp_path / "out", source)
    assert [row.unit for row in rows["train"]] == ["images/a.png"] and source.quick_look() == (1, False)


def test_the_real_abstract_scenes_load_with_their_questions(tmp_path, shared_data):
    real = {"questions": "OpenEnded_abstract_v002_val2015_questions.json", "images": "images"}
    root = tmp_path / "in"
    root.mkdir()
    (root / "real").symlink_to(shared_data / "vqa-abstract")
    make(root)
    test = {key: f"real/{value}" for key, value in real.items()}
    rows = prepared(tmp_path / "out", config(root, test=test))["test"]
    assert len(rows) == 40 and sum(len(row.questions) for row in rows) == 120
    described = json.loads((shared_data / "vqa-abstract" / real["questions"]).read_text())["questions"]
    assert {(q.id, q.text) for row in rows for q in row.questions} == {
        (str(q["question_id"]), q["question"]) for q in described
    }
    assert all(min(row.pixels().size) > 100 for row in rows)


def test_the_real_daquar_has_two_images_in_both_splits(tmp_path, shared_data):
    split = {"images": "images"}
    source = config(
        shared_data / "daquar",
        split | {"csv": "data_train.csv"},
        split | {"csv": "data_eval.csv"},
        in_both="out-of-train",
    )
    assert source.quick_look() == (148, False)
    rows = prepared(tmp_path / "out", source)
    assert (len(rows["train"]), len(rows["test"])) == (148, 60)
    assert sum(len(row.questions) for row in rows["test"]) > 130


def test_easy_vqa_is_as_published(tmp_path):
    import easy_vqa

    manifest = write(tmp_path / "out", "easy-vqa", EasyVqa(source="easy-vqa", test=50).load())
    assert (manifest.n, manifest.test.rows) == (4000, 50) and EasyVqa(source="easy-vqa").quick_look()[0] == 4000
    train = PreparedSplit(tmp_path / "out", "train")
    assert sum(len(train.questions(i)) for i in range(train.rows)) == 38_575
    texts, answers, ids = easy_vqa.get_train_questions()
    row = train.row(ids[1000])
    assert (texts[1000], (answers[1000],)) in {(q.text, q.answers) for q in row.questions}
    assert np.array_equal(
        np.asarray(row.pixels()), np.asarray(Image.open(easy_vqa.get_train_image_paths()[ids[1000]]).convert("RGB"))
    )


@pytest.mark.parametrize("style", list(scenes.STYLES))
def test_generated_questions_have_ten_answers_of_which_most_are_right(style):
    source = Scenes(source="scenes", style=style, questions=True, train=150, test=5, seed=2)
    rows = list(source.load().train)
    questions = [q for row in rows for q in row.questions]
    assert all(3 <= len(row.questions) <= 4 for row in rows) and all(len(q.answers) == 10 for q in questions)
    kinds = Counter(q.kind for q in questions)
    assert set(kinds) == {"yes/no", "number", "other"} and min(kinds.values()) > 40
    assert all(kind_of(q.answers) == q.kind for q in questions if max(Counter(q.answers).values()) > 5)
    agree = np.mean([exact_match(answer, q.answers) for q in questions for answer in q.answers])
    assert 0.9 < agree < 0.97  # some people are wrong now and then
    assert len({row.unit for row in rows}) == 150 and rows == list(source.load().train)


def test_right_answers_are_true_of_the_scene():
    """Of scenes whose captions say it."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        scene = scenes.draw_scene(scenes.PUBLIC, ["one", "two", "many"], rng)
        captions = " ".join(scenes.PUBLIC.captions(scene))
        for about, words, truth, others in scenes.scene_questions._possible(scene, scenes.PUBLIC, rng):
            assert truth in others
            if about in ("color", "colors", "shape", "size", "beside"):
                assert truth in captions, (captions, about, words, truth)
            if about == "count" and len(scene.things) > 2:
                assert {"2": "two", "3": "three", "4": "four"}[truth] in captions
            if about == "is beside":
                said = f"{words['shape']} {words['rel']}"
                assert (truth == "yes") == (said in captions)
            if about in ("there is", "there is no") and " " in words["thing"] and "shape" not in words["thing"]:
                colour, shape = words["thing"].split()
                there = f"{colour} {shape}" in captions or f"{shape}s that are {colour}" in captions
                assert (truth == "yes") == (there == (about == "there is")), (captions, words, truth)
