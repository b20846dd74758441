import base64
import json

import numpy as np
import pandas as pd
import pytest
import torch

from stages.data.prepared import PreparedSplit, write
from stages.data.rows import Dataset, Labels, Row, png
from stages.errors import UserError
from stages.models import clip as clips
from stages.models.batches import decoded
from stages.models.encoder import Encoder
from stages.models.prompts import class_features, class_scores
from stages.tasks import classification
from stages.tasks.base.results import Metrics, wilson_interval
from stages.tasks.base.task import HeldOut, Settings

LABELS = Labels(classes=("dark", "light"), templates=("a {} picture", "something {}"))
N = 7


@pytest.fixture(scope="module")
def clip() -> Encoder:
    torch.manual_seed(0)
    return clips.create("stages/models/configs/tiny-clip")


@pytest.fixture
def data(tmp_path) -> PreparedSplit:
    rows = [Row(png(np.full((28, 28), 40 * i, dtype=np.uint8)), ("x",), int(i > 3), f"u{i}") for i in range(N)]
    extra = Row(png(np.zeros((28, 28), dtype=np.uint8)), ("x",), 0, "train")
    write(tmp_path / "d", "d", Dataset("made here", "none", LABELS, [extra], rows))
    return PreparedSplit(tmp_path / "d", "test")


def evaluated(clip: Encoder, data: PreparedSplit, labels: Labels | None, batch_size: int) -> classification.Confusion:
    test = HeldOut(data, decoded(data, clip), labels)
    return classification.TASK.evaluate(clip, test, Settings(batch_size=batch_size), torch.device("cpu"))


def test_the_batch_size_changes_nothing_and_the_last_partial_batch_counts(clip, data):
    results = [evaluated(clip, data, LABELS, b).counts for b in (1, 2, 3, 7, 100)]
    assert all(np.array_equal(results[0], counts) for counts in results)
    assert results[0].sum() == N and results[0].sum(axis=1).tolist() == [4, 3]


def test_it_agrees_with_the_definition_computed_one_by_one(clip, data):
    clip.model.eval()
    with torch.no_grad():
        classes = []
        for name in LABELS.classes:
            each = [clip.model.encode_text(clip.tokenize([t.format(name)]))[0] for t in LABELS.templates]
            mean = sum(f / f.norm() for f in each) / len(each)
            classes.append(mean / mean.norm())
        expected = np.zeros((2, 2))
        for row in data:
            feature = clip.model.encode_image(clip.preprocess(row.pixels())[None])[0]
            cosine = [float(feature @ c / feature.norm()) for c in classes]
            expected[row.label, int(np.argmax(cosine))] += 1
    assert np.array_equal(evaluated(clip, data, LABELS, 3).counts, expected)


def test_metrics_and_details_follow_from_the_confusion():
    confusion = classification.Confusion(("a", "b", "c"), np.array([[8, 2, 0], [1, 9, 0], [0, 0, 0]]))
    metrics = confusion.metrics()
    assert (metrics.score, metrics.n) == (0.85, 20)
    assert metrics.low < 0.85 < metrics.high
    assert confusion.details()["per_class_accuracy"] == {"a": 0.8, "b": 0.9, "c": None}


def test_the_interval_covers_the_truth_95_times_in_100():
    rng = np.random.default_rng(0)
    for p, n in ((0.9, 100), (0.5, 1000), (0.99, 200)):
        drawn = rng.binomial(n, p, size=4000)
        ends = {k: wilson_interval(k, n) for k in np.unique(drawn)}
        covered = np.mean([ends[k][0] <= p <= ends[k][1] for k in drawn])
        assert 0.92 < covered < 0.98
    assert wilson_interval(0, 10)[0] == 0 and wilson_interval(10, 10)[1] == 1


def test_a_served_model_says_what_was_evaluated(clip, data, tmp_path):
    facts = json.loads(json.dumps(classification.TASK.facts(tmp_path / "d", tmp_path / "details.json")))
    with torch.no_grad():
        answer = classification.TASK.serve(clip, facts)
        said = answer(pd.DataFrame({"image": [base64.b64encode(row.image).decode() for row in data]}))
    assert list(said) == list(classification.TASK.outputs)
    assert all(label == max(p, key=p.get) for label, p in zip(said["label"], said["probabilities"], strict=True))
    with torch.no_grad():  # as a contrastive model reads its similarities
        classes = class_features(clip, LABELS, torch.device("cpu"))
        similar = class_scores(clip.model, torch.stack([clip.preprocess(row.pixels()) for row in data]), classes)
        expected = torch.softmax(similar * clip.model.logit_scale.exp(), dim=1)
    np.testing.assert_allclose([list(p.values()) for p in said["probabilities"]], expected.numpy(), rtol=1e-5)
    assert {tuple(p) for p in said["probabilities"]} == {LABELS.classes}
    counts = np.zeros((2, 2), dtype=int)
    for row, label in zip(data, said["label"], strict=True):
        counts[row.label, LABELS.classes.index(label)] += 1
    assert np.array_equal(counts, evaluated(clip, data, LABELS, 3).counts)


def test_data_without_labels_is_refused(clip, data):
    with pytest.raises(UserError, match="label"):
        evaluated(clip, data, None, 3)


def test_a_missing_result_says_what_to_run(tmp_path):
    with pytest.raises(UserError, match="dvc repro"):
        Metrics.read(tmp_path / "metrics.json")
