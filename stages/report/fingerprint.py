"""A name for the private data that may be published.

The plain hash of the data must not leave the machine: whoever knows all records but one could try candidates for the
last one until the hash fits, which no noise in the training would hide. What is published is the hash under a secret
key that stays in this folder: equal data have equal fingerprints here, and say nothing elsewhere.
"""

import hashlib
import os
import secrets
from pathlib import Path

KEY_FILE = Path(".fingerprint-key")


def fingerprint(data_hash: str) -> str:
    return hashlib.blake2b(data_hash.encode(), key=_key(), digest_size=12).hexdigest()


def _key() -> bytes:
    """The folder's key, made at first use; two processes that make it at once agree on one."""
    if not KEY_FILE.is_file():
        temporary = KEY_FILE.with_suffix(f".{secrets.token_hex(4)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(32))
        try:
            os.link(temporary, KEY_FILE)
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
    return KEY_FILE.read_bytes()
