"""Records are known wherever they are: in versions, subsets, renamed copies and overlapping sets."""

import hashlib
import json

import numpy as np
import pytest
from PIL import Image

from stages.data.prepared import write
from stages.data.rows import Dataset, Row, png
from stages.errors import UserError
from stages.ledger.converting import convert
from stages.ledger.spent import show
from stages.privacy import secret
from stages.privacy.ledger import Charge, Ledger, total_epsilon
from stages.privacy.records import Records, keep, kept

DELTA = 1e-5
ONE = Charge("one", private=True, n=4000, q=0.008, steps=500, sigma=2.0, clip_norm=1.0, z=1.0)
TWO = Charge("two", private=True, n=4000, q=0.008, steps=300, sigma=3.0, clip_norm=1.0, z=1.5)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LEDGER_DIR", str(tmp_path / "ledger"))
    return tmp_path / "ledger"


def rows(numbers, prefix="photo", shade=1) -> list[Row]:
    return [Row(png(Image.new("L", (2, 2), shade * i % 251)), (f"text {i}",), None, f"{prefix}-{i}") for i in numbers]


def prepared(folder, train: list[Row]) -> Records:
    write(folder, folder.name, Dataset("made here", "none", None, train, rows([250], "test")))
    return Records.read(folder)


def test_versions_subsets_renamed_and_reencoded_copies_add_up(tmp_path):
    ledger, both = Ledger(), total_epsilon([ONE, TWO], DELTA)
    ledger.charge("r1", ONE, prepared(tmp_path / "first", rows(range(20))), DELTA)
    changed = [*rows(range(19)), Row(png(Image.new("L", (3, 3))), ("other text",), None, "photo-19")]
    copies = {
        "one removed": rows(range(19)),
        "one added": rows(range(21)),
        "one changed": changed,
        "a tenth": rows([3, 11]),
        "other file names": rows(range(20), prefix="renamed"),
        "other pixels under the same names": rows(range(20), shade=3),
        "an overlap of one": rows([19, *range(100, 110)]),
    }
    for i, (name, train) in enumerate(copies.items()):
        assert ledger.total(prepared(tmp_path / f"copy{i}", train), DELTA) == total_epsilon([ONE], DELTA), name
    ledger.charge("r2", TWO, prepared(tmp_path / "copy0", rows(range(19))), DELTA)
    assert ledger.total(prepared(tmp_path / "first", rows(range(20))), DELTA) == both
    assert ledger.total(prepared(tmp_path / "unrelated", rows(range(40, 60))), DELTA) == 0


@pytest.mark.slow
def test_the_total_is_that_of_the_record_on_which_most_was_spent(tmp_path):
    """Two halves that share no record do not add up; the whole adds to each."""
    ledger = Ledger()
    left, right = prepared(tmp_path / "l", rows(range(10))), prepared(tmp_path / "r", rows(range(10, 20)))
    whole = prepared(tmp_path / "w", rows(range(20)))
    ledger.charge("r1", ONE, left, DELTA)
    ledger.charge("r2", TWO, right, DELTA)
    assert ledger.total(whole, DELTA) == max(total_epsilon([ONE], DELTA), total_epsilon([TWO], DELTA))
    ledger.charge("r3", TWO, whole, DELTA)
    assert ledger.total(left, DELTA) == total_epsilon([ONE, TWO], DELTA)
    assert ledger.total(right, DELTA) == total_epsilon([TWO, TWO], DELTA)
    assert ledger.total(whole, DELTA, runs={"r3"}) == total_epsilon([TWO], DELTA)


def test_a_record_known_by_its_id_in_one_set_and_by_its_image_in_another_is_charged_for_both(tmp_path):
    ledger = Ledger()
    ledger.charge("r1", ONE, prepared(tmp_path / "a", rows(range(5), shade=3)), DELTA)  # same ids
    ledger.charge("r2", TWO, prepared(tmp_path / "b", rows(range(5), prefix="other")), DELTA)  # same images
    assert ledger.total(prepared(tmp_path / "c", rows(range(5))), DELTA) == total_epsilon([ONE, TWO], DELTA)


def test_a_budget_for_the_one_refuses_the_other(tmp_path):
    ledger, budget = Ledger(), 1.2 * total_epsilon([ONE], DELTA)
    ledger.charge("r1", ONE, prepared(tmp_path / "a", rows(range(20))), DELTA, budget)
    without_one = prepared(tmp_path / "b", rows(range(1, 20), prefix="renamed"))
    with pytest.raises(UserError, match="over the budget"):
        ledger.charge("r2", ONE, without_one, DELTA, budget)
    ledger.charge("r3", ONE, prepared(tmp_path / "c", rows(range(40, 60))), DELTA, budget)
    text = show("b", ledger, without_one, DELTA, budget)
    assert "1 run(s) on its records" in text and "one: epsilon" in text


