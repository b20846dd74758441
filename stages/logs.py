"""What library modules say at a terminal. Each has a logger of its own; a command shows them on standard error.

    logger = logging.getLogger(__name__)
    logger.info("going on after step 30 of 60")             shown as it is
    logger.warning("the newest checkpoint is damaged")      with `warning: ` before it

Who uses the modules as a library configures logging as usual and sees nothing unless asked. What is said here ends in
Prefect's log too, so it holds nothing of private data.
"""

import logging
import sys


class _Standard(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        kind = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        print(f"{kind}{record.getMessage()}", file=sys.stderr, flush=True)  # as it is now: tests replace it


def show() -> None:
    """Once per process, by whoever runs a command."""
    ours = logging.getLogger("stages")
    if not any(isinstance(handler, _Standard) for handler in ours.handlers):
        ours.addHandler(_Standard())
        ours.setLevel(logging.INFO)
        ours.propagate = False
