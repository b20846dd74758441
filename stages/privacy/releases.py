"""Which of the charged runs were ever released: given to somebody outside, who may keep them (README.md section 5).

What is out cannot be taken back, so the list only grows. A release is written before its folder appears under its name
(write-ahead): a crash between the two counts one that nobody was given, never the other way round. The same run
released again is there once: it tells nothing more.

    ledger/releases/releases.jsonl     in a folder of its own: what is beside charges.jsonl is a ledger of old
"""

import datetime
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from stages.errors import UserError
from stages.privacy import secret
from stages.privacy.chain import Chain


class _List(Chain):
    def damaged(self, what: str) -> UserError:
        return UserError(
            f"the list of releases {self.path} is damaged: {what}. Nothing is released and no joint epsilon is stated "
            "until it is whole again: restore all of its files from a backup"
        )


@dataclass(frozen=True)
class Release:
    run: str  # its charge in the ledger
    cell: str
    time: str


class Releases:
    """All releases ever made of runs of a ledger."""

    def __init__(self, folder: Path | None = None):
        """`folder` is the ledger's."""
        self.chain = _List((folder or secret.folder()) / "releases" / "releases.jsonl")

    def all(self) -> list[Release]:
        if not self.chain.path.parent.exists():
            return []
        with self.chain.locked():
            return self._all()

    def runs(self) -> frozenset[str]:
        return frozenset(release.run for release in self.all())

    def add(self, run: str, cell: str, known: Collection[str]) -> None:
        """Write that the run is released. `known` are the runs that its joint epsilon was computed with."""
        with self.chain.locked():
            there = {release.run for release in self._all()}
            if not there <= {run, *known}:
                raise UserError(
                    "another model was released at the same time, which the joint epsilon of this one does not count. "
                    "Nothing was released; run the same command again"
                )
            if run not in there:
                time = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
                self.chain.append({"time": time, "run": run, "cell": cell})

    def _all(self) -> list[Release]:
        try:
            found = [Release(line["run"], line["cell"], line["time"]) for line in self.chain.entries()]
        except (TypeError, KeyError):
            raise self.chain.damaged("a line of it is no release") from None
        if len({release.run for release in found}) != len(found):
            raise self.chain.damaged("a run is in it twice")
        return found
