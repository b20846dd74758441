"""The noise of a step: sigma * C * N(0, I), a pure function of (key, t).

Floating-point numbers are not real numbers, and two attacks use the difference. What is defended here:

- Mironov 2012: float noise has gaps, so the last digits of signal + noise can tell the signal. Here noise is drawn in
  float64, and signal + noise is rounded to a grid that is fixed by C (gradients.py): that is a function of the ideal
  Gaussian mechanism's output alone, as far as float64 draws are Gaussian at the grid's precision. A grid step is about
  2^20 / sigma times as wide as the gaps between draws. (Beyond 8 standard deviations the gaps are wider; there float32,
  in which the result is given, is coarser than both.)
- Casacuberta et al. 2022: rounded sums can have a larger sensitivity than real ones. Sums on the grid are exact, and
  a margin covers the rounding inside each gradient (gradients.py).

What is not defended: an adversary who measures how long a step takes (the ziggurat's time depends on its draws, and the
batch size shows). The generator is AES with a secret key (randomness.py): to predict it is to break AES. What all of
this costs: `make bench`.

    >>> gradients = noised([torch.zeros(2)], grid=2.0**-30, std=0.5, key=Key.from_seed(1), t=0)
    >>> gradients[0].dtype, bool((gradients[0].double() * 2**30 % 1 == 0).all())
    (torch.float32, True)
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from stages.privacy.randomness import Key

BLOCK = 2**17  # numbers of one stream; threads share the blocks
FEW = 8  # blocks that are drawn faster than threads are started


def noised(
    total: Sequence[torch.Tensor], grid: float, std: float, key: Key, t: int, places: Sequence[int] | None = None
) -> list[torch.Tensor]:
    """round(total + N(0, std^2) / grid) * grid as float32, whatever the model computes in. `total` is in grid steps.

    Every tensor is noised, also one that is zero: which parameters move must not tell what was in the batch. A float32
    tensor on the CPU is overwritten with its result. Where processes have parts of the tensors, `places` says where in
    the whole each part begins: together they add the one noise vector that one process would. On a GPU nothing of the
    size of a gradient comes to the host (noise_on_gpu.py).
    """
    places = places or [0] * len(total)
    if total and total[0].device.type != "cpu":
        on_gpu = ON_DEVICE[total[0].device.type]()
        each = enumerate(zip(total, places, strict=True))
        return [on_gpu(steps, grid, std, key, t, i, place) for i, (steps, place) in each]
    return _on_cpu(total, grid, std, key, t, places)


def _kernel() -> Callable[..., torch.Tensor]:
    from stages.privacy import noise_on_gpu

    return noise_on_gpu.noised


ON_DEVICE = {"cuda": _kernel}


def _on_cpu(
    total: Sequence[torch.Tensor], grid: float, std: float, key: Key, t: int, places: Sequence[int]
) -> list[torch.Tensor]:
    tensors = [steps.detach().contiguous() for steps in total]
    signals = [(s.float() if s.dtype == torch.bfloat16 else s).numpy().reshape(-1) for s in tensors]
    results = [s if s.dtype == np.float32 else np.empty(s.size, np.float32) for s in signals]
    blocks = [
        (i, block)
        for i, (signal, place) in enumerate(zip(signals, places, strict=True))
        for block in range(place // BLOCK, -(-(place + signal.size) // BLOCK))
    ]

    def add(which: tuple[int, int]) -> None:
        i, block = which
        start = max(places[i], block * BLOCK)
        end = min(places[i] + signals[i].size, (block + 1) * BLOCK)
        here = slice(start - places[i], end - places[i])
        numbers = key.stream(f"noise/{i}/{block}", t).standard_normal(end - block * BLOCK)[start - block * BLOCK :]
        numbers *= std / grid
        numbers += signals[i][here]
        np.rint(numbers, out=numbers)
        numbers *= grid
        results[i][here] = numbers

    if len(blocks) <= FEW:
        for block in blocks:
            add(block)
    else:
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            list(pool.map(add, blocks))
    return [torch.from_numpy(r).view(s.shape) for r, s in zip(results, total, strict=True)]
