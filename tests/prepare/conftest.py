import contextlib
import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from stages.data.prepared import PreparedSplit


@contextlib.contextmanager
def without_internet() -> Iterator[None]:
    """No host is found, as where only package registries are reached; the programs we start are not affected."""

    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", unknown)
        yield


@pytest.fixture
def offline() -> Iterator[None]:
    with without_internet():
        yield


def counts(folder: Path, split: str) -> list[int]:
    labels = pa.ipc.open_file(pa.memory_map(str(folder / f"{split}.arrow"))).read_all()["label"].to_pylist()
    counted = Counter(labels)
    return [counted[label] for label in range(max(counted) + 1)]


def pixels(folder: Path, split: str, index: int) -> np.ndarray:
    return np.asarray(PreparedSplit(folder, split).row(index).pixels())
