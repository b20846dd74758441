"""The noise of a step: sigma * C * N(0, I), a pure function of (key, t).

Floating-point numbers are not real numbers, and two attacks use the difference. What is defended here:

- Mironov 2012: float noise has gaps, so the last digits of signal + noise can tell the signal. Here the signal is on a
  grid (gradients.py), and noise drawn in float64 is rounded to the same grid. As round(signal + N) = signal + round(N)
  for a signal on the grid, the result is a function of the ideal Gaussian mechanism's output alone, as far as float64
  draws are Gaussian at the grid's precision: a grid step is about 2^20 / sigma times as wide as the gaps between draws.
  (Beyond 8 standard deviations the gaps are wider; there float32, in which the result is given, is coarser than both.)
- Casacuberta et al. 2022: rounded sums can have a larger sensitivity than real ones. Sums on the grid are exact, and
  a margin covers the rounding inside each gradient (gradients.py).

What is not defended: an adversary who measures how long a step takes (the ziggurat's time depends on its draws, and the
batch size shows), or who predicts the generator. Philox is keyed with secret bits and passes statistical tests, but it
is not a cryptographic generator. What it costs: `make bench`.

    >>> gradients = noised([torch.zeros(2)], grid=2.0**-30, std=0.5, key=Key.from_seed(1), t=0)
    >>> gradients[0].dtype, bool((gradients[0].double() * 2**30 % 1 == 0).all())
    (torch.float32, True)
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from stages.privacy.randomness import Key

BLOCK = 2**16  # numbers of one stream: stays in the processor's cache, and threads share the work


def noised(total: Sequence[torch.Tensor], grid: float, std: float, key: Key, t: int) -> list[torch.Tensor]:
    """(total + round(N(0, std^2) / grid)) * grid as float32, whatever the model computes in. `total` is in grid steps.

    Every tensor is noised, also one that is zero: which parameters move must not tell what was in the batch.
    """
    results, work = [], []
    for i, steps in enumerate(total):
        signal = steps.detach().cpu().contiguous()
        signal = (signal.float() if signal.dtype == torch.bfloat16 else signal).numpy().reshape(-1)
        result = np.empty(signal.size, dtype=np.float32)
        results.append((torch.from_numpy(result).view(steps.shape), steps.device))
        work += [(i, j, signal, result) for j in range(-(-signal.size // BLOCK))]

    def add(i: int, j: int, signal: np.ndarray, result: np.ndarray) -> None:
        here = slice(j * BLOCK, (j + 1) * BLOCK)
        draw = key.stream(f"noise/{i}/{j}", t).standard_normal(len(signal[here]))
        draw *= std / grid
        np.rint(draw, out=draw)
        draw += signal[here]
        draw *= grid
        result[here] = draw

    if sum(steps.numel() for steps in total) < 16 * BLOCK:  # threads cost more than they save
        for piece in work:
            add(*piece)
    else:
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            list(pool.map(lambda piece: add(*piece), work))
    return [result.to(device) for result, device in results]
