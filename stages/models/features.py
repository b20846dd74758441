"""Outputs of frozen towers, computed once for a (dataset, model): features/DATASET/MODEL.

    train.npy, test.npy     what goes into the image projection, one row a row of the prepared split; memory-mapped
    texts.npy, texts.json   what goes into the text projection, one row a distinct text

`features.json` says of which data and which model they are: training on features of other data would be charged to the
wrong ledger. Where every method trains a tower nothing is computed, and it says that. They are as private as the data.
"""

import functools
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from stages import progress
from stages.data.manifest import Manifest
from stages.data.prepared import SPLITS, PreparedSplit
from stages.errors import UserError
from stages.models.batches import Images
from stages.models.encoder import Encoder, WholeEncoder
from stages.models.heads import Heads, trunks
from stages.privacy.places import alike

logger = logging.getLogger(__name__)
FACTS = "features.json"
FITS_A_CACHE = 16  # images; on a CPU larger batches are slower


class Features:
    def __init__(self, folder: Path):
        if not (folder / FACTS).is_file():
            raise UserError(f"no features in {folder}; run: dvc repro")
        self._folder = folder
        self._facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))

    @property
    def exist(self) -> bool:
        return self._facts is not None

    def require(self, data_hash: str, model_hash: str) -> None:
        """Refuse features that were made of anything else."""
        if self._facts != {"data": data_hash, "model": model_hash}:
            what = "of other data or another model" if self.exist else "none: they were not wanted when it was made"
            raise UserError(f"the features in {self._folder} are {what}; run: dvc repro")

    def images(self, split: str) -> Images:
        features = np.load(self._folder / f"{split}.npy", mmap_mode="r")
        return lambda rows: torch.from_numpy(features[np.asarray(rows)])

    def encoder(self, parameters: Mapping[str, torch.nn.Parameter]) -> Encoder:
        """The CLIP without its towers: it takes features in place of images, and finds those of a text by itself."""
        return Encoder(Heads(parameters), self.texts)

    def texts(self, texts: list[str]) -> torch.Tensor:
        """(texts, d); a KeyError for one that is not in the dataset."""
        where, rows = self._texts
        return torch.from_numpy(rows[[where[text] for text in texts]])

    @functools.cached_property
    def _texts(self) -> tuple[dict[str, int], np.ndarray]:
        known = json.loads((self._folder / "texts.json").read_text(encoding="utf-8"))
        return {text: i for i, text in enumerate(known)}, np.load(self._folder / "texts.npy", mmap_mode="r")


@torch.no_grad()
def write(
    folder: Path,
    clip: WholeEncoder,
    data: Path,
    model_hash: str,
    at_once: int,
    device: torch.device,
    splits: tuple[str, ...] = SPLITS,
    more_texts: Iterable[str] = (),
) -> None:
    """Encode the splits and every text of them and of the classes; one batch is in memory at a time."""
    manifest = Manifest.read(data)
    labels, batch_size = manifest.labels, min(at_once, FITS_A_CACHE) if device.type == "cpu" else at_once
    clip.model.to(device, memory_format=torch.channels_last).eval()  # convolutions are faster this way on a CPU
    texts = set(more_texts)
    if labels:
        texts.update(text for i in range(len(labels.classes)) for text in labels.captions(i))
    with trunks(clip.model) as model:
        for split in splits:
            rows = PreparedSplit(data, split)

            def pixels(batch: Iterable[int], rows=rows) -> torch.Tensor:
                images = torch.stack([clip.read(rows.row(i).image) for i in batch])
                layout = torch.channels_last if images.ndim == 4 else torch.preserve_format
                return model.encode_image(images.to(device, memory_format=layout))

            _write_rows(folder / f"{split}.npy", range(rows.rows), pixels, batch_size, f"encode {split}")
            for i in range(rows.rows):
                texts.update(rows.texts_and_label(i)[0])
        in_order = sorted(texts)

        def words(batch: list[str]) -> torch.Tensor:
            return model.encode_text(clip.tokenize(batch).to(device))

        _write_rows(folder / "texts.npy", in_order, words, batch_size, "encode texts")
    (folder / "texts.json").write_text(json.dumps(in_order, ensure_ascii=False), encoding="utf-8")
    (folder / FACTS).write_text(json.dumps({"data": manifest.data_hash, "model": model_hash}), encoding="utf-8")


def write_none(folder: Path) -> None:
    (folder / FACTS).write_text(json.dumps(None), encoding="utf-8")


def _write_rows(path: Path, items: Sequence, encode: Callable, batch_size: int, what: str) -> None:
    """All batches have one size, the last one filled up: in a batch of another size the last digits would differ.

    So the features of a record are a function of that record alone, to the last digit, wherever it stands and whoever
    stands beside it. If they moved with its neighbours, one more record would move the gradients of all others. Where
    the processor makes different features of copies of one record (privacy/places.py), each goes by itself.
    """
    out = None
    if items and not alike(encode([items[0]] * batch_size)):
        logger.warning("%s: this processor rounds by the place in a batch, so records go one by one: slower", what)
        batch_size = 1
    for start in progress.bar(range(0, len(items), batch_size), what, "batches"):
        batch = list(items[start : start + batch_size])
        rows = encode(batch + batch[:1] * (batch_size - len(batch)))[: len(batch)].float().cpu().numpy()
        if out is None:
            out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(len(items), rows.shape[1]))
        out[start : start + len(rows)] = rows
    if out is None:
        raise ValueError(f"{what}: there is nothing to encode")
    out.flush()