def test_ten_million_records_take_less_than_100_mb_and_are_written_once(tmp_path):
    count = 500_000  # digests are as dense here as those of ten million in 56 bits: the difference is what takes room
    digests = np.random.default_rng(0).integers(0, 2**56 // 20, (count, 2), dtype=np.uint64)
    records = Records(digests.reshape(-1), np.repeat(np.arange(count), 2))
    path = tmp_path / f"{keep(records, tmp_path)}.parquet"
    assert path.stat().st_size * 20 < 100e6
    before = path.stat().st_mtime_ns
    assert keep(records, tmp_path) == path.stem and path.stat().st_mtime_ns == before
    assert np.array_equal(kept(path.stem, tmp_path), np.unique(digests))


def test_a_set_that_is_damaged_or_gone_is_refused(tmp_path, folder):
    records = prepared(tmp_path / "a", rows(range(20)))
    Ledger().charge("r1", ONE, records, DELTA)
    (path,) = (folder / "records").iterdir()
    keep(prepared(tmp_path / "b", rows(range(19))), folder / "records")
    other = next(p for p in (folder / "records").iterdir() if p != path)
    path.write_bytes(other.read_bytes())
    with pytest.raises(UserError, match="is not what was written"):
        Ledger().total(records, DELTA)
    path.unlink()
    with pytest.raises(UserError, match="cannot be read"):
        Ledger().charge("r2", ONE, prepared(tmp_path / "c", rows(range(18))), DELTA)


def test_digests_need_the_key_and_the_checksum_of_the_data_with_them(tmp_path, monkeypatch):
    """Equal data under two keys have no digest in common, so no guess can be compared with a leaked one."""
    mine = prepared(tmp_path / "a", rows(range(20)))
    monkeypatch.setenv("LEDGER_DIR", str(tmp_path / "elsewhere"))
    theirs = prepared(tmp_path / "b", rows(range(20)))
    assert not set(mine.digests.tolist()) & set(theirs.digests.tolist())
    assert (tmp_path / "elsewhere" / "key").stat().st_mode & 0o077 == 0


def test_data_of_another_ledger_are_refused(tmp_path, monkeypatch):
    ledger = write(tmp_path / "a", "a", Dataset("made here", "none", None, rows(range(5)), rows([250], "t"))).ledger
    secret.require(ledger, "data/a")
    monkeypatch.setenv("LEDGER_DIR", str(tmp_path / "empty"))
    with pytest.raises(UserError, match="data/a belongs to a privacy ledger that is not in"):
        secret.require(ledger, "data/a")
    assert not (tmp_path / "empty").exists()
    secret.key()
    with pytest.raises(UserError, match="Nothing was trained"):
        secret.require(ledger, "data/a")


def test_public_data_belong_to_no_ledger(tmp_path, folder):
    public = Dataset("made here", "none", None, rows(range(5)), rows([250], "t"), public=True)
    assert write(tmp_path / "a", "a", public).ledger is None
    assert not (tmp_path / "a" / "records.npy").exists() and not folder.exists()


def old_ledger(folder, data_hash: str, charges: dict[str, Charge]) -> None:
    """As it was written when a dataset was known by its content."""
    import dataclasses

    folder.mkdir(exist_ok=True)
    previous, lines = "0" * 64, []
    for run, charge in charges.items():
        entry = {"data": data_hash, "time": "2026-01-01T00:00:00+00:00", "run": run, "previous": previous}
        lines.append(json.dumps({**entry, "charge": dataclasses.asdict(charge)}, sort_keys=True).encode())
        previous = hashlib.sha256(lines[-1]).hexdigest()
    (folder / f"{data_hash}.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    (folder / f"{data_hash}.head.json").write_text(json.dumps({"lines": len(lines), "last": previous}))


def test_old_ledgers_are_refused_and_can_be_converted(tmp_path, folder):
    first = Dataset("made here", "none", None, rows(range(20)), rows([250], "test"))
    manifest = write(tmp_path / "data" / "first", "first", first)
    old_ledger(folder, manifest.train.sha256, {"r1": ONE})
    old_ledger(folder, "f" * 64, {"r2": TWO})
    records = Records.read(tmp_path / "data" / "first")
    with pytest.raises(UserError, match="--convert") as refused:
        Ledger().charge("r3", ONE, records, DELTA)
    assert manifest.train.sha256[:8] not in str(refused.value)
    said = convert(folder, tmp_path / "data")
    assert "1 charge(s) taken over, for the records of" in said and "ALL records" in said
    assert Ledger().total(records, DELTA) == total_epsilon([ONE, TWO], DELTA)
    unrelated = prepared(tmp_path / "data" / "other", rows(range(40, 60)))
    assert Ledger().total(unrelated, DELTA) == total_epsilon([TWO], DELTA)
    assert convert(folder, tmp_path / "data").startswith("no ledger to convert")


def test_images_charged_one_by_one_are_not_trained_on_as_one_record(tmp_path):
    """A run on five records tells more of the patient whose they are than its epsilon says."""
    ledger = Ledger()
    ledger.charge("r1", ONE, prepared(tmp_path / "a", rows(range(5))), DELTA)
    patient = [Row(row.image, row.texts, None, "ann") for row in rows(range(5))]
    with pytest.raises(UserError, match="charged for one by one"):
        ledger.charge("r2", ONE, prepared(tmp_path / "b", patient), DELTA)
    other = [Row(row.image, row.texts, None, "bob") for row in rows(range(40, 45))]
    ledger.charge("r3", ONE, prepared(tmp_path / "c", other), DELTA)
    ledger.charge("r4", ONE, prepared(tmp_path / "d", other[:4]), DELTA)  # the same unit again, with an image less


def test_a_ledger_that_was_converted_before_anything_was_prepared_can_be_used(tmp_path, folder):
    old_ledger(folder, "f" * 64, {"r1": ONE})
    assert "ALL records" in convert(folder, tmp_path / "data")
    records = prepared(tmp_path / "data" / "a", rows(range(5)))
    assert Ledger().total(records, DELTA) == total_epsilon([ONE], DELTA)
