"""What may be said of a prepared dataset without touching it again."""

import hashlib
import json
from pathlib import Path

from pydantic import BaseModel, ConfigDict, computed_field

from stages.data.rows import ONE_IMAGE, Labels
from stages.errors import UserError


class SplitFacts(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    rows: int
    units: int
    sha256: str  # of the content
    file: str  # sha256 of the Arrow file
    starts: str  # sha256 of the file that says where units begin


class Manifest(BaseModel):
    """What may be said of a prepared dataset without touching it again. n is the number of units in train."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    dataset: str
    source: str
    licence: str
    labels: Labels | None
    unit: str = ONE_IMAGE  # what a record is, in words
    ledger: str | None  # the identity of the ledger that its records are charged to; None for public data
    records: str | None  # sha256 of records.npy, which says who is charged
    has_questions: bool  # whether images come with questions, in place of captions or labels
    private_test: bool = False  # whether the test split is as private as the other
    train: SplitFacts
    test: SplitFacts

    @computed_field  # type: ignore[prop-decorator]  # pydantic's own order; mypy has no notion of it
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
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            return cls.model_validate({k: v for k, v in found.items() if k != "n"})
        except ValueError:
            raise UserError(
                f"{path} was made by another version of this project, or is damaged; run: "
                f"python -m stages.prepare --dataset {folder.name}"
            ) from None
