"""Keys, and the random streams they open (privacy.md section 4).

A key is 256 secret bits from the operating system. The stream for (purpose, step) is a pure function of the key, so a
step that is run again draws the same sample and the same noise instead of a second, fresh one. Whoever knows the key
can subtract the noise: it is never written to an output, a log or a parameter.

    >>> key = Key.from_seed(7)
    >>> key.stream("noise", 3).standard_normal(2) == key.stream("noise", 3).standard_normal(2)
    array([ True,  True])
    >>> key
    Key(origin='fixed')
"""

import hashlib
import secrets
from dataclasses import dataclass, field

import numpy as np
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

    def stream(self, purpose: str, step: int) -> np.random.Generator:
        """AES-128 in counter mode: a cryptographic generator. BLAKE2b derives its key from (key, purpose, step)."""
        derived = hashlib.blake2b(f"{purpose}/{step}".encode(), key=self.secret, digest_size=16).digest()
        return np.random.Generator(AESCounter(key=int.from_bytes(derived, "little")))
