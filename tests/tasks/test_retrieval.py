"""Retrieval: ranks by hand and by true CLIP features, and from prepared photos to a model that finds images."""

import json
import sys

import numpy as np
import pytest

from stages.tasks.measures.ranks import ranks, recall
from stages.tasks.retrieval import Found
from tests.conftest import ROOT, Project
from tests.report.test_publish import SCRIPT
from tests.tasks.test_captioning import captioning_params, photos

# Ten texts, two of each of five images; the texts of an image are 2i and 2i + 1. Rows are texts.
SIMILARITY = np.array(
    [
        [0.9, 0.1, 0.1, 0.1, 0.1],  # 0 finds its image at place 1
        [0.5, 0.5, 0.1, 0.1, 0.1],  # and shares the first place with a wrong one: 2
        [0.9, 0.8, 0.7, 0.6, 0.5],  # 1: 2
        [0.1, 0.9, 0.1, 0.1, 0.1],  # 1
        [0.3, 0.3, 0.3, 0.3, 0.3],  # 2: all are equal, so it is the last, 5
        [0.9, 0.8, 0.2, 0.6, 0.5],  # 5
        [0.9, 0.8, 0.7, 0.6, 0.5],  # 3: 4
        [0.1, 0.1, 0.1, 0.2, 0.1],  # 1
        [0.9, 0.8, 0.7, 0.6, 0.5],  # 4: 5
        [0.0, 0.0, 0.0, 0.0, 0.4],  # 1
    ]
)
TEXT_TO_IMAGE = [1, 2, 2, 1, 5, 5, 4, 1, 5, 1]
# Of image 0 the best own text has 0.9, as have the wrong ones 2, 5, 6 and 8: place 5. Of 1, 0.9: 1. Of 2 the best own
# has 0.3, above which are 2, 6 and 8: 4. Of 3, 0.6: 2, 5 and 8 have as much: 4. Of 4, 0.5: as 2, 5, 6: 4.
IMAGE_TO_TEXT = [5, 1, 4, 4, 4]
METRICS = "results/retrieval/mine/tiny-blip/batch/eps-1/seed-0/metrics.json"


def found(similarity: np.ndarray = SIMILARITY) -> Found:
    texts = [f"text {i}" for i in range(10)]
    return Found(None, texts, [(f"text {2 * i}", f"text {2 * i + 1}") for i in range(5)], similarity)


def test_ranks_and_recalls_are_those_made_by_hand_ties_included():
    result = found()
    assert result.ranks["text_to_image"].tolist() == TEXT_TO_IMAGE
    assert result.ranks["image_to_text"].tolist() == IMAGE_TO_TEXT
    scores = result.metrics().scores
    assert [scores[f"text_to_image_recall_{k}"] for k in (1, 5, 10)] == [0.4, 1.0, 1.0]
    assert [scores[f"image_to_text_recall_{k}"] for k in (1, 5, 10)] == [0.2, 1.0, 1.0]
    assert (scores["text_to_image_median_rank"], scores["image_to_text_median_rank"]) == (2.0, 4.0)
    assert scores["mean_recall"] == pytest.approx((0.4 + 1 + 1 + 0.2 + 1 + 1) / 6)
    assert result.metrics().low < scores["mean_recall"] < result.metrics().high


def test_who_says_the_same_of_everything_has_found_nothing():
    scores = found(np.zeros((10, 5))).metrics().scores
    assert scores["text_to_image_recall_1"] == scores["image_to_text_recall_5"] == 0.0


def test_a_text_that_two_images_have_belongs_to_both():
    result = Found(None, ["dog", "old dog"], [("dog",), ("dog", "old dog")], np.array([[0.1, 0.9], [0.9, 0.1]]))
    assert result.belongs.tolist() == [[True, True], [False, True]]
    assert result.ranks["text_to_image"].tolist() == [1, 2]
    assert result.ranks["image_to_text"].tolist() == [2, 1]


