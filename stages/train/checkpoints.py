"""A training that is not finished, on disk: what a crash must not lose (stages/privacy/README.md sections 4 and 5).

    checkpoints/CELL/run.json             the run's id in the ledger, and the facts that a resumed run must share
    checkpoints/CELL/key                  its secret key; only its owner can read it
    checkpoints/CELL/step-120.safetensors trained tensors and the optimiser's after 120 steps
    checkpoints/CELL/step-120.json        the checksum of that, written after it
    checkpoints/CELL/curve/               weights after some of the steps (models/curve.py)

Sample and noise of step t are functions of (key, t): a run that goes on from a checkpoint, or from the start because
there is none, repeats the steps that were lost to the last bit, and is the same run in the ledger. The same noise on
other data or values would tell the difference between them, so a run whose facts have changed is refused. The folder is
no output of DVC and is deleted with the last step. It must not leave the machine: with the key in it, nothing in it is
private.
"""

import hashlib
import json
import logging
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import Timeout
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from stages.atomic import TEMPORARY, new_file, new_folder, write_json
from stages.errors import UserError
from stages.keys import Cell
from stages.locks import file_lock
from stages.privacy.randomness import Key

KEPT = 2  # checkpoints: if the newest cannot be read, there is the one before
WRITING_FAILED = (OSError, SafetensorError)  # a full disk is either

Tensors = dict[str, torch.Tensor]
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    step: int  # so many are done
    tensors: Tensors
    figures: dict[str, list[float]] | None = None  # private ones, with unsafe_diagnostics alone


@dataclass
class UnfinishedRun:
    folder: Path
    id: str
    key: Key
    is_new: bool
    saved: int = 0  # the step of the newest checkpoint

    @classmethod
    @contextmanager
    def open(cls, cell: Cell, facts: Mapping, new_key: Key) -> Iterator["UnfinishedRun"]:
        """The unfinished run of this cell, or a new one with `new_key`; no other process has it at the same time."""
        folder = cell.checkpoints
        with _locked(folder):
            run = cls._begun(folder, facts)
            if run is None:
                run = cls._new(folder, facts, new_key)
            yield run

    @classmethod
    def _new(cls, folder: Path, facts: Mapping, key: Key) -> "UnfinishedRun":
        record: dict[str, Any] = {"id": secrets.token_hex(8), "key": [key.origin, key.id], "facts": facts}
        try:
            with new_folder(folder) as new:
                key.keep(new / "key")
                write_json(new / "run.json", record)
        except OSError as error:
            raise UserError(f"no training can be begun in {folder}: {error}; nothing was trained or charged") from None
        return cls(folder, record["id"], key, is_new=True)

    @classmethod
    def _begun(cls, folder: Path, facts: Mapping) -> "UnfinishedRun | None":
        try:
            record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
            key = Key.kept(folder / "key", record["key"][0])
            before = record["facts"]
        except (FileNotFoundError, NotADirectoryError):
            return None  # nothing begun, or it ended while this folder was being deleted
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{folder / 'run.json'} cannot be read ({error}); {_start_anew(folder)}") from None
        if [key.origin, key.id] != record["key"]:
            raise UserError(f"{folder / 'key'} is not the key that this run began with; {_start_anew(folder)}")
        if changed := list(_differences(before, facts)):
            raise UserError(
                f"the unfinished run in {folder} was begun with other values. With the same noise on both, they could "
                f"be told apart: put the old values back to go on, or {_start_anew(folder)}",
                changed,
            )
        for left in folder.glob(f"{TEMPORARY}*"):  # of a checkpoint that was being written
            shutil.rmtree(left)
        return cls(folder, record["id"], key, is_new=False)

    @property
    def curve(self) -> Path:
        """Where the weights after some steps are kept until the end."""
        return self.folder / "curve"

    def newest(self) -> Checkpoint | None:
        """The last one that is whole; one that is not is reported and passed over."""
        for step in sorted(self._steps(), reverse=True):
            try:
                about = json.loads((self.folder / f"step-{step}.json").read_text(encoding="utf-8"))
                path = self.folder / f"step-{step}.safetensors"
                if about["key"] != self.key.id or _sha256(path) != about["sha256"]:
                    raise ValueError("its content is not what was written")
                tensors = load_file(path)
            except (OSError, ValueError, KeyError, SafetensorError) as error:
                logger.warning("the checkpoint of step %d is damaged (%s); going back to the one before", step, error)
                continue
            self.saved = step
            return Checkpoint(step, tensors, about["figures"])
        return None

    def save(self, checkpoint: Checkpoint) -> None:
        """A failure (a full disk) is reported and costs nothing but the time since the last checkpoint."""
        name = self.folder / f"step-{checkpoint.step}"
        try:
            with new_file(name.with_suffix(".safetensors")) as temporary:
                save_file(checkpoint.tensors, temporary)
                digest = _sha256(temporary)
            about = {"sha256": digest, "key": self.key.id, "figures": checkpoint.figures}
            write_json(name.with_suffix(".json"), about)
        except WRITING_FAILED as error:
            name.with_suffix(".safetensors").unlink(missing_ok=True)
            words = "no checkpoint at step %d (%s); training goes on, the last is of %s"
            logger.warning(words, checkpoint.step, error, self.saved)
            return
        self.saved = checkpoint.step
        for old in sorted(self._steps())[:-KEPT]:
            for suffix in (".json", ".safetensors"):
                (self.folder / f"step-{old}{suffix}").unlink(missing_ok=True)

    def finish(self) -> None:
        """The outputs are written: first the key goes, then the rest."""
        (self.folder / "key").unlink()
        shutil.rmtree(self.folder)

    def _steps(self) -> list[int]:
        return [int(path.stem.removeprefix("step-")) for path in self.folder.glob("step-*.json")]


def _differences(before: Mapping, now: Mapping) -> Iterator[str]:
    for name in {**before, **now}:
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new)
        elif old != new:
            # A checksum of private data is as private as they are: it must not get into a log.
            yield "the data have changed" if name == "data" else f"{name} was {old!r} and is {new!r}"


def _locked(folder: Path) -> AbstractContextManager:
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.parent / f"{folder.name}.lock"
    try:
        return file_lock(path, wait=False).acquire()
    except Timeout:
        raise UserError(f"this cell is being trained by another process, which holds {path}") from None


def _start_anew(folder: Path) -> str:
    return f"delete {folder} to start anew (what the run was charged stays in the ledger)"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
