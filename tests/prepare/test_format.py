import os
import time

import numpy as np
import psutil
import pyarrow as pa
import pytest
from PIL import Image

from stages.data.manifest import Manifest
from stages.data.prepared import ROWS_PER_BATCH, SCHEMA, PreparedSplit, starts_of, write
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


@pytest.mark.slow
def test_ten_million_rows_are_opened_in_no_time_and_no_memory(tmp_path):
    """As `write` makes them, by a way that does not take hours: rows are empty, and units have two each."""
    n, path = 10_000_000, tmp_path / "train.arrow"
    units = pa.array([f"unit-{i // 2}" for i in range(ROWS_PER_BATCH)])
    empty = {"image": pa.array([b""] * ROWS_PER_BATCH), "unit": units}
    batch = pa.RecordBatch.from_arrays(
        [empty.get(field.name, pa.nulls(ROWS_PER_BATCH, field.type)) for field in SCHEMA], schema=SCHEMA
    )
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
        for first in range(0, n, ROWS_PER_BATCH):
            writer.write_batch(batch.slice(0, min(ROWS_PER_BATCH, n - first)))
    np.save(starts_of(path), np.arange(0, n, 2))
    before, started = psutil.Process().memory_info().rss, time.perf_counter()
    split = PreparedSplit(tmp_path, "train")
    assert (split.rows, split.units) == (n, n // 2) and split.rows_of_unit(n // 2 - 1) == range(n - 2, n)
    assert time.perf_counter() - started < 1
    assert psutil.Process().memory_info().rss - before < 40e6
