"""The noise of a step: sigma * C * N(0, I), a pure function of (key, t).

Floating-point numbers are not real numbers, and two attacks use the difference. What is defended here:

- Mironov 2012: float noise has gaps, so the last digits of signal + noise can tell the signal. Here noise is drawn in
  float64, and signal + noise is rounded to a grid that is fixed by C (gradients.py): that is a function of the ideal
  Gaussian mechanism's output alone, as far as float64 draws are Gaussian at the grid's precision. A grid step is about
  2^20 / sigma times as wide as the gaps between draws. (Beyond 8 standard
  deviations the gaps are wider; there float32, in which the result is given, is coarser than both.)
- Casacuberta et al. 2022: rounded sums can have a larger sensitivity than real ones. Sums on the grid are exact, and
  a margin covers the rounding inside each gradient (gradients.py).

What is not defended: an adversary who measures how long a step takes (the ziggurat's time depends on its draws, and the
batch size shows), or who predicts the generator. Philox is keyed with secret bits and passes statistical tests, but it
is not a cryptographic generator. What it costs: `make bench`.

    >>> noise = Noise([torch.Size([2])], std=0.5 * 2**30, key=Key.from_seed(1), t=0)
    >>> gradients = noise.added_to([torch.zeros(2)], grid=2.0**-30)
    >>> gradients[0].dtype, bool((gradients[0].double() * 2**30 % 1 == 0).all())
    (torch.float32, True)
"""

import functools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch

from stages.privacy.randomness import Key

BLOCK = 2**15  # numbers of one stream: stays in the processor's cache, and threads share the work
FEW = 32  # blocks that are drawn faster than a thread is woken


class Noise:
    """The noise of step t for tensors of these shapes, in grid steps.

    It does not depend on the data, so it is drawn by threads in the background while the gradient is computed.
    """

    def __init__(self, shapes: Sequence[torch.Size], std: float, key: Key, t: int):
        self._shapes = [torch.Size(shape) for shape in shapes]
        self._draws = [np.empty(shape.numel()) for shape in self._shapes]
        self._blocks = [
            (i, slice(start, start + BLOCK)) for i, d in enumerate(self._draws) for start in range(0, d.size, BLOCK)
        ]

        def draw(i: int, here: slice) -> None:
            numbers = self._draws[i][here]
            key.stream(f"noise/{i}/{here.start // BLOCK}", t).standard_normal(out=numbers)
            numbers *= std

        self._drawn = self._on_every_block(draw)

    def added_to(self, total: Sequence[torch.Tensor], grid: float) -> list[torch.Tensor]:
        """round(total + noise) * grid as float32, whatever the model computes in. `total` is in grid steps.

        Every tensor is noised, also one that is zero: which parameters move must not tell what was in the batch.
        """
        signals = [steps.detach().cpu().contiguous() for steps in total]
        signals = [(s.float() if s.dtype == torch.bfloat16 else s).numpy().reshape(-1) for s in signals]
        results = [s if s.dtype == np.float32 else np.empty(s.size, np.float32) for s in signals]  # in place if it can

        def add(i: int, here: slice) -> None:
            numbers = self._draws[i][here]
            numbers += signals[i][here]
            np.rint(numbers, out=numbers)
            numbers *= grid
            results[i][here] = numbers

        for drawn in self._drawn:
            drawn.result()
        for added in self._on_every_block(add):
            added.result()
        return [
            torch.from_numpy(result).view(shape).to(steps.device)
            for result, shape, steps in zip(results, self._shapes, total, strict=True)
        ]

    def _on_every_block(self, work: Callable[[int, slice], None]) -> list[Future]:
        if len(self._blocks) <= FEW:
            for block in self._blocks:
                work(*block)
            return []
        return [_threads(torch.get_num_threads()).submit(work, *block) for block in self._blocks]


@functools.cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, initializer=_yield_to_others)


def _yield_to_others() -> None:
    """The gradient goes first: noise uses what it leaves of the processor."""
    if hasattr(os, "setpriority"):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
