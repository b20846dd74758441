"""Ledgers of the time when a charge named the content hash of a dataset, taken over into the one that goes by record.

Such a ledger is a file of its own for each dataset. If data of that content are prepared, its charges are for their
records. If not, nobody can tell whom they were for: they are then charged to all records, which is the sound side.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from stages.data.manifest import Manifest
from stages.errors import UserError
from stages.privacy import secret
from stages.privacy.chain import Chain
from stages.privacy.ledger import Charge, Ledger
from stages.privacy.records import Records

DONE = "converted"  # where the old files are kept


def convert(folder: Path, data: Path) -> str:
    """Take over every old ledger in `folder`; `data` holds the prepared datasets. Says what was done."""
    old = sorted(path for path in folder.glob("*.jsonl") if path.name != "charges.jsonl")
    secret.key()  # a ledger has one before its first charge
    prepared = dict(_contents(data))
    lines: list[str] = []
    (folder / DONE).mkdir(parents=True, exist_ok=True)
    for path in old:
        chain, known = Chain(path), prepared.get(path.stem)
        with chain.locked():
            charges = {entry["run"]: Charge(**entry["charge"]) for entry in chain.entries()}
        for run, charge in charges.items():
            Ledger(folder).take_over(run, charge, Records.read(known) if known else None)
        for file in (path, chain.head, path.with_suffix(".lock")):
            if file.exists():
                os.replace(file, folder / DONE / file.name)
        whose = f"the records of {known}" if known else "ALL records: no data of that content are prepared here"
        lines.append(f"{len(charges)} charge(s) taken over, for {whose}")
    return "\n".join(lines) or f"no ledger to convert in {folder}"


def _contents(data: Path) -> Iterator[tuple[str, Path]]:
    """Of the prepared datasets that can be read: charges for others are for all records."""
    for path in data.glob("*/manifest.json"):
        with suppress(UserError):
            if Manifest.read(path.parent).ledger is not None:
                yield Manifest.read(path.parent).train.sha256, path.parent
