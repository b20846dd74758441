import os

import pytest
from PIL import Image

from stages.data.manifest import Manifest
from stages.data.prepared import ROWS_PER_BATCH, PreparedSplit, write
from stages.data.rows import Dataset, Row, png
from stages.errors import UserError


def rows(n: int, prefix: str = "u", per_unit: int = 1) -> list[Row]:
    return [
        Row(png(Image.new("L", (2, 2), i % 256)), (f"text {i}",), i % 3, f"{prefix}{i // per_unit}") for i in range(n)
    ]


def dataset(train: list[Row], test: list[Row]) -> Dataset:
    return Dataset("made here", "none", None, train, test)


def test_every_row_can_be_read_in_any_order(tmp_path):
    n = 2 * ROWS_PER_BATCH + 3
    write(tmp_path / "d", "d", dataset(rows(n), rows(2, "t")))
    split = PreparedSplit(tmp_path / "d", "train")
    assert split.rows == split.units == n
    for i in (n - 1, 0, ROWS_PER_BATCH, ROWS_PER_BATCH - 1, 2 * ROWS_PER_BATCH):
        assert split.row(i) == rows(n)[i]


def test_rows_of_one_unit_are_one_record(tmp_path):
    manifest = write(tmp_path / "d", "d", dataset(rows(10, per_unit=3), rows(2, "t")))
    assert (manifest.n, manifest.train.rows) == (4, 10)
    split = PreparedSplit(tmp_path / "d", "train")
    assert [list(split.rows_of_unit(u)) for u in range(4)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


def test_the_hash_follows_the_content(tmp_path):
    first = write(tmp_path / "a", "a", dataset(rows(5), rows(2, "t")))
    same = write(tmp_path / "b", "b", dataset(rows(5), rows(2, "t")))
    changed = rows(5)
    changed[2] = Row(changed[2].image, ("another text",), changed[2].label, changed[2].unit)
    other = write(tmp_path / "c", "c", dataset(changed, rows(2, "t")))
    assert first.data_hash == same.data_hash != other.data_hash


def test_a_unit_in_both_splits_is_refused_and_nothing_is_written(tmp_path):
    with pytest.raises(
        UserError, match=r"2 privacy units are in both train and test.*\n  - units in both: 2$"
    ) as error:
        write(tmp_path / "d", "d", dataset(rows(5), rows(2)))
    assert error.value.details == ["unit 'u0' is in both", "unit 'u1' is in both"] and "u0" not in str(error.value)
    assert os.listdir(tmp_path) == []


def test_a_failure_leaves_the_old_data_in_place(tmp_path):
    write(tmp_path / "d", "d", dataset(rows(5), rows(2, "t")))
    before = Manifest.read(tmp_path / "d")

    def broken():
        yield from rows(3)
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write(tmp_path / "d", "d", dataset(broken(), rows(2, "t")))
    assert Manifest.read(tmp_path / "d") == before
    assert os.listdir(tmp_path) == ["d"]


def test_an_empty_split_is_refused(tmp_path):
    with pytest.raises(UserError, match="no test rows"):
        write(tmp_path / "d", "d", dataset(rows(5), []))


def test_missing_data_says_what_to_run(tmp_path):
    with pytest.raises(UserError, match=r"python -m stages\.prepare --dataset nothing"):
        PreparedSplit(tmp_path / "nothing", "train")
