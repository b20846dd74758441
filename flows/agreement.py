"""What machines must have in common before one works for another: code, parameters, and the privacy ledger."""

import hashlib
import os
from pathlib import Path

from stages.errors import UserError
from stages.privacy import secret

PARTS = ("params.yaml", "dvc.yaml", "flows", "stages")


def version(root: Path = Path()) -> dict[str, str]:
    """A hash of each part of the project that a result depends on, as it is in this clone, committed or not."""
    return {part: _hash(root / part) for part in PARTS}


def require_same_version(theirs: dict[str, str]) -> None:
    mine = version()
    if different := [part for part in PARTS if mine[part] != theirs.get(part)]:
        raise UserError(
            f"{', '.join(different)} of this worker's clone differ from those of the machine that started the sweep; "
            "bring both to the same commit and the same params.yaml"
        )


def ledger_identity() -> str:
    """The name of the ledger in LEDGER_DIR, the same for all machines that share that folder; made at first use."""
    folder = os.environ.get("LEDGER_DIR")
    if not folder or not Path(folder).is_absolute():
        raise UserError(
            f"LEDGER_DIR is {folder or 'not set'}: machines that train on the same data must charge one ledger, or "
            "each would spend the whole budget; set it, for the sweep and for every worker, to one folder they share"
        )
    return secret.identity()


def require_same_ledger(theirs: str) -> None:
    if ledger_identity() != theirs:
        raise UserError(
            f"LEDGER_DIR of this worker ({os.environ['LEDGER_DIR']}) is not the folder that the sweep's LEDGER_DIR is; "
            "machines that train on the same data must charge one ledger: mount the same folder on all of them"
        )


def _hash(path: Path) -> str:
    paths = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    digest = hashlib.sha256()
    for each in paths:
        if "__pycache__" in each.parts or each.suffix == ".pyc" or each.name.startswith(".tmp-") or not each.is_file():
            continue
        content = hashlib.sha256(each.read_bytes()).hexdigest()
        digest.update(f"{each.relative_to(path).as_posix()}\0{content}\n".encode())
    return digest.hexdigest()
