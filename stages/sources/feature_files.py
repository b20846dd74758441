"""Files with features: arrays by name, from .npz, a folder of .npy, or Parquet. No file may hold Python objects."""

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING

from stages.data.rows import SPLITS
from stages.errors import Private, UserError, unusable

if TYPE_CHECKING:
    import numpy as np

    Arrays = dict[str, np.ndarray]

KINDS = ("image", "label", "text", "unit")
KNOWN = ("class_text", "split", *KINDS, *(f"{split}_{kind}" for split in SPLITS for kind in KINDS))


def arrays_in(path: str) -> "Arrays":
    """Read once for a state of the file: params.yaml is checked before every stage."""
    where = Path(path)
    if not where.exists():
        raise UserError(f"{path!r} does not exist; give a .npz or .parquet file, or a folder with .npy files")
    files = sorted(where.glob("*.npy")) if where.is_dir() else [where]
    state = tuple((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files)
    return _read(os.path.abspath(path), state)


@functools.lru_cache(maxsize=4)
def _read(path: str, state: tuple) -> "Arrays":
    where = Path(path)
    try:
        found = _folder(where) if where.is_dir() else _table(where) if where.suffix == ".parquet" else _npz(where)
    except UserError:
        raise
    except Exception as error:  # of a damaged file zip, numpy and Arrow raise whatever they run into
        said = "cannot be read as a .npz or .parquet file, or a folder with .npy files, without Python objects in it"
        raise unusable(f"{path} {said}", str(error)) from None
    names = [name for name in found if name not in KNOWN]
    if names:
        known = f"known: {', '.join(KNOWN)}"
        wrong = [Private(f"arrays of an unknown name ({known})", f"{name!r} is unknown; {known}") for name in names]
        raise UserError(f"{path} has {len(names)} problem(s):", wrong)
    if not found:
        raise UserError(f"{path} holds no array; known: {', '.join(KNOWN)}")
    return found


def _npz(path: Path) -> "Arrays":
    import numpy as np

    with np.load(path, allow_pickle=False) as file:
        if isinstance(file, np.ndarray):
            raise ValueError("one array alone")
        return {name: file[name] for name in file.files}


def _folder(path: Path) -> "Arrays":
    import numpy as np

    return {file.stem: np.load(file, mmap_mode="r", allow_pickle=False) for file in sorted(path.glob("*.npy"))}


def _table(path: Path) -> "Arrays":
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    found, table = {}, pq.read_table(path)
    for name in table.column_names:
        column = table[name].combine_chunks()
        if pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type):
            if column.null_count or column.flatten().null_count:
                raise ValueError(f"column {name} has rows without a value")
            lengths = set(np.diff(column.offsets)) if pa.types.is_list(column.type) else {column.type.list_size}
            if len(lengths) != 1:
                raise ValueError(f"column {name} has vectors of unequal length")
            found[name] = column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), -1)
        elif column.null_count:
            raise ValueError(f"column {name} has rows without a value")
        else:
            found[name] = column.to_numpy(zero_copy_only=False)
    return found
