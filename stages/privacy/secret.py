"""The folder of the privacy ledger, and the secret key in it.

The key makes names for private things that say nothing to whoever does not have it: the records that a charge is for
(records.py), the data that a published model was trained on. A plain hash would not do: whoever knows all records but
one could try candidates for the last one until it fits, which no noise in a training would hide.

The key also is the ledger's identity. Prepared data name the ledger that they belong to, and no private training on
them is charged to another one: a copy of the project that does not find their ledger trains nothing.

The folder is LEDGER_DIR, or `ledger` in the working copy that all others belong to (stages/home.py). It is made with
the first data that are prepared. Whoever has the key can test guesses about single records: it stays with the data.
"""

import hashlib
import os
import secrets
from pathlib import Path

from stages.errors import UserError
from stages.home import home

KEY = "key"  # the file


def folder() -> Path:
    given = os.environ.get("LEDGER_DIR")
    if given and not Path(given).is_absolute():
        raise UserError(f"LEDGER_DIR is {given!r}; give the whole path of a folder: copies of the project share it")
    return Path(given) if given else home() / "ledger"


def key() -> bytes:
    """The ledger's key, made at first use; two processes that make it at once agree on one."""
    path = folder() / KEY
    if not path.is_file():
        _make(path)
    return path.read_bytes()


def identity() -> str:
    return keyed("identity", size=16)


def keyed(purpose: str, content: bytes = b"", size: int = 12) -> str:
    """A name for `content`, in hexadecimal digits."""
    return hashlib.blake2b(purpose.encode() + b"\0" + content, key=key(), digest_size=size).hexdigest()


def digest_of(folder: Path) -> str:
    """A name for the content of a folder's files."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return keyed("folder", digest.digest(), size=16)


def require(ledger: str | None, data: str) -> None:
    """Refuse data that belong to another ledger than the one that is found from here."""
    path = folder() / KEY
    if ledger is None:
        raise UserError(
            f"{data} was prepared for no ledger: it is declared public, and nothing private is trained on it"
        )
    if not path.is_file() or identity() != ledger:
        raise UserError(
            f"{data} belongs to a privacy ledger that is not in {path.parent}, so what was already spent on its "
            "records is not known here. Nothing was trained. Set LEDGER_DIR to the folder of that ledger, or bring the "
            f"folder back from a backup. Only if nothing was ever trained on these records, prepare them for this one: "
            f"dvc repro --force --single-item prepare@{Path(data).name} (or prepare-folder@..., as dvc stage list says)"
        )


def _make(path: Path) -> None:
    if (path.parent / "charges.jsonl").exists():
        raise UserError(f"the privacy ledger in {path.parent} has charges and no key: bring {path} back from a backup")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".tmp-{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_bytes(32))
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(temporary, path)  # whole or not at all, and the first one wins
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
