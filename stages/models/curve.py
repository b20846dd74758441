"""Weights after some of the steps, kept so that a run can be seen to learn: `evaluate` scores them on the test split.

For its accounting, a private run releases every noisy gradient, and the weights on the way are made of these and of
public values alone. So they are covered by the run's own epsilon, all of them together with the last, and their scores
on a public test split are post-processing. Which steps are kept follows from public numbers: the plan and the size of
the test split. Where the scores would take more than a twentieth of the training's time, none are:

    >>> kept_steps("auto", steps=60, batch_size=512, test_rows=1000)
    [12, 24, 36, 48]
    >>> kept_steps("auto", steps=500, batch_size=32, test_rows=1000), kept_steps(3, 500, 32, 1000)
    ([], [125, 250, 375])

No step and no weight depends on it, so it is no reason to train again: dvc.yaml does not name it for `train`.
"""

import logging
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from stages.atomic import new_file, new_folder

logger = logging.getLogger(__name__)
# Of `auto`:
MOST, FEWEST = 8, 3  # points
SHARE = 0.05  # of the time
MOST_BYTES = 2**24  # of the weights after one step
PASSES = 3  # of a step through the model: forward, and twice as much back


def kept_steps(
    points: int | Literal["auto"], steps: int, batch_size: float, test_rows: int, size: int = 0
) -> list[int]:
    """After which steps, in even distances and without the last, whose weights are the model. `size`: its bytes."""
    if points == "auto":
        cheap = min(MOST, int(SHARE * PASSES * steps * batch_size / max(1, test_rows)))
        points = cheap if cheap >= FEWEST and size <= MOST_BYTES else 0
    return sorted({round(steps * (i + 1) / (points + 1)) for i in range(points)} - {0, steps})


class Curve:
    """Called after every step, with how many are done; `folder` is that of the unfinished run."""

    def __init__(self, folder: Path | None, steps: list[int], parameters: Mapping[str, torch.nn.Parameter]):
        self._folder, self._steps, self._parameters = folder, steps, parameters

    def __call__(self, done: int) -> None:
        """A failure (a full disk) is reported and costs nothing but the point."""
        if self._folder is None or done not in self._steps:
            return
        try:
            with new_file(self._folder / f"step-{done}.safetensors") as path:
                save_file({name: p.detach().cpu().contiguous() for name, p in self._parameters.items()}, path)
        except (OSError, SafetensorError) as error:
            logger.warning("no point of the learning curve at step %d (%s); training goes on", done, error)


def write(folder: Path, kept: Path | None) -> None:
    """The output of a training: what was kept on the way, maybe nothing."""
    with new_folder(folder) as new:
        (new / "about.txt").write_text("weights after some steps: stages/models/curve.py\n", encoding="utf-8")
        for path in kept.glob("step-*.safetensors") if kept else ():
            shutil.copy(path, new)


def read(folder: Path) -> Iterator[tuple[int, dict[str, torch.Tensor]]]:
    """By step, the tensors that training had changed by then."""
    steps = [int(path.stem.removeprefix("step-")) for path in folder.glob("step-*.safetensors")]
    for step in sorted(steps):
        yield step, load_file(folder / f"step-{step}.safetensors")
