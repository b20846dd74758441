"""A folder's splits: nothing is left out without a word, and what a class lacks is told to those who may know."""

import stat
from pathlib import Path

import pytest

from stages.errors import UserError, command
from stages.sources.folder import Folder
from tests.prepare.test_folder import animals, config, elsewhere, make  # noqa: F401


def test_metadata_without_column_names_gives_away_no_row(tmp_path):
    (tmp_path / "metadata.csv").write_text("ann-smith.png,a rare illness\nbob.png,healthy\n")
    with pytest.raises(UserError, match="every row must have file_name, and label or text") as error:
        config(tmp_path).quick_look()
    assert "ann-smith" not in str(error.value) and "ann-smith.png" in error.value.details[0]


@pytest.mark.parametrize("value", ["training", "val", "Train", "TEST", "validation"])
def test_a_split_of_another_name_is_refused_at_the_first_look(tmp_path, value):
    records = [r | {"split": value if i < 3 else "test"} for i, r in enumerate(animals(6))]
    for look in (Folder.quick_look, Folder.load):
        with pytest.raises(UserError, match="rows whose split is neither train nor test: 3") as error:
            look(config(make(tmp_path / "in", records), classes=["cat", "dog"]))
        assert f"metadata.csv:2: split {value!r} of p0.png is neither train nor test" in error.value.details


@pytest.mark.parametrize("column", ["Split", " split", "UNIT", "Label "])
def test_a_column_in_another_spelling_is_not_left_out(tmp_path, column):
    records = [r | {column: "train"} for r in animals(6)]
    with pytest.raises(UserError, match=f"has a column {column!r}; write {column.strip().lower()!r}"):
        config(make(tmp_path / "in", records), test_fraction=0.5).quick_look()


@pytest.mark.parametrize("name", ["training", "val", "Validation", "other"])
@pytest.mark.parametrize("with_metadata", [True, False])
def test_a_folder_that_would_be_left_out_is_refused(tmp_path, name, with_metadata):
    root = tmp_path / "in"
    for split in ("train", "test"):
        make(root / split, animals(4))
    make(root / name, animals(2))
    if not with_metadata:
        (root / name / "metadata.csv").unlink()
    if name == "other" and not with_metadata:
        assert config(root).quick_look() == (4, True)  # images that nothing names are nobody's split
        return
    for look in (Folder.quick_look, Folder.load):
        with pytest.raises(UserError, match=r"folders of a split that is neither train nor test .*: 1") as error:
            look(config(root))
        assert f"folder {name} would be left out" in error.value.details[0]


@pytest.mark.parametrize("names", [("training", "val"), ("training", "test")])
def test_only_folders_of_other_names_are_refused_by_name(tmp_path, names):
    for name in names:
        make(tmp_path / "in" / name, animals(4))
    with pytest.raises(UserError, match=r"neither train nor test \(known: train/ and test/\)") as error:
        config(tmp_path / "in").quick_look()
    assert "folder training would be left out: only train/ and test/ are known" in error.value.details


def test_a_folder_val_of_images_is_fine_and_one_with_metadata_is_not(tmp_path):
    records = [{"file_name": f"val/{s}.png", "label": "cat", "split": s} for s in ("train", "test")]
    root = make(tmp_path / "in", records)
    assert config(root).quick_look() == (1, True)
    make(root / "val", animals(2))
    with pytest.raises(UserError, match="neither train nor test"):
        config(root).quick_look()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["train/metadata.csv", "test/metadata.csv", "metadata.csv"], "metadata beside the folders train and test too"),
        (["metadata.csv", "metadata.jsonl"], r"both metadata\.csv and metadata\.jsonl"),
        (["train/metadata.csv", "test/metadata.csv", "test/metadata.jsonl"], r"both metadata\.csv and metadata\.jsonl"),
    ],
)
def test_two_metadata_files_for_one_folder_are_refused(tmp_path, files, words):
    for file in files:
        make(tmp_path / Path(file).parent, animals(4), Path(file).name)
    with pytest.raises(UserError, match=words):
        config(tmp_path, test_fraction=0.5).quick_look()


def test_a_split_column_that_contradicts_its_folder_is_refused(tmp_path):
    make(tmp_path / "in" / "train", [r | {"split": "test"} for r in animals(4)])
    make(tmp_path / "in" / "test", animals(2))
    with pytest.raises(UserError, match="rows whose split is not that of their folder: 4"):
        config(tmp_path / "in").quick_look()


@pytest.mark.parametrize("missing", ["test", "train"])
def test_a_class_without_images_is_told_and_a_private_one_only_here(tmp_path, capsys, missing):
    """What goes to a log is the same, whether a class has private images or not."""
    splits = {"cat": ["train", "test"], "a rare illness": ["train" if missing == "test" else "test"]}
    records = [
        {"file_name": f"{label[:3]}-{split}.png", "label": label, "split": split}
        for label, its in splits.items()
        for split in its
    ]
    config(make(tmp_path / "in", records), classes=list(splits)).load()
    told = capsys.readouterr()
    notes = tmp_path / "problems" / f"{command()}-notes.txt"
    assert ("has no test image of a rare illness" in told.err) == (missing == "test")
    assert "notes on private records, if there are any: problems/" in told.out
    if missing == "train":
        assert (
            "illness" not in told.out + told.err
            and notes.read_text() == "class 'a rare illness' has no training image\n"
        )
        assert stat.S_IMODE(notes.stat().st_mode) == 0o600
    else:
        assert not notes.exists()
