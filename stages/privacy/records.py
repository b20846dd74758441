"""Who is in a dataset, as the ledger knows them: keyed digests of records, whatever dataset they are in.

A record (privacy unit) is known by the digest of its id, and by that of each of its images. Two datasets share a record
if they share a digest: versions with some records more, less or changed, subsets, renamed copies (their images are the
same) and images that were encoded again (their ids are the same) are all seen to overlap. Digests have 56 bits: for
two unrelated sets of ten million records the chance that any two of them meet is below 1%, and such a meeting makes the
total larger, never smaller. Not seen: an image that was encoded again AND given another id, with no `unit` column.

What a record is may change between datasets: images that were charged one by one may all be of one patient in the next.
A run on the first is then a run on several records of the second's one, which its epsilon does not cover. Where a
record has more images in a set than any record of that set, this is so for sure, and nothing is trained (ledger.py).

The key of the digests is that of the ledger (secret.py). Without it they cannot be compared with a guess.

    data/NAME/records.npy      (digest, number of the record) of the private training split, made by `prepare`
    ledger/records/ID.parquet  the digests alone, once for every version of the data: 9 bytes a record with one image
"""

import hashlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from stages.atomic import new_file
from stages.errors import UserError
from stages.privacy import secret

FILE = "records.npy"
BYTES = 7  # of a digest
IMAGE = 1  # the bit that tells a digest of an image from one of an id
Digests = NDArray[np.uint64]
ROW = np.dtype([("digest", "<u8"), ("record", "<u4")])


class Recorder:
    """Takes the rows of a split, record by record, and keeps their digests."""

    def __init__(self) -> None:
        self._key, self._digests, self._records, self._count = secret.key(), array("Q"), array("I"), -1

    def record(self, id: str) -> None:
        self._count += 1
        self._add("id", id.encode())

    def image(self, content: bytes) -> None:
        self._add("image", content)

    def _add(self, kind: str, content: bytes) -> None:
        digest = hashlib.blake2b(kind.encode() + b"\0" + content, key=self._key, digest_size=BYTES).digest()
        self._digests.append(int.from_bytes(digest, "little") & ~IMAGE | (IMAGE if kind == "image" else 0))
        self._records.append(self._count)

    def save(self, path: Path) -> None:
        rows = np.empty(len(self._digests), ROW)
        rows["digest"], rows["record"] = self._digests, self._records
        np.save(path, rows)


@dataclass(frozen=True, eq=False)
class Records:
    digests: Digests
    record: NDArray[np.integer[Any]]  # the number of the record that each digest is of; they increase

    @classmethod
    def read(cls, folder: Path) -> "Records":
        if not (folder / FILE).is_file():
            raise UserError(f"no {FILE} in {folder}; prepare the data again: python -m stages.prepare --dataset ...")
        rows = np.load(folder / FILE)
        return cls(rows["digest"].copy(), rows["record"].copy())

    @classmethod
    def of(cls, digests: Iterable[int]) -> "Records":
        """Records with one digest each."""
        found = np.fromiter(digests, np.uint64)
        return cls(found, np.arange(len(found)))

    @property
    def count(self) -> int:
        return int(self.record[-1]) + 1 if len(self.record) else 0

    @property
    def id(self) -> str:
        """Equal for equal sets."""
        return hashlib.blake2b(self.as_set().tobytes(), digest_size=16).hexdigest()

    @property
    def images(self) -> int:
        """The most that a record has."""
        return self._most(np.ones(len(self.digests), bool))

    def images_among(self, known: Digests) -> int:
        """The most images of one record that are in `known`."""
        return self._most(self._are_in(known))

    def _most(self, chosen: NDArray[np.bool_]) -> int:
        images = chosen & (self.digests & np.uint64(IMAGE) > 0)
        return int(np.bincount(self.record[images]).max(initial=0))

    def as_set(self) -> Digests:
        unique: Digests = np.unique(self.digests)
        return unique

    def among(self, known: Digests) -> NDArray[np.bool_]:
        """For every record, whether a digest of it is in `known`, which is sorted."""
        flags = np.zeros(self.count, bool)
        flags[self.record[self._are_in(known)]] = True
        return flags

    def _are_in(self, known: Digests) -> NDArray[np.bool_]:
        place = np.searchsorted(known, self.digests)
        there = place < len(known)
        there[there] = known[place[there]] == self.digests[there]
        return there

    def memberships(self, sets: dict[str, Digests]) -> set[frozenset[str]]:
        """In which of `sets` the records are: each combination that a record has, and no part of another one."""
        kinds: list[frozenset[str]] = [frozenset()]
        kind = np.zeros(self.count, np.int64)
        for name, known in sets.items():
            pairs, kind = np.unique(2 * kind + self.among(known), return_inverse=True)
            kinds = [kinds[pair // 2] | ({name} if pair % 2 else set()) for pair in pairs]
        return {each for each in kinds if not any(each < other for other in kinds)}


def keep(records: Records, folder: Path) -> str:
    """Write the set of digests, if it is not there; returns its id. Sorted, only the differences are large numbers."""
    path = folder / f"{records.id}.parquet"
    if not path.is_file():
        differences = np.diff(records.as_set(), prepend=np.uint64(0)).view(np.int64)
        with new_file(path) as temporary:
            pq.write_table(
                pa.table({"difference": differences}),
                temporary,
                compression="zstd",
                use_dictionary=False,
                write_statistics=False,
                column_encoding={"difference": "BYTE_STREAM_SPLIT"},
            )
    return path.stem


def kept(id: str, folder: Path) -> Digests:
    """The digests of a set, sorted. One that is missing or is not what was written is refused."""
    path = folder / f"{id}.parquet"
    try:
        differences = pq.read_table(path)["difference"].to_numpy().view(np.uint64)
    except (OSError, pa.ArrowException, KeyError) as error:
        raise UserError(
            f"the privacy ledger is damaged: {path} cannot be read ({error}); restore it from a backup"
        ) from None
    digests = np.cumsum(differences, dtype=np.uint64)
    if hashlib.blake2b(digests.tobytes(), digest_size=16).hexdigest() != id:
        raise UserError(f"the privacy ledger is damaged: {path} is not what was written; restore it from a backup")
    return digests
