"""How the processes of one training come to have one key, without sending it over the network as it is.

Processes may be on several machines, and gloo and nccl encrypt nothing: whoever listened would have the key, and with
it could subtract the noise from the released weights. So every process makes a key pair for this one message (X25519),
and the first encrypts the run's key to each of the others (ChaCha20-Poly1305). What was sent is of no use to whoever
listened, nor later: the pairs are gone. Not defended: someone who can change what processes send to each other. They
could take the place of one, which would be given the data's gradients too.
"""

import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from stages.distributed.ranks import Ranks

ONCE = bytes(12)  # a nonce; each key encrypts one message
SEALED = 32 + 16  # a key and its tag


def shared_secret(ranks: Ranks, secret: bytes | None) -> bytes:
    """The first process's `secret` on every process."""
    if ranks.is_first and secret is None:
        raise ValueError("the first process is the one that has the key")
    if ranks.world == 1 and secret is not None:
        return secret
    own = X25519PrivateKey.generate()
    tensors = ranks.from_all(_tensor(own.public_key().public_bytes_raw()))
    public = [bytes(key.tolist()) for key in tensors]
    sealed = torch.zeros(ranks.world, SEALED, dtype=torch.uint8)
    if ranks.is_first and secret is not None:
        for rank in range(1, ranks.world):
            sealed[rank] = _tensor(_cipher(own, public[rank], public[0] + public[rank]).encrypt(ONCE, secret, None))
    sealed = ranks.from_first(sealed.to(ranks.device))
    if ranks.is_first and secret is not None:
        return secret
    message = bytes(sealed[ranks.rank].tolist())
    return _cipher(own, public[0], public[0] + public[ranks.rank]).decrypt(ONCE, message, None)


def _cipher(own: X25519PrivateKey, other: bytes, between: bytes) -> ChaCha20Poly1305:
    agreed = own.exchange(X25519PublicKey.from_public_bytes(other))
    return ChaCha20Poly1305(HKDF(SHA256(), length=32, salt=None, info=b"dp-clip run key" + between).derive(agreed))


def _tensor(content: bytes) -> torch.Tensor:
    return torch.tensor(list(content), dtype=torch.uint8)
