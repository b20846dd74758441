"""Tensors of a TorchScript archive, read as data: OpenAI released CLIP in such archives.

torch.jit.load would do, and would run whatever an archive's classes do when they are loaded. Here its classes are empty
shells that hold attributes, and the few functions that put tensors together are the only ones that can be named.
"""

import collections
import io
import pickle  # only below, with every name that it may find listed
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

DTYPES = {
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "DoubleStorage": torch.float64,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "BoolStorage": torch.bool,
}


class Shell:
    """In place of a module's class."""


def _tensor(storage: torch.Tensor, offset: int, size: tuple, stride: tuple, *_) -> torch.Tensor:
    return storage.as_strided(size, stride, offset)


KNOWN = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("collections", "OrderedDict"): collections.OrderedDict,
    **{("torch", name): dtype for name, dtype in DTYPES.items()},
    **{("torch.jit._pickle", f"build_{kind}list"): list for kind in ("int", "double", "bool", "tensor")},
    ("torch.jit._pickle", "restore_type_tag"): lambda value, tag: value,
}


def is_archive(file: Path) -> bool:
    try:
        return _opened(file).has_record("constants.pkl")
    except RuntimeError:
        return False


def tensors(file: Path) -> dict[str, torch.Tensor]:
    """Parameters, buffers and other tensors by their names in the model."""
    return dict(_named(_Reader(_opened(file)).load()))


def _opened(file: Path) -> Any:
    return torch._C.PyTorchFileReader(str(file))  # torch's own types leave half of it out


class _Reader(pickle.Unpickler):
    def __init__(self, archive: Any):
        super().__init__(io.BytesIO(archive.get_record("data.pkl")))
        self._archive = archive

    def find_class(self, module: str, name: str) -> object:
        if module.split(".")[0] == "__torch__":
            return Shell
        if (module, name) not in KNOWN:
            raise ValueError(f"it names {module}.{name}, which is not part of any weights")
        return KNOWN[module, name]

    def persistent_load(self, saved: tuple) -> torch.Tensor:
        """A storage, as the one-dimensional tensor of its numbers."""
        _, dtype, key, _, count = saved
        size = count * torch.empty(0, dtype=dtype).element_size()
        storage = self._archive.get_storage_from_record(f"data/{key}", size, torch.UntypedStorage)
        return torch.empty(0, dtype=dtype).set_(storage._typed_storage()._untyped_storage)


def _named(shell: Shell, prefix: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in vars(shell).items():
        if isinstance(value, torch.Tensor):
            yield prefix + name, value
        elif isinstance(value, Shell):
            yield from _named(value, f"{prefix}{name}.")
