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

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from stages.privacy.randomness import Key

BLOCK = 2**17  # numbers of one stream; threads share the blocks
FEW = 8  # blocks that are drawn faster than threads are started


def noised(total: Sequence[torch.Tensor], grid: float, std: float, key: Key, t: int) -> list[torch.Tensor]:
    """round(total + N(0, std^2) / grid) * grid as float32, whatever the model computes in. `total` is in grid steps.

    Every tensor is noised, also one that is zero: which parameters move must not tell what was in the batch. A float32
    tensor on the CPU is overwritten with its result.
    """
    signals = [steps.detach().cpu().contiguous() for steps in total]
    signals = [(s.float() if s.dtype == torch.bfloat16 else s).numpy().reshape(-1) for s in signals]
    results = [s if s.dtype == np.float32 else np.empty(s.size, np.float32) for s in signals]
    blocks = [(i, start) for i, signal in enumerate(signals) for start in range(0, signal.size, BLOCK)]

    def add(block: tuple[int, int]) -> None:
        i, start = block
        signal = signals[i][start : start + BLOCK]
        numbers = key.stream(f"noise/{i}/{start // BLOCK}", t).standard_normal(signal.size)
        numbers *= std / grid
        numbers += signal
        np.rint(numbers, out=numbers)
        numbers *= grid
        results[i][start : start + BLOCK] = numbers

    if len(blocks) <= FEW:
        for block in blocks:
            add(block)
    else:
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            list(pool.map(add, blocks))
    return [torch.from_numpy(r).view(s.shape).to(s.device) for r, s in zip(results, total, strict=True)]
