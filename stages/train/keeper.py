"""When a training is written down, and when it stops: between two steps, never within one."""

import logging
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch

from stages.distributed.ranks import Ranks
from stages.train.checkpoints import Checkpoint, UnfinishedRun
from stages.train.state import snapshot

logger = logging.getLogger(__name__)
ONE_REQUEST_SECONDS = 1.0  # a signal to all processes of a job comes once more from the one that started this


class Keeper:
    """Called after every step. All processes save and stop after the same one: the first decides."""

    def __init__(
        self,
        run: UnfinishedRun | None,
        parameters: Mapping[str, torch.nn.Parameter],
        optimizer: torch.optim.Optimizer,
        ranks: Ranks,
        every: float,  # seconds
        asked_to_stop: Callable[[], bool],
        steps: int,
    ):
        self._run, self._parameters, self._optimizer, self._ranks = run, parameters, optimizer, ranks
        self._every, self._asked_to_stop, self._steps = every, asked_to_stop, steps
        self._last = time.monotonic()

    def __call__(self, done: int, figures: Mapping[str, list[float]] | None) -> None:
        if done == self._steps:
            return  # the outputs are next
        stop = self._asked_to_stop()
        save = stop or time.monotonic() - self._last >= self._every
        stop, save = self._ranks.agreed(stop, save)
        if save:
            tensors = snapshot(self._parameters, self._optimizer)
            if self._run is not None:
                self._run.save(Checkpoint(done, tensors, None if figures is None else dict(figures)))
            self._last = time.monotonic()
        if stop:
            if self._run is not None:
                words = "stopped after step %d of %d; the same command goes on from step %s"
                logger.info(words, done, self._steps, self._run.saved)
            raise KeyboardInterrupt


@contextmanager
def stops_between_steps() -> Iterator[Callable[[], bool]]:
    """SIGTERM and Ctrl-C ask for a stop after the step that is being made; a second time, they stop at once."""
    asked: list[float] = []

    def ask(number: int, frame: object) -> None:
        if asked and time.monotonic() - asked[0] > ONE_REQUEST_SECONDS:
            raise KeyboardInterrupt
        asked.append(time.monotonic())

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
