"""Keys, and the random streams they open (README.md section 4).

A key is 256 secret bits from the operating system. The stream for (purpose, step) is a pure function of the key, so a
step that is run again draws the same sample and the same noise instead of a second, fresh one. Whoever knows the key
can subtract the noise: it is never written to an output, a log or a parameter. While a training is unfinished it is in
a file that its owner alone can read, or an interrupted step could not be run again as it was; with the last step the
file is gone (train/checkpoints.py).

    >>> key = Key.from_seed(7)
    >>> key.stream("noise", 3).standard_normal(2) == key.stream("noise", 3).standard_normal(2)
    array([ True,  True])
    >>> key
    Key(origin='fixed')
"""

import hashlib
import os
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from randomgen import AESCounter


@dataclass(frozen=True)
class Key:
    origin: str  # "os", or "fixed" for a key anyone can recompute
    secret: bytes = field(repr=False)

    @classmethod
    def from_os(cls) -> "Key":
        return cls("os", secrets.token_bytes(32))

    @classmethod
    def from_seed(cls, seed: int) -> "Key":
        """Anyone can recompute this key, so noise drawn with it hides nothing: for non-private runs and tests."""
        return cls("fixed", hashlib.blake2b(f"fixed key {seed}".encode(), digest_size=32).digest())

    @property
    def id(self) -> str:
        """Tells keys apart without giving one away."""
        return hashlib.blake2b(b"id", key=self.secret, digest_size=8).hexdigest()

    def keep(self, path: Path) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(self.secret)
            file.flush()
            os.fsync(file.fileno())

    @classmethod
    def kept(cls, path: Path, origin: str) -> "Key":
        return cls(origin, path.read_bytes())

    def stream(self, purpose: str, step: int) -> np.random.Generator:
        """AES-128 in counter mode: a cryptographic generator. BLAKE2b derives its key from (key, purpose, step)."""
        derived = hashlib.blake2b(f"{purpose}/{step}".encode(), key=self.secret, digest_size=16).digest()
        return np.random.Generator(AESCounter(key=int.from_bytes(derived, "little")))

    def by_record(self, purpose: str, step: int, records: NDArray[np.int64], numbers: int) -> NDArray[np.float64]:
        """(records, numbers) of [0, 1): for a record always the same, whoever else is asked for, at no cost in n."""
        stream, at = self.stream(purpose, step), 0
        bits: Any = stream.bit_generator  # AESCounter's, which goes to any place
        places, back = np.unique(records, return_inverse=True)
        drawn = np.empty((len(places), numbers))
        for row, begin in zip(drawn, places.tolist(), strict=True):
            bits.advance(begin * numbers - at)
            row[:], at = stream.random(numbers), (begin + 1) * numbers
        return drawn[back]
