"""What the kernel of noise_on_gpu.py gives in Triton's interpreter, which is chosen before Triton is imported.

TRITON_INTERPRET=1 python -m tests.privacy.interpreted FILE      writes arrays, for test_noise_on_gpu.py
"""

import sys

import numpy as np
import torch
import triton
import triton.language as tl

from stages.privacy import noise_on_gpu
from stages.privacy.noise_on_gpu import _chacha20, noised
from stages.privacy.randomness import Key

GRID, STD, SIZE = 2.0**-31, 1.5, 2 * 8 * noise_on_gpu.BLOCKS + 5
RFC_KEY = bytes(range(32))
RFC_NONCE = bytes.fromhex("000000090000004a00000000")  # section 2.3.2 of RFC 8439, with counter 1


@triton.jit
def _keystream(words, out, first, blocks: tl.constexpr):
    counter = (first + tl.arange(0, blocks)).to(tl.uint32)
    (w0, w1, w2, w3, w4, w5, w6, w7), (w8, w9, w10, w11, w12, w13, w14, w15) = _chacha20(words, counter)
    at = out + tl.arange(0, blocks) * 16
    tl.store(at, w0)
    tl.store(at + 1, w1)
    tl.store(at + 2, w2)
    tl.store(at + 3, w3)
    tl.store(at + 4, w4)
    tl.store(at + 5, w5)
    tl.store(at + 6, w6)
    tl.store(at + 7, w7)
    tl.store(at + 8, w8)
    tl.store(at + 9, w9)
    tl.store(at + 10, w10)
    tl.store(at + 11, w11)
    tl.store(at + 12, w12)
    tl.store(at + 13, w13)
    tl.store(at + 14, w14)
    tl.store(at + 15, w15)


def keystream(words: np.ndarray, first: int, blocks: int) -> np.ndarray:
    given = torch.from_numpy(words.view(np.int32).copy()).view(torch.uint32)
    out = torch.zeros(16 * blocks, dtype=torch.int32).view(torch.uint32)
    _keystream[(1,)](given, out, first, blocks)
    return out.view(torch.int32).numpy().view(np.uint32)


def main() -> None:
    key = Key.from_seed(3)
    nothing = torch.zeros(SIZE, dtype=torch.float64)
    signal = torch.round(torch.randn(SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 2**30)
    whole = noised(nothing, GRID, STD, key, 4, 7, 0)
    small, noise_on_gpu.BLOCKS = noise_on_gpu.BLOCKS, 2**14  # the interpreter takes as long for a program of any size
    many = noised(torch.zeros(2**18), GRID, STD, Key.from_os(), 0, 0, 0)
    fine = noised(torch.zeros(40_000), GRID, 3 * GRID, key, 6, 0, 0)
    noise_on_gpu.BLOCKS = small
    np.savez(
        sys.argv[1],
        rfc=keystream(np.frombuffer(RFC_KEY + RFC_NONCE, dtype="<u4"), 1, 1),
        stream=keystream(noise_on_gpu.words_of(key, 4, 7), 0, 16),
        whole=whole,
        parts=torch.cat(
            [noised(nothing[a:b], GRID, STD, key, 4, 7, a) for a, b in ((0, 13), (13, 2000), (2000, SIZE))]
        ),
        again=noised(nothing.float().view(3, -1), GRID, STD, key, 4, 7, 0),
        signal=signal,
        both=noised(signal, GRID, STD, key, 4, 7, 0),
        next_step=noised(nothing, GRID, STD, key, 5, 7, 0),
        next_tensor=noised(nothing, GRID, STD, key, 4, 8, 0),
        fine=fine,
        many=many,
    )


if __name__ == "__main__":
    main()
