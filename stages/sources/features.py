"""Features of your own: vectors that a CLIP made of images and texts elsewhere, where the images themselves stay.

    mine.npz        train_image (n, d), and train_label (n,) or train_text (n, d), the vectors of the texts, or both;
                    the same for test; optional train_unit and test_unit (the id of the person or place), and
                    class_text (classes, d), the public vectors of the class prompts
    mine/           the same arrays, each a .npy file
    mine.parquet    columns image, label, text, unit and split (train or test), a row per image

Without splits the names are image, label, text and unit, and `test_fraction` chooses test records, each by its own id.
That is `unit`, or else made of the vector itself: equal vectors are one record. Vectors are brought to length 1.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from stages.data import vectors
from stages.data.rows import SPLITS, Dataset, Labels, Row, in_space
from stages.errors import Private, Problem
from stages.sections import Axis, Fraction
from stages.sources import subset
from stages.sources.feature_files import arrays_in
from stages.sources.images import refuse
from stages.sources.source import QuickLook

if TYPE_CHECKING:
    import numpy as np

    from stages.sources.feature_files import Arrays

ONE_VECTOR = "one image's vector with all that belongs to it"
SHORTEST = 1e-6  # of a vector that has a direction


@dataclass(frozen=True)
class Split:
    image: "np.ndarray"  # (n, d), each of length 1
    units: list[str]
    label: "np.ndarray | None"
    text: "np.ndarray | None"

    def part(self, rows: "np.ndarray") -> "Split":
        label, text = (None if a is None else a[rows] for a in (self.label, self.text))
        return Split(self.image[rows], [self.units[i] for i in rows], label, text)


class Features(subset.Part):
    section: ClassVar[str] = "folders"

    source: Literal["features"]
    path: str
    classes: Axis[str] | None = None  # in the order of labels; by default class 0, class 1, ...
    test_fraction: Fraction | None = None  # where the data have no test split of their own
    licence: str = "not stated"
    id_space: str | None = None  # given: its units mean other records than equal ones of other data

    @property
    def origin(self):
        return Path(self.path).resolve()

    def quick_look(self):
        splits, _ = self._checked()
        return QuickLook(len(set(splits["train"].units)), has_labels=splits["train"].label is not None)

    def load(self):
        splits, labels = self._checked()
        source = f"features {self.path}" + subset.note(self.train_fraction, self.subset_seed)
        own = any(name.endswith("unit") for name in arrays_in(self.path))
        unit = "all rows with one value in `unit`" if own else ONE_VECTOR
        rows = {name: self._rows(split, labels) for name, split in splits.items()}
        return Dataset(source, self.licence, labels, rows["train"], rows["test"], unit)

    def _checked(self) -> tuple[dict[str, Split], Labels | None]:
        """Both splits and the classes, or all that is wrong with them in one error."""
        arrays = arrays_in(self.path)
        problems = shape_problems(arrays)
        refuse(self.path, problems)  # what follows would stumble over these
        problems += value_problems(arrays)
        classes, found = self._classes(arrays)
        problems += found
        splits = self._splits(arrays)
        for name in SPLITS:
            if name not in splits or not len(splits[name].image):
                problems.append(f"there is no {name} split; give {name}_image, a column `split`, or test_fraction")
        if not problems:
            both = {row.tobytes() for row in splits["train"].image} & {row.tobytes() for row in splits["test"].image}
            detail = f"{len(both)} vectors are in both splits"
            problems += [Private("vectors that are in both splits", detail, counted=False)] if both else []
        refuse(self.path, problems)
        return splits | {"train": self._part(splits["train"])}, classes

    def _splits(self, arrays: "Arrays") -> dict[str, Split]:
        import numpy as np

        if "image" not in arrays:
            return {name: _split(arrays, f"{name}_") for name in SPLITS if f"{name}_image" in arrays}
        whole = _split(arrays, "")
        if "split" in arrays:
            is_test = arrays["split"].astype(str) == "test"
        else:
            is_test = np.array([subset.position(unit) < (self.test_fraction or 0.0) for unit in whole.units])
        return {"train": whole.part(np.flatnonzero(~is_test)), "test": whole.part(np.flatnonzero(is_test))}

    def _part(self, train: Split) -> Split:
        import numpy as np

        kept = set(subset.taken(dict.fromkeys(train.units), self.train_fraction, self.subset_seed))
        subset.require_some(list(kept), "train_fraction", self.train_fraction)
        return train.part(np.array([i for i, unit in enumerate(train.units) if unit in kept]))

    def _classes(self, arrays: "Arrays") -> tuple[Labels | None, list[Problem]]:
        """Class names and their texts are public: from params, `class_text` or the labels of the public test split."""
        import numpy as np

        labels = [array for name, array in arrays.items() if name.endswith("label")]
        if not labels:
            return None, []
        texts = arrays.get("class_text")
        if self.classes is not None:
            names = self.classes
        elif texts is not None:
            names = [f"class {i}" for i in range(len(texts))]
        elif "test_label" in arrays and not self.private_test:
            names = [f"class {i}" for i in range(int(arrays["test_label"].max(initial=-1)) + 1)]
        else:
            return None, ["`classes` is missing: neither class_text nor a public test split says how many there are"]
        problems: list[Problem] = []
        if texts is not None and len(texts) != len(names):
            problems.append(f"class_text has {len(texts)} rows, `classes` {len(names)}; give a vector for each")
            texts = None
        beyond = sum(int(((array < 0) | (array >= len(names))).sum()) for array in labels)
        kind = f"labels that are none of 0 to {len(names) - 1} (list all classes in `classes` of params.yaml)"
        problems += [Private(kind, "a label that has no class")] * beyond
        width = next(array.shape[1] for name, array in arrays.items() if name.endswith("image"))
        said = np.zeros((len(names), width)) if texts is None else _of_length_one(texts)  # zero: nothing is said of it
        return Labels(classes=tuple(names), templates=("{}",), texts=tuple(map(vectors.as_text, said))), problems

    def _rows(self, split: Split, labels: Labels | None) -> Iterator[Row]:
        """Units together; equal vectors with one label are one row with all of their texts."""
        merged: dict[tuple, list[str]] = {}
        for i in sorted(range(len(split.units)), key=lambda i: split.units[i]):
            label = None if split.label is None else int(split.label[i])
            texts = merged.setdefault((split.units[i], vectors.written(split.image[i]), label), [])
            texts += [] if split.text is None else [vectors.as_text(split.text[i])]
        for (unit, image, label), own in merged.items():
            said = labels.captions(label) if labels is not None and label is not None and not own else tuple(own)
            yield Row(image, said, label, in_space(self.id_space, unit))


def shape_problems(arrays: "Arrays") -> list[Problem]:
    """What of the arrays cannot be read as vectors, labels and units of rows that belong together."""
    problems: list[Problem] = []
    for prefix in ("", "train_", "test_"):
        own = {name.removeprefix(prefix): a for name, a in arrays.items() if _prefix(name) == prefix}
        if not own:
            continue
        if "image" not in own:
            problems.append(f"{prefix}image is missing, the vectors of the images")
        if not {"label", "text"} & own.keys():
            problems.append(f"{prefix}label or {prefix}text is missing")
        if len({len(array) for array in own.values()}) > 1:
            counts = ", ".join(f"{prefix}{name} {len(array)}" for name, array in own.items())
            kind = f"{', '.join(prefix + name for name in own)} have unequal numbers of rows"
            problems.append(Private(kind, f"rows: {counts}", counted=False))
    for name, array in arrays.items():
        kind = name.rpartition("_")[2]
        if kind in ("image", "text") and (array.ndim != 2 or array.dtype.kind != "f" or not array.shape[1]):
            problems.append(f"{name}: floating-point numbers (rows, d) are expected; got {_described(array)}")
        if kind == "label" and (array.ndim != 1 or array.dtype.kind not in "iu"):
            problems.append(f"{name}: whole numbers (rows,) are expected; got {_described(array)}")
        if kind in ("unit", "split") and (array.ndim != 1 or array.dtype.kind not in "iuUSO"):
            problems.append(f"{name}: texts or whole numbers (rows,) are expected; got {_described(array)}")
    widths = {name: a.shape[1] for name, a in arrays.items() if name.endswith(("image", "text")) and a.ndim == 2}
    if len(set(widths.values())) > 1:
        said = ", ".join(f"{name} {width}" for name, width in widths.items())
        problems.append(f"all vectors must have as many numbers; got {said}")
    return problems


def value_problems(arrays: "Arrays") -> list[Problem]:
    import numpy as np

    problems: list[Problem] = []
    for name, array in arrays.items():
        if name.endswith(("image", "text")):
            finite = np.isfinite(array).all(axis=1)
            zero = finite & (_lengths(np.where(finite[:, None], array, 0.0)) < SHORTEST)
            for kind, wrong in (("with a number that is not finite", ~finite), ("of length zero", zero)):
                rows = np.flatnonzero(wrong).tolist()
                problems += [Private(f"vectors of {name} {kind}", f"{name}, row {row}: {kind}") for row in rows]
        if name.endswith("unit"):
            problems += [
                Private(f"rows of {name} that are empty", f"{name}, row {row}: empty")
                for row in np.flatnonzero([not str(unit).strip() for unit in _plain(array)]).tolist()
            ]
    if "split" in arrays:
        wrong = [row for row, name in enumerate(arrays["split"].astype(str)) if name not in SPLITS]
        problems += [Private("rows whose split is neither train nor test", f"split, row {row}") for row in wrong]
    return problems


def _split(arrays: "Arrays", prefix: str) -> Split:
    image = _of_length_one(arrays[f"{prefix}image"])
    text = arrays.get(f"{prefix}text")
    stated = arrays.get(f"{prefix}unit")
    units = [f"vector {hashlib.blake2b(row.tobytes(), digest_size=16).hexdigest()}" for row in image]
    units = units if stated is None else [str(unit) for unit in _plain(stated)]
    return Split(image, units, arrays.get(f"{prefix}label"), None if text is None else _of_length_one(text))


def _of_length_one(array: "np.ndarray") -> "np.ndarray":
    import numpy as np

    with np.errstate(invalid="ignore", divide="ignore"):  # what is not finite is reported
        return (array / _lengths(array)[:, None]).astype("<f4")


def _lengths(array: "np.ndarray") -> "np.ndarray":
    """In float64, each row by itself: the same for a vector whoever stands beside it."""
    import numpy as np

    return np.sqrt(np.square(array, dtype=np.float64).sum(axis=1))


def _plain(units: "np.ndarray") -> list:
    return [unit.decode(errors="replace") if isinstance(unit, bytes) else unit for unit in units.tolist()]


def _prefix(name: str) -> str | None:
    if name == "class_text":
        return None
    return next((f"{split}_" for split in SPLITS if name.startswith(f"{split}_")), "")


def _described(array: "np.ndarray") -> str:
    return f"{array.ndim} dimension(s) of {array.dtype}"
