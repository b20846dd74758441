"""The one prepared format: an Arrow file per split, a row per image, beside a manifest of public facts.

Files are memory-mapped: any row is read without loading the others, and to open a split takes as long for any number of
rows. Where the rows of each unit begin is in a file beside them.

Data that are not declared public belong to a privacy ledger: the manifest names it, and records.npy has the digests by
which it knows the records. They are made with its secret key, so that a checksum of the folder (dvc.lock has one) can
be compared with no guess.
"""

import functools
import hashlib
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from stages.atomic import new_folder, write_json
from stages.data.manifest import Manifest, SplitFacts
from stages.data.rows import SPLITS, Dataset, Question, Row
from stages.errors import Private, UserError
from stages.privacy import records, secret

ANSWERS = ("answers", pa.list_(pa.string()))
SCHEMA = pa.schema(
    [
        ("image", pa.binary()),
        ("texts", pa.list_(pa.string())),
        ("label", pa.int32()),  # index into the manifest's classes; null where a dataset has no classes
        ("unit", pa.string()),
        ("questions", pa.list_(pa.struct([(name, pa.string()) for name in ("id", "text", "kind")] + [ANSWERS]))),
    ]
)
ROWS_PER_BATCH = 256
BATCHES_OPEN = 2048  # views of the memory-mapped file that are kept


def write(folder: Path, name: str, dataset: Dataset) -> Manifest:
    """Stream both splits to `folder`, which appears only when everything is written."""
    with new_folder(folder) as temporary:
        facts, units = {}, {}
        for split in SPLITS:
            recorder = records.Recorder() if split == "train" and not dataset.public else None
            path = temporary / f"{split}.arrow"
            facts[split], units[split] = _write_split(path, getattr(dataset, split), recorder)
            if not facts[split].rows:
                raise UserError(f"dataset {name!r} has no {split} rows; both splits need at least one")
            if recorder:
                recorder.save(temporary / records.FILE)
        if shared := sorted(units["train"] & units["test"]):
            raise UserError(
                f"dataset {name!r}: {len(shared)} privacy units are in both train and test; the test split is public, "
                "so a unit must be in one of them only:",
                [Private("units in both", f"unit {unit!r} is in both") for unit in shared],
            )
        manifest = Manifest(
            dataset=name,
            source=dataset.source,
            licence=dataset.licence,
            labels=dataset.labels,
            unit=dataset.unit,
            ledger=None if dataset.public else secret.identity(),
            records=None if dataset.public else _file_hash(temporary / records.FILE),
            has_questions=dataset.has_questions,
            private_test=dataset.private_test,
            **facts,
        )
        write_json(temporary / "manifest.json", manifest.model_dump())
    return manifest


def _write_split(path: Path, rows: Iterable[Row], recorder: records.Recorder | None) -> tuple[SplitFacts, set[str]]:
    digest, units, starts, last, count = hashlib.sha256(), set(), array("q"), None, 0
    pending: list[dict] = []

    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
        for row in rows:
            if row.unit != last and row.unit in units:
                raise ValueError(f"rows of unit {row.unit!r} are not next to each other")
            if row.unit != last:
                starts.append(count)
                if recorder:
                    recorder.record(row.unit)
            if recorder:
                recorder.image(row.image)
            last = row.unit
            units.add(row.unit)
            count += 1
            # The hash covers the content, not the file layout, with lengths so that fields cannot run together.
            questions = [word for q in row.questions for word in (q.id, q.text, str(q.kind), *q.answers)]
            for field in (row.image, *(str(t).encode() for t in (*row.texts, row.label, row.unit, *questions))):
                digest.update(len(field).to_bytes(8, "big") + field)
            pending.append(vars(row) | {"questions": [vars(question) for question in row.questions]})
            if len(pending) == ROWS_PER_BATCH:
                writer.write_batch(pa.RecordBatch.from_pylist(pending, SCHEMA))
                pending = []
        if pending:
            writer.write_batch(pa.RecordBatch.from_pylist(pending, SCHEMA))
    np.save(starts_of(path), np.frombuffer(starts, dtype=np.int64))
    files = {"file": _file_hash(path), "starts": _file_hash(starts_of(path))}
    return SplitFacts(rows=count, units=len(units), sha256=digest.hexdigest(), **files), units


def starts_of(split: Path) -> Path:
    return split.with_suffix(".starts.npy")


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def require_unchanged(folder: Path) -> None:
    """Refuse prepared data that are not those of their manifest: what is charged must be what is trained on."""
    manifest = Manifest.read(folder)
    made = {f"{s}.arrow": getattr(manifest, s).file for s in SPLITS} | {records.FILE: manifest.records}
    made |= {f"{s}.starts.npy": getattr(manifest, s).starts for s in SPLITS}
    if wrong := [name for name, file in made.items() if _file_hash(folder / name) != file]:
        raise UserError(
            f"{folder} is not what was prepared: {', '.join(wrong)} changed. Nothing was trained. "
            f"Prepare it again: dvc repro, or python -m stages.prepare --dataset {folder.name}"
        )


class PreparedSplit:
    """Random access to the rows and units of one split."""

    def __init__(self, folder: Path, split: str):
        path = folder / f"{split}.arrow"
        if not (path.is_file() and starts_of(path).is_file()):
            raise UserError(f"no prepared data at {path}; run: python -m stages.prepare --dataset {folder.name}")
        self._reader = pa.ipc.open_file(pa.memory_map(str(path)))
        self._record_batch = functools.lru_cache(maxsize=BATCHES_OPEN)(self._reader.get_batch)
        self._starts = np.load(starts_of(path), mmap_mode="r")
        full = max(0, self._reader.num_record_batches - 1)
        self.rows = full * ROWS_PER_BATCH + (self._reader.get_batch(full).num_rows if self._starts.size else 0)

    @property
    def units(self) -> int:
        return len(self._starts)

    def rows_of_unit(self, unit: int) -> range:
        end = self._starts[unit + 1] if unit + 1 < self.units else self.rows
        return range(int(self._starts[unit]), int(end))

    def row(self, index: int) -> Row:
        batch, offset = self._record_batch(index // ROWS_PER_BATCH), index % ROWS_PER_BATCH
        image, texts, label, unit = (batch.column(i)[offset].as_py() for i in range(4))
        return Row(image, tuple(texts), label, unit, self.questions(index))

    def questions(self, index: int) -> tuple[Question, ...]:
        """Of a row, without its image."""
        batch, offset = self._record_batch(index // ROWS_PER_BATCH), index % ROWS_PER_BATCH
        found = batch.column(4)[offset].as_py()
        return tuple(Question(q["id"], q["text"], tuple(q["answers"]), q["kind"]) for q in found)

    def texts_and_label(self, index: int) -> tuple[tuple[str, ...], int | None]:
        """A row without its image."""
        batch, offset = self._record_batch(index // ROWS_PER_BATCH), index % ROWS_PER_BATCH
        return tuple(batch.column(1)[offset].as_py()), batch.column(2)[offset].as_py()

    def __iter__(self) -> Iterator[Row]:
        return (self.row(i) for i in range(self.rows))
