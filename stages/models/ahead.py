"""Images of the next steps, read by other processes while a step is computed.

What a step draws is a function of its number, so the rows of the next steps are known. Images come in the order of the
steps, and have no randomness: nothing depends on the number of processes. Where there are none, an image is read when
its step comes.

    >>> steps = [("first", [3, 1]), ("second", []), ("third", [2])]
    >>> for step, images in ahead(steps, lambda rows: torch.tensor(rows) / 2, workers=0): print(step, images)
    first tensor([1.5000, 0.5000])
    second tensor([])
    third tensor([1.])
"""

import signal
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from stages.models.batches import Images

Step = TypeVar("Step")


def ahead(
    steps: Iterable[tuple[Step, list[int]]], images: Images, workers: int, pinned: bool = False
) -> Iterator[tuple[Step, torch.Tensor]]:
    """Each step with the images of its rows. With `pinned`, in memory that a GPU copies from by itself."""
    if not workers:
        for step, rows in steps:
            yield step, _Rows(images).__getitems__(rows)
        return
    waiting: deque[Step] = deque()

    def rows_of_steps() -> Iterator[list[int]]:
        for step, rows in steps:
            waiting.append(step)
            yield rows

    loader = DataLoader(
        _Rows(images),
        batch_sampler=rows_of_steps(),  # asked for as far ahead as there are workers
        collate_fn=_as_they_are,
        num_workers=workers,
        pin_memory=pinned,
        worker_init_fn=_begin,
        multiprocessing_context="fork",
    )
    for found in loader:
        yield waiting.popleft(), found


class _Rows(Dataset):
    def __init__(self, images: Images):
        self._images = images

    def __getitems__(self, rows: list[int]) -> torch.Tensor:
        return self._images(rows) if rows else torch.empty(0)


def _as_they_are(images: Any) -> Any:
    return images


def _begin(worker: int) -> None:
    """A stop is for the training to answer; a worker ends with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
