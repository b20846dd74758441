"""The noise of a step on a GPU: one kernel draws it, adds it and rounds, in one sweep over the gradient.

The generator is ChaCha20 in counter mode (RFC 8439), under a key that BLAKE2b derives from (key, step); the nonce is
the number of the tensor. So a number of the noise is a pure function of (key, step, tensor, place), whatever the number
of processes, and to predict it is to break ChaCha20. Of each block of 512 bits come eight numbers, by Box and Muller in
float64: the radius from 64 bits, which reaches 9.4 standard deviations (beyond it lies 10^-20 of a Gaussian), the angle
from 64 more. What is said of floating-point numbers in noise.py holds here as it stands.

The kernel is written in Triton, which comes with PyTorch's build for CUDA. Without a GPU it is tested in Triton's
interpreter, and compiled for two architectures (tests/privacy/test_noise_on_gpu.py).
"""

import hashlib

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from stages.privacy.randomness import Key

PER_BLOCK = 8  # numbers of 512 bits
BLOCKS = 256  # of one program
ROUND = tl.constexpr(1.5 * 2.0**52)  # a float64 below 2^51 that is added to this, and loses it again, is a whole number
TWO_PI = tl.constexpr(2 * np.pi)
C0, C1, C2, C3 = (tl.constexpr(word) for word in (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574))  # "expand 32-byte k"


@triton.jit
def _rotated(x, by: tl.constexpr):
    return (x << by) | (x >> (32 - by))


@triton.jit
def _quarter(a, b, c, d):
    a += b
    d = _rotated(d ^ a, 16)
    c += d
    b = _rotated(b ^ c, 12)
    a += b
    d = _rotated(d ^ a, 8)
    c += d
    b = _rotated(b ^ c, 7)
    return a, b, c, d


@triton.jit
def _chacha20(words, counter):
    """The 16 words of each block; `words` are the key's eight, then the nonce's three."""
    zero = counter * 0
    a0, a1, a2, a3 = zero + C0, zero + C1, zero + C2, zero + C3
    a4, a5, a6, a7 = (
        zero + tl.load(words),
        zero + tl.load(words + 1),
        zero + tl.load(words + 2),
        zero + tl.load(words + 3),
    )
    a8, a9 = zero + tl.load(words + 4), zero + tl.load(words + 5)
    a10, a11 = zero + tl.load(words + 6), zero + tl.load(words + 7)
    a12 = counter
    a13, a14, a15 = zero + tl.load(words + 8), zero + tl.load(words + 9), zero + tl.load(words + 10)
    b0, b1, b2, b3, b4, b5, b6, b7 = a0, a1, a2, a3, a4, a5, a6, a7
    b8, b9, b10, b11, b12, b13, b14, b15 = a8, a9, a10, a11, a12, a13, a14, a15
    for _ in range(10):
        b0, b4, b8, b12 = _quarter(b0, b4, b8, b12)
        b1, b5, b9, b13 = _quarter(b1, b5, b9, b13)
        b2, b6, b10, b14 = _quarter(b2, b6, b10, b14)
        b3, b7, b11, b15 = _quarter(b3, b7, b11, b15)
        b0, b5, b10, b15 = _quarter(b0, b5, b10, b15)
        b1, b6, b11, b12 = _quarter(b1, b6, b11, b12)
        b2, b7, b8, b13 = _quarter(b2, b7, b8, b13)
        b3, b4, b9, b14 = _quarter(b3, b4, b9, b14)
    return (
        (b0 + a0, b1 + a1, b2 + a2, b3 + a3, b4 + a4, b5 + a5, b6 + a6, b7 + a7),
        (b8 + a8, b9 + a9, b10 + a10, b11 + a11, b12 + a12, b13 + a13, b14 + a14, b15 + a15),
    )


@triton.jit
def _gaussians(r0, r1, angle0, angle1):
    """Two from four words."""
    radius = ((r0.to(tl.uint64) << 32 | r1.to(tl.uint64)).to(tl.float64) + 1.0) * 5.421010862427522e-20  # 2^-64
    angle = (angle0.to(tl.uint64) << 32 | angle1.to(tl.uint64)).to(tl.float64) * 5.421010862427522e-20
    length = tl.sqrt(tl.maximum(-2.0 * tl.log(radius), 0.0))
    return length * tl.cos(angle * TWO_PI), length * tl.sin(angle * TWO_PI)


@triton.jit
def _add(signal, result, at, size, number, scale, grid):
    here = (at >= 0) & (at < size)
    steps = tl.load(signal + at, mask=here, other=0.0).to(tl.float64) + number * scale
    tl.store(result + at, (((steps + ROUND) - ROUND) * grid).to(tl.float32), mask=here)


@triton.jit
def add_noise(signal, result, size, place, words, scales, blocks: tl.constexpr):
    """result = round(signal + scale * N(0, 1)) * grid; of the whole tensor, `signal` begins at `place`."""
    scale, grid = tl.load(scales), tl.load(scales + 1)
    first = place // 8 + tl.program_id(0).to(tl.int64) * blocks
    counter = (first + tl.arange(0, blocks)).to(tl.uint32)
    (w0, w1, w2, w3, w4, w5, w6, w7), (w8, w9, w10, w11, w12, w13, w14, w15) = _chacha20(words, counter)
    at = (first + tl.arange(0, blocks)) * 8 - place
    n0, n1 = _gaussians(w0, w1, w2, w3)
    n2, n3 = _gaussians(w4, w5, w6, w7)
    n4, n5 = _gaussians(w8, w9, w10, w11)
    n6, n7 = _gaussians(w12, w13, w14, w15)
    _add(signal, result, at, size, n0, scale, grid)
    _add(signal, result, at + 1, size, n1, scale, grid)
    _add(signal, result, at + 2, size, n2, scale, grid)
    _add(signal, result, at + 3, size, n3, scale, grid)
    _add(signal, result, at + 4, size, n4, scale, grid)
    _add(signal, result, at + 5, size, n5, scale, grid)
    _add(signal, result, at + 6, size, n6, scale, grid)
    _add(signal, result, at + 7, size, n7, scale, grid)


def words_of(key: Key, t: int, tensor: int) -> NDArray[np.uint32]:
    """The key of the step and the nonce of the tensor, as ChaCha20 takes them: little endian."""
    derived = hashlib.blake2b(f"noise on a GPU/{t}".encode(), key=key.secret, digest_size=32).digest()
    return np.frombuffer(derived + tensor.to_bytes(12, "little"), dtype="<u4").copy()


def noised(signal: torch.Tensor, grid: float, std: float, key: Key, t: int, tensor: int, place: int) -> torch.Tensor:
    """As noise.noised, of one tensor."""
    if place + signal.numel() > PER_BLOCK * 2**32:
        raise ValueError(f"a tensor of {place + signal.numel()} numbers is beyond the counter of ChaCha20: 32 bits")
    flat = signal.detach().contiguous().view(-1)
    result = torch.empty_like(flat, dtype=torch.float32)
    words = torch.from_numpy(words_of(key, t, tensor).view(np.int32)).to(flat.device).view(torch.uint32)
    scales = torch.tensor([std / grid, grid], dtype=torch.float64).to(flat.device)
    blocks = -(-(place % PER_BLOCK + flat.numel()) // PER_BLOCK)
    if blocks:
        add_noise[(-(-blocks // BLOCKS),)](flat, result, flat.numel(), place, words, scales, BLOCKS)
    return result.view(signal.shape)
