"""An append-only list on disk: lines of JSON, each holding the hash of the line before it, and a head that counts them.

What is defended: accidents. Torn writes, concurrent writers, edited, reordered, removed or added lines are refused.
What is not: someone who rewrites or deletes the lines together with the head (the hashes have no key).
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from filelock import FileLock

from stages.atomic import write_json
from stages.errors import UserError
from stages.locks import file_lock

START = "0" * 64  # the hash before the first line


class Chain:
    """The entries of `path`; its head and its lock are beside it."""

    def __init__(self, path: Path):
        self.path, self.head = path, path.with_suffix(".head.json")

    def append(self, entry: dict[str, Any]) -> None:
        """On disk when this returns. Only under `locked`."""
        lines = self._complete_lines()
        line = json.dumps({**entry, "previous": _hash(lines[-1]) if lines else START}, sort_keys=True).encode()
        # A torn last line was never finished: it is cut off, and the new one takes its place.
        with self.path.open("r+b" if self.path.exists() else "xb") as file:
            file.truncate(sum(len(each) + 1 for each in lines))
            file.seek(0, os.SEEK_END)
            file.write(line + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._write_head(len(lines) + 1, line)

    def entries(self) -> list[dict[str, Any]]:
        """In order; refuses a file whose lines are not the ones that were written. Only under `locked`."""
        lines, previous, found = self._complete_lines(), START, []
        for number, line in enumerate(lines, start=1):
            try:
                found.append(json.loads(line))
                intact = found[-1].pop("previous") == previous
            except (ValueError, TypeError, KeyError, AttributeError):
                intact = False
            if not intact:
                raise self.damaged(f"line {number} was changed or moved")
            previous = _hash(line)
        self._check_head(lines)
        return found

    def damaged(self, what: str) -> UserError:
        return UserError(
            f"the privacy ledger {self.path} is damaged: {what}. Nothing private is trained until it is whole again: "
            "restore all of its files from a backup"
        )

    def locked(self) -> FileLock:
        """One reader or writer at a time, over all processes; released by the system if the process dies."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return file_lock(self.path.with_suffix(".lock"))

    def _write_head(self, count: int, last: bytes) -> None:
        write_json(self.head, {"lines": count, "last": _hash(last)})
        descriptor = os.open(self.head.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)  # the names of both files are on disk, not only what is in them
        finally:
            os.close(descriptor)

    def _complete_lines(self) -> list[bytes]:
        if not self.path.exists():
            return []
        return self.path.read_bytes().split(b"\n")[:-1]  # what follows the last newline was never finished

    def _check_head(self, lines: list[bytes]) -> None:
        try:
            there = self.head.exists()
            head: dict[str, Any] = (
                json.loads(self.head.read_text(encoding="utf-8")) if there else {"lines": 0, "last": START}
            )
            count, last = head["lines"], head["last"]
        except (ValueError, TypeError, KeyError):
            raise self.damaged(f"{self.head.name} cannot be read") from None
        if not count <= len(lines) <= count + 1:  # one more: the process ended between the line and its head
            raise self.damaged(f"{count} lines were written and {len(lines)} are there")
        if count and _hash(lines[count - 1]) != last:
            raise self.damaged(f"line {count} is not the one that was written")


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
