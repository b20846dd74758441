"""The one prepared format: an Arrow file a split, a row an image, beside a manifest of public facts.

A row is (image, texts, label, unit, questions). `image` holds the encoded bytes (PNG or JPEG), `texts` every text that
belongs to the image (of a question, with each of its answers), `unit` the id of the privacy unit: rows with one unit
are ONE record (privacy.md section 1) and stand next to each other. Files are memory-mapped: any row is read without
loading the others.
"""

import dataclasses
import functools
import hashlib
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image
from pydantic import BaseModel, ConfigDict, computed_field

from stages.atomic import new_folder, write_json
from stages.errors import UserError

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
SPLITS = ("train", "test")


@dataclass(frozen=True)
class Question:
    id: str
    text: str
    answers: tuple[str, ...]  # one a person who was asked; none where nobody tells
    kind: str | None = None  # yes/no, number or other, where the source says so

    @property
    def texts(self) -> tuple[str, ...]:
        """What private training aligns with the image: the question with an answer."""
        return tuple(f"{self.text} {answer}" for answer in self.answers)


@dataclass(frozen=True)
class Row:
    image: bytes
    texts: tuple[str, ...]
    label: int | None
    unit: str
    questions: tuple[Question, ...] = ()

    @classmethod
    def asked(cls, image: bytes, questions: tuple[Question, ...], unit: str) -> "Row":
        return cls(image, tuple(text for q in questions for text in q.texts), None, unit, questions)

    def pixels(self) -> Image.Image:
        return Image.open(io.BytesIO(self.image)).convert("RGB")


class Labels(BaseModel):
    """Class names and the prompt templates that turn one into a caption."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    classes: tuple[str, ...]
    templates: tuple[str, ...]

    def captions(self, label: int) -> tuple[str, ...]:
        return tuple(template.replace("{}", self.classes[label]) for template in self.templates)


class SplitFacts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    rows: int
    units: int
    sha256: str


class Manifest(BaseModel):
    """What may be said of a prepared dataset without touching it again. n is the number of units in train."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    dataset: str
    source: str
    licence: str
    labels: Labels | None
    train: SplitFacts
    test: SplitFacts

    @computed_field
    @property
    def n(self) -> int:
        return self.train.units

    @property
    def data_hash(self) -> str:
        return hashlib.sha256(f"{self.train.sha256}{self.test.sha256}".encode()).hexdigest()

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        path = folder / "manifest.json"
        if not path.is_file():
            raise UserError(f"no prepared data in {folder}; run: python -m stages.prepare --dataset {folder.name}")
        return cls.model_validate({k: v for k, v in json.loads(path.read_text(encoding="utf-8")).items() if k != "n"})


@dataclass(frozen=True)
class Dataset:
    """What a source hands to `write`: public facts, and the rows of each split as streams."""

    source: str
    licence: str
    labels: Labels | None
    train: Iterable[Row]
    test: Iterable[Row]


def png(pixels: np.ndarray | Image.Image) -> bytes:
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return buffer.getvalue()


def write(folder: Path, name: str, dataset: Dataset) -> Manifest:
    """Stream both splits to `folder`, which appears only when everything is written."""
    with new_folder(folder) as temporary:
        facts, units = {}, {}
        for split in SPLITS:
            facts[split], units[split] = _write_split(temporary / f"{split}.arrow", getattr(dataset, split))
            if not facts[split].rows:
                raise UserError(f"dataset {name!r} has no {split} rows; both splits need at least one")
        if shared := sorted(units["train"] & units["test"]):
            raise UserError(
                f"dataset {name!r}: {len(shared)} privacy units are in both train and test; the test split is public, "
                f"so a unit must be in one of them only. First ones: {', '.join(shared[:5])}"
            )
        manifest = Manifest(
            dataset=name, source=dataset.source, licence=dataset.licence, labels=dataset.labels, **facts
        )
        write_json(temporary / "manifest.json", manifest.model_dump())
    return manifest


def _write_split(path: Path, rows: Iterable[Row]) -> tuple[SplitFacts, set[str]]:
    digest, units, last, count = hashlib.sha256(), set(), None, 0
    pending: list[dict] = []

    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
        for row in rows:
            if row.unit != last and row.unit in units:
                raise ValueError(f"rows of unit {row.unit!r} are not next to each other")
            last = row.unit
            units.add(row.unit)
            count += 1
            # The hash covers the content, not the file layout, with lengths so that fields cannot run together.
            questions = [word for q in row.questions for word in (q.id, q.text, str(q.kind), *q.answers)]
            for field in (row.image, *(str(t).encode() for t in (*row.texts, row.label, row.unit, *questions))):
                digest.update(len(field).to_bytes(8, "big") + field)
            pending.append(dataclasses.asdict(row))
            if len(pending) == ROWS_PER_BATCH:
                writer.write_batch(pa.RecordBatch.from_pylist(pending, SCHEMA))
                pending = []
        if pending:
            writer.write_batch(pa.RecordBatch.from_pylist(pending, SCHEMA))
    return SplitFacts(rows=count, units=len(units), sha256=digest.hexdigest()), units


class PreparedSplit:
    """Random access to the rows and units of one split."""

    def __init__(self, folder: Path, split: str):
        path = folder / f"{split}.arrow"
        if not path.is_file():
            raise UserError(f"no prepared data at {path}; run: python -m stages.prepare --dataset {folder.name}")
        self._reader = pa.ipc.open_file(pa.memory_map(str(path)))
        self._record_batch = functools.lru_cache(maxsize=BATCHES_OPEN)(self._reader.get_batch)
        self._starts, self.rows = self._unit_starts()

    def _unit_starts(self) -> tuple[np.ndarray, int]:
        starts, last, count = [], None, 0
        for k in range(self._reader.num_record_batches):
            for unit in self._reader.get_batch(k).column("unit").to_pylist():
                if unit != last:
                    starts.append(count)
                    last = unit
                count += 1
        return np.array(starts, dtype=np.int64), count

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


def read_labels(path: Path) -> Labels:
    return Labels.model_validate(json.loads(path.read_text(encoding="utf-8")))
