"""Features of one's own: read from each kind of file, checked, and in the prepared format as they were."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.data import vectors
from stages.data.pixels import Unusable
from stages.data.prepared import PreparedSplit, write
from stages.data.rows import Labels
from stages.errors import UserError
from stages.sources.features import Features


def rows(count: int, width: int = 8, seed: int = 0) -> np.ndarray:
    found = np.random.default_rng(seed).normal(size=(count, width))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float16)


def labelled(**changes) -> dict:
    arrays = {"train_image": rows(6), "train_label": np.arange(6) % 3, "test_image": rows(4, seed=1)}
    arrays |= {"test_label": np.array([0, 1, 2, 0]), "class_text": rows(3, seed=2)}
    return {name: array for name, array in (arrays | changes).items() if array is not None}


def source(path, arrays: dict, **more) -> Features:
    np.savez(path / "mine.npz", **arrays)
    return Features(source="features", path=str(path / "mine.npz"), **more)


def problems(path, arrays: dict, **more) -> UserError:
    with pytest.raises(UserError) as error:
        source(path, arrays, **more).load()
    return error.value


def test_vectors_labels_and_class_texts_are_there_as_they_were(tmp_path):
    entry = source(tmp_path, labelled(), classes=["cat", "dog", "owl"])
    assert entry.quick_look() == (6, True)
    manifest = write(tmp_path / "data", "mine", entry.load())
    assert (manifest.n, manifest.test.rows, manifest.labels.classes) == (6, 4, ("cat", "dog", "owl"))
    found = {row.label: [] for row in PreparedSplit(tmp_path / "data", "train")}
    for row in PreparedSplit(tmp_path / "data", "train"):
        found[row.label].append(vectors.read(row.image))
        assert row.texts == (manifest.labels.texts[row.label],)
    for label, its in found.items():
        wanted = labelled()["train_image"][labelled()["train_label"] == label].astype(np.float32)
        assert np.allclose(sorted(map(tuple, its)), sorted(map(tuple, wanted)), atol=1e-3)
        assert np.allclose(np.linalg.norm(its, axis=1), 1, atol=1e-6)
    said = np.stack([vectors.of_text(text) for text in manifest.labels.texts])
    assert np.allclose(said, labelled()["class_text"], atol=1e-3)


def test_a_folder_and_a_table_say_the_same_as_one_file(tmp_path):
    arrays = labelled()
    whole = [row for row in source(tmp_path, arrays).load().train]
    (tmp_path / "folder").mkdir()
    for name, array in arrays.items():
        np.save(tmp_path / "folder" / f"{name}.npy", array)
    assert [row for row in Features(source="features", path=str(tmp_path / "folder")).load().train] == whole
    table = {"image": [*arrays["train_image"].astype(np.float32), *arrays["test_image"].astype(np.float32)]}
    table |= {"label": [*arrays["train_label"], *arrays["test_label"]], "split": ["train"] * 6 + ["test"] * 4}
    pq.write_table(pa.table(table), tmp_path / "mine.parquet")
    entry = Features(source="features", path=str(tmp_path / "mine.parquet"), classes=["a", "b", "c"])
    for row, same in zip(entry.load().train, whole, strict=True):
        assert (row.image, row.label, row.unit) == (same.image, same.label, same.unit)
        assert not any(vectors.of_text(row.texts[0]))  # no class texts: nothing is said of a class


def test_pairs_are_split_by_each_records_own_id_and_equal_vectors_are_one_record(tmp_path):
    image, text = rows(200), rows(200, seed=1)
    image[7] = image[3]
    entry = source(tmp_path, {"image": image, "text": text}, test_fraction=0.2)
    both = [*entry.load().train, *entry.load().test]
    assert sorted(len(row.texts) for row in both) == [1] * 198 + [2]
    test = {row.unit for row in entry.load().test}
    assert 20 < len(test) < 60
    fewer = source(tmp_path, {"image": image[10:], "text": text[10:]}, test_fraction=0.2)
    kept = {row.unit for row in [*fewer.load().train, *fewer.load().test]}
    assert {row.unit for row in fewer.load().test} == test & kept  # whoever else is there
    part = source(tmp_path, {"image": image, "text": text}, test_fraction=0.2, train_fraction=0.5)
    assert 40 < part.quick_look().n < 120


def test_rows_of_one_unit_are_one_record(tmp_path):
    units = np.array(["ann", "bob", "ann", "eve", "bob", "ann"])
    entry = source(tmp_path, labelled(train_unit=units, test_unit=np.arange(4)))
    assert entry.quick_look().n == 3 and entry.load().unit == "all rows with one value in `unit`"
    assert [row.unit for row in entry.load().train] == ["ann"] * 3 + ["bob"] * 2 + ["eve"]


def test_every_mistake_is_in_one_message_and_none_says_what_is_private(tmp_path):
    image = labelled()["train_image"].copy()
    image[1], image[2, 3], image[4] = np.nan, np.inf, 0
    error = problems(tmp_path, labelled(train_image=image, train_label=np.array([0, 1, 2, 77, -1, 0])))
    assert error.problems == [
        "vectors of train_image with a number that is not finite: 2",
        "vectors of train_image of length zero: 1",
        "labels that are none of 0 to 2 (list all classes in `classes` of params.yaml): 2",
    ]
    assert "77" not in str(error) and "train_image, row 4: of length zero" in error.details


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"train_image": rows(6, 8).astype(int)}, "train_image: floating-point numbers (rows, d) are expected"),
        ({"test_image": rows(4, 9)}, "all vectors must have as many numbers; got train_image 8, test_image 9"),
        ({"train_label": np.arange(5)}, "train_image, train_label have unequal numbers of rows"),
        ({"train_label": None}, "train_label or train_text is missing"),
        ({"test_label": np.ones(4)}, "test_label: whole numbers (rows,) are expected; got 1 dimension(s) of float64"),
        ({"test_image": None, "test_label": None}, "there is no test split; give test_image, a column `split`"),
        ({"class_text": rows(2)}, "labels that are none of 0 to 1"),
        ({"test_image": np.concatenate([rows(1), rows(3, seed=5)])}, "vectors that are in both splits"),
        ({"train_Unit": np.arange(6)}, "arrays of an unknown name (known: class_text, split, image"),
        ({"train_unit": np.array(["a", "", "b", " ", "c", "d"])}, "rows of train_unit that are empty: 2"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, changes, said):
    assert any(said in problem for problem in problems(tmp_path, labelled(**changes)).problems)


def test_python_objects_and_files_that_are_none_are_refused(tmp_path):
    units = np.array(["ann", {"no": "code"}, "c", "d", "e", "f"], dtype=object)
    assert "cannot be read as a .npz" in str(problems(tmp_path, labelled(train_unit=units)))
    (tmp_path / "mine.npz").write_bytes(b"PK\3\4 and no more")
    for path in ("mine.npz", "nowhere.npz"):
        with pytest.raises(UserError, match=r"cannot be read as a \.npz|does not exist"):
            Features(source="features", path=str(tmp_path / path)).quick_look()


def test_classes_of_a_private_test_split_must_be_named(tmp_path):
    assert "`classes` is missing" in str(problems(tmp_path, labelled(class_text=None), private_test=True))
    named = source(tmp_path, labelled(class_text=None), private_test=True, classes=["a", "b", "c"])
    assert named.load().labels.classes == ("a", "b", "c")


@pytest.mark.parametrize("content", [b"no file", vectors.written(rows(2)), vectors.written(np.array([1, np.nan]))])
def test_what_is_no_vector_is_not_read_as_one(content):
    with pytest.raises(Unusable):
        vectors.read(content)


def test_a_vector_is_drawn_for_people(tmp_path):
    assert vectors.drawn(vectors.written(rows(1)[0])).size == (24, 24)


def test_labels_without_texts_of_their_own_say_what_their_templates_say():
    assert Labels(classes=("cat",), templates=("a {}", "one {}")).captions(0) == ("a cat", "one cat")