def test_true_clip_features_have_the_recalls_that_they_are_known_for():
    file = ROOT.parent / "shared/data/clip-features/pairs500.npz"
    if not file.is_file():
        pytest.skip("the sample of true CLIP features is not here")
    pairs = np.load(file)
    similarity, own = pairs["image"].astype(np.float32) @ pairs["text"].astype(np.float32).T, np.eye(500, dtype=bool)
    by_image, by_text = ranks(similarity, own), ranks(similarity.T, own)
    assert [100 * recall(by_image, k) for k in (1, 5, 10)] == pytest.approx([55.2, 80.8, 89.2])
    assert [100 * recall(by_text, k) for k in (1, 5, 10)] == pytest.approx([50.6, 76.6, 86.2])


def retrieval_params(**sections) -> dict:
    values = captioning_params(**sections)
    values["sweep"]["task"] = ["retrieval"]
    return values


def test_dvc_brings_photos_to_a_published_model_that_finds_images(project, tmp_path):
    project.write_params(retrieval_params(coco={"mine": photos(project.folder / "photos", {"train": 40, "test": 6})}))
    done = project.run("dvc", "repro", "publish")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "mean recall in %" in (project.folder / "report/table.md").read_text()
    page = (project.folder / "report/gallery/retrieval-mine-tiny-blip.html").read_text()
    assert page.count('class="found"') == 6 * 3
    metrics = json.loads((project.folder / METRICS).read_text())
    assert metrics["n"] == 6 and metrics["text_to_image_recall_10"] == 1.0  # of six images
    where = [f"sqlite:///{project.folder / 'mlflow.db'}", "models:/dp-clip.retrieval.mine.tiny-blip.batch@eps-1"]
    asked = {"query": ["a red circle", "a blue star"], "folder": [str(project.folder / "photos/test")] * 2}
    said = Project(tmp_path).run(sys.executable, "-c", SCRIPT, *where, json.dumps(asked))
    assert said.returncode == 0, said.stderr[-2000:]
    answers = [json.loads(row["images"]) for row in json.loads(said.stdout.splitlines()[-1])]
    assert len(answers) == 2 and all(len(set(names)) == 5 for names in answers)
    assert all((project.folder / "photos/test" / name).is_file() for names in answers for name in names)


def test_real_photos_from_their_json_to_recalls_against_a_public_bank(project, shared_data):
    """By `example` with the loss anchored: each photo with its five captions is a record that is clipped on its own."""
    coco = {
        "path": str(shared_data / "flickr8k"),
        "train": {"annotations": "captions_train.json", "images": "images"},
        "test": {"annotations": "captions_test.json", "images": "images"},
    }
    values = retrieval_params(coco={"mine": coco})
    values["prepare"]["anchors"] = {
        "source": "scenes",
        "style": "wide",
        "public": True,
        "train": 9,
        "test": 1,
        "seed": 0,
    }
    values["banks"]["with-bank"] = {"model": "tiny-blip", "data": "anchors", "pairs": 8}
    values["sweep"] |= {"model": ["with-bank"], "method": ["example"]}
    values["train"]["methods"]["example"] = values["train"]["methods"]["batch"] | {"loss": "anchored"}
    project.write_params(values)
    done = project.run("dvc", "repro", "publish")
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    cell = "retrieval/mine/with-bank/example/eps-1/seed-0"
    used = json.loads((project.folder / f"runs/{cell}/training.json").read_text())["train"]
    assert (used["bank"], used["bank_pairs"]) == ("anchors", 8) and len(used["bank_sha256"]) == 64
    metrics = json.loads((project.folder / f"results/{cell}/metrics.json").read_text())
    manifest = json.loads((project.folder / "data/mine/manifest.json").read_text())
    assert metrics["n"] == manifest["test"]["rows"] > 50
    assert (
        0
        <= metrics["text_to_image_recall_1"]
        <= metrics["text_to_image_recall_5"]
        <= metrics["text_to_image_recall_10"]
    )
    assert metrics["image_to_text_median_rank"] > 1


def test_questions_and_losses_of_other_tasks_are_refused_before_anything_runs(project):
    values = retrieval_params()
    asked = {"source": "scenes", "style": "private", "questions": True}
    values["prepare"]["asked"] = asked | {"train": 20, "test": 4, "seed": 0}
    values["sweep"]["dataset"] = ["asked"]
    values["train"]["methods"]["batch"]["loss"] = "writing"
    project.write_params(values)
    done = project.stage("params")
    assert done.returncode == 2
    assert "retrieval needs texts of images, and 'asked' has questions" in done.stderr
    assert "writing is for captions and answers; write contrastive" in done.stderr
