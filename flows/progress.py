"""How far a running stage is: in the terminal (flows/live.py), and as an artifact on the page of the Prefect run.

A stage counts in a small file (stages/progress.py), for what it prints is read when it has ended. The terminal shows
any count. Prefect's server is given steps alone, which are public: how many rows or batches private data have may not
be. How long a step takes is seen there too (stages/privacy/README.md, section 1, on time).
"""

import contextvars
import re
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact

from flows.graph import kind
from flows.live import live
from stages.progress import FILE, Count

STEPS_OF = ("pretrain", "train")  # stages whose loops are as long as their public parameters say
SECONDS = 5.0  # between two updates of an artifact
LAST_SECONDS = 2.0  # that a stage which has ended waits for the last update; its server may be gone


@contextmanager
def watched(stage: str) -> Iterator[dict[str, str]]:
    """While the block runs, what is run in it with this environment is shown."""
    with tempfile.TemporaryDirectory(prefix="dp-clip-progress-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "count"  # only for this user: it may be private
        with live.line(stage, path), _artifact(stage, path):
            yield {FILE: str(path)}


@contextmanager
def _artifact(stage: str, path: Path) -> Iterator[None]:
    """Kept by a thread: a server that cannot be reached holds nothing up."""
    if kind(stage) not in STEPS_OF:
        yield
        return
    ended, context = threading.Event(), contextvars.copy_context()  # of the Prefect run that it belongs to
    thread = threading.Thread(target=context.run, args=[_follow, stage, path, ended], daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(LAST_SECONDS)


def _follow(stage: str, path: Path, ended: threading.Event) -> None:
    shown, over = Shown(stage), False
    while not over:
        over = ended.wait(SECONDS)
        count = Count.read(path)
        if count and count.unit == "steps":
            # The server may be away, and Prefect has many exceptions for that.
            with suppress(Exception):
                shown.update(count)


class Shown:
    """The artifact of a stage, made when there is something to show."""

    def __init__(self, stage: str):
        self._stage = stage
        self._id: UUID | None = None
        self._count: Count | None = None  # that it shows

    def update(self, count: Count) -> None:
        if count == self._count:
            return
        percent, about = 100 * count.done / (count.total or 1), f"{self._stage}: {count.done} of {count.total} steps"
        if self._id is None:
            made = create_progress_artifact(percent, key(self._stage), about)
            self._id = cast(UUID, made)  # no coroutine: there is no event loop in this thread
        else:
            update_progress_artifact(self._id, percent, about)
        self._count = count


def key(stage: str) -> str:
    """A name that Prefect takes.

    >>> key("train@classification-mnist5k-tiny_clip-batch-0.5-0")
    'train-classification-mnist5k-tiny-clip-batch-0-5-0'
    """
    return re.sub(r"[^a-z0-9]+", "-", stage.lower()).strip("-")
