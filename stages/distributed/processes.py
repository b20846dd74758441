"""One training on several processes of this machine, started by torchrun's own launcher; its failures in one line."""

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch.distributed as dist

from stages.errors import UserError
from stages.keys import Cell

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

STOP_SECONDS = "600"  # that processes which are asked to stop may take for their step and the checkpoint
AGAIN = "Give the same command again: the training goes on from its last checkpoint and is charged nothing more"


def start(count: int, cell: Cell) -> None:
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", STOP_SECONDS)
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # the failure is reported below
    arguments = ["--standalone", f"--nproc-per-node={count}", "-m", "stages.train", "--cell", str(cell)]
    try:
        run(parse_args(arguments))
    except SignalException:
        raise KeyboardInterrupt from None
    except ChildFailedError as error:
        rank, failure = _first(error)
        if failure.exitcode in (2, 130):
            sys.exit(failure.exitcode)  # the process has said why
        how = f"was killed ({failure.signal_name()})" if failure.exitcode < 0 else f"failed (exit {failure.exitcode})"
        raise UserError(f"process {rank} of {count} {how}, and the others were stopped. {AGAIN}") from None


def _first(error: "ChildFailedError") -> "tuple[int, ProcessFailure]":
    """The one that the others ended because of. They may be noticed in the same moment; nobody kills himself."""
    killed = [(rank, f) for rank, f in error.failures.items() if f.exitcode == -signal.SIGKILL]
    return killed[0] if killed else error.get_first_failure()


@contextmanager
def explained() -> Iterator[None]:
    """A process that loses another one says so; the traceback of the connection would hide it."""
    try:
        yield
    except RuntimeError as error:
        lost = ("Connection closed by peer", "Connection reset", "Broken pipe", "NCCL")
        if dist.is_initialized() and any(words in str(error) for words in lost):
            raise UserError(f"another process of this training has ended. {AGAIN}") from None
        raise
    finally:
        if dist.is_initialized() and sys.exc_info()[0] is None:
            dist.destroy_process_group()
