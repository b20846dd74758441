"""A line for each running stage at the bottom of the terminal: how far it is, how fast, and the time left.

    train@classification-mnist5k-tiny-clip-batch-10-0  45/100 steps, 12.34 steps/s, 00:04 left

What Prefect logs goes above these lines, and those of stages that have ended go away. Where standard error is no
terminal, nothing of this happens.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TextIO, cast

from prefect.logging.handlers import PrefectConsoleHandler
from tqdm import tqdm

from stages.progress import Count

SECONDS = 0.5  # between two looks
NARROWEST = 20  # columns of a stage's name, whatever is beside it
UP, ERASE = "\x1b[A", "\x1b[J"  # one row; from here to the end of the screen
FIGURES = "{n_fmt}/{total_fmt}{unit}, {rate_fmt}, {remaining} left"
NO_TOTAL = "{n_fmt}{unit}, {rate_fmt}"


class Line:
    """What is to be said of a stage, by the file that it counts in (stages/progress.py)."""

    def __init__(self, stage: str, path: Path):
        self.stage, self._path = stage, path
        self._begun = time.monotonic()
        self._first: Count | None = None  # of the loop that it is in
        self._last: Count | None = None
        self._since = self._until = 0.0  # when these were seen

    def figures(self) -> str:
        """How far it is; before anything is counted, how long it has been running."""
        count, now = Count.read(self._path), time.monotonic()
        if count is None:
            return tqdm.format_interval(now - self._begun)
        if self._first is None or (count.what, count.total) != (self._first.what, self._first.total):
            self._first, self._since = count, now
        if count != self._last:
            self._last, self._until = count, now
        made, took = count.done - self._first.done, self._until - self._since
        said = tqdm.format_meter(
            count.done,
            count.total,
            now - self._since,
            unit=f" {count.unit}",
            initial=self._first.done,
            rate=made / took if took else None,
            bar_format=FIGURES if count.total else NO_TOTAL,
        )
        return " ".join(said.split())  # it fills numbers up with blanks


class Live:
    def __init__(self, file: TextIO):
        self._file, self._lock = file, threading.RLock()
        self._lines: list[Line] = []
        self._rows = 0  # that are on the screen
        self._thread: threading.Thread | None = None
        self._open = file.isatty()
        self._in_front: set[logging.Handler] = set()  # whose records go above the lines

    @contextmanager
    def line(self, stage: str, path: Path) -> Iterator[None]:
        """While the block runs, `stage` has a line."""
        line = Line(stage, path)
        with self.apart():
            self._lines.append(line)
            if self._open and not self._thread:
                self._let_in_front(console_handlers())
                self._thread = threading.Thread(target=self._follow, daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self.apart():
                self._lines.remove(line)

    @contextmanager
    def apart(self) -> Iterator[None]:
        """What is printed in the block goes above the lines."""
        with self._lock:
            self._erase()
            try:
                yield
            finally:
                self._draw()

    def _let_in_front(self, handlers: list[PrefectConsoleHandler]) -> None:
        def placed(emit: Callable[[logging.LogRecord], None]) -> Callable[[logging.LogRecord], None]:
            def emit_apart(record: logging.LogRecord) -> None:
                with self.apart():
                    emit(record)

            return emit_apart

        for handler in set(handlers) - self._in_front:
            with cast(AbstractContextManager, handler.lock):  # once a record that is being printed is there as a whole
                handler.emit = placed(handler.emit)  # type: ignore[assignment, method-assign]  # Prefect has no setting for it
        self._in_front.update(handlers)

    def close(self) -> None:
        """From here on the terminal is somebody else's."""
        with self._lock:
            self._erase()
            self._open = False

    def _follow(self) -> None:
        while True:
            with self.apart():
                if not self._lines or not self._open:
                    self._thread = None
                    return
            time.sleep(SECONDS)

    def _erase(self) -> None:
        if self._rows:
            self._write(f"\r{UP * (self._rows - 1)}{ERASE}")
            self._rows = 0

    def _draw(self) -> None:
        if self._open and self._lines:
            rows = shown([(line.stage, line.figures()) for line in self._lines], *size(self._file))
            self._write("\n".join(rows))
            self._rows = len(rows)

    def _write(self, text: str) -> None:
        try:
            self._file.write(text)
            self._file.flush()
        except (OSError, ValueError):
            self._open = False  # the terminal is gone, and the run is not


def shown(lines: list[tuple[str, str]], columns: int, height: int) -> list[str]:
    """As many as fit, none of them longer than a row; of a name that is too long the middle is left out."""
    lines = lines[: height - 1]
    room = max(NARROWEST, columns - 1 - max(len(figures) for _, figures in lines) - 2)
    names = [shortened(name, room) for name, _ in lines]
    width = max(map(len, names))
    return [f"{name:{width}}  {figures}"[: columns - 1] for name, (_, figures) in zip(names, lines, strict=True)]


def shortened(name: str, room: int) -> str:
    half = (room - 3) // 2
    return name if len(name) <= room else f"{name[: room - 3 - half]}...{name[-half:]}"


def size(file: TextIO) -> tuple[int, int]:
    """Columns and rows; some terminals do not know theirs."""
    columns = height = 0
    with suppress(OSError, ValueError):
        columns, height = os.get_terminal_size(file.fileno())
    return columns or 80, height or 24


live = Live(sys.stderr)


def console_handlers() -> list[PrefectConsoleHandler]:
    loggers = [logging.getLogger(name) for name in [None, *logging.root.manager.loggerDict]]
    found = [each for logger in loggers for each in logger.handlers if isinstance(each, PrefectConsoleHandler)]
    return list(dict.fromkeys(found))
