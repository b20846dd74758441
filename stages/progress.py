"""How far a loop is: a bar in a terminal, and a count in a file for whoever started the command.

    for step in progress.bar(range(done, steps), "train", "steps", done=done, total=steps): ...

    PROGRESS_FILE=/tmp/count python -m stages.train --cell CELL      /tmp/count: 45 100 steps train

A flow reads the file (flows/progress.py), since it has what a stage prints only when that has ended. Like the bar, it
has counts that may be private (of rows, for example): what of them goes further is for the reader to choose.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

from tqdm import tqdm

FILE = "PROGRESS_FILE"  # environment variable: where the count goes; without it, nowhere
SECONDS = 0.5  # at least, between two counts that are written

T = TypeVar("T")


@dataclass(frozen=True)
class Count:
    done: int
    total: int | None  # where it is known
    unit: str  # in the plural, one word
    what: str

    def __str__(self) -> str:
        return f"{self.done} {'?' if self.total is None else self.total} {self.unit} {self.what}"

    def write(self, path: Path) -> None:
        """Whole or not at all. A loop does not end because nobody can see how far it is."""
        new = path.with_name(f"{path.name}.new")
        with contextlib.suppress(OSError):
            new.write_text(str(self), encoding="utf-8")
            os.replace(new, path)

    @classmethod
    def read(cls, path: Path) -> "Count | None":
        """None before anything was counted."""
        try:
            done, total, unit, what = path.read_text(encoding="utf-8").split(" ", 3)
        except OSError:
            return None
        return cls(int(done), None if total == "?" else int(total), unit, what)


@dataclass(frozen=True)
class _Told(Generic[T]):
    """What goes through the bar, counted in a file too."""

    items: Iterable[T]
    start: Count
    path: Path

    def __iter__(self) -> Iterator[T]:
        done = self.start.done
        self.start.write(self.path)
        last = time.monotonic()
        for item in self.items:
            yield item
            done += 1  # only now is it
            if time.monotonic() - last >= SECONDS:
                self._write(done)
                last = time.monotonic()
        self._write(done)

    def _write(self, done: int) -> None:
        replace(self.start, done=done).write(self.path)


def bar(
    items: Iterable[T], what: str, unit: str, *, done: int = 0, total: int | None = None, hidden: bool = False
) -> Iterable[T]:
    """`items` one by one, of which `done` came before. `hidden`: another process shows the same."""
    shown = tqdm(items, desc=what, unit=f" {unit}", initial=done, total=total, disable=hidden or None)
    path = os.environ.get(FILE)
    return _Told(shown, Count(done, shown.total, unit, what), Path(path)) if path and not hidden else shown
