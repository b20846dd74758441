"""A bank: public pairs of an image and a text beside a public model, as that model sees them. It is a model's folder
with two files more:

    bank.safetensors   image, text: (pairs, d) each, normalised features by the model as it is before any training
    bank.json          the public data they are of, and for each pair all texts of its image

Features are computed once, when the folder is made. Training reads them and never moves them.
"""

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from stages.data.manifest import Manifest
from stages.data.prepared import PreparedSplit
from stages.errors import UserError
from stages.models import saved

FEATURES, FACTS = "bank.safetensors", "bank.json"
AT_ONCE = 16  # pairs through the model together


@dataclass(frozen=True)
class Bank:
    image: torch.Tensor  # (pairs, d)
    text: torch.Tensor  # (pairs, d)
    texts: Sequence[Sequence[str]]  # of each pair, all texts of its image
    data: str  # the name of the public data
    sha256: str  # of features and texts

    @property
    def facts(self) -> dict[str, str | int]:
        """What a training says that it stood against; all of it is public."""
        return {"bank": self.data, "bank_pairs": len(self.texts), "bank_sha256": self.sha256}


def read(folder: Path) -> Bank:
    if not (folder / FACTS).is_file():
        raise UserError(f"no bank in {folder}: {FACTS} is missing; name the model in `banks`, and run: dvc repro")
    facts, features = json.loads((folder / FACTS).read_text(encoding="utf-8")), load_file(folder / FEATURES)
    digest = hashlib.sha256((folder / FEATURES).read_bytes() + (folder / FACTS).read_bytes())
    return Bank(features["image"], features["text"], facts["texts"], facts["data"], digest.hexdigest())


@torch.no_grad()
def write(folder: Path, model: Path, data: Path, pairs: int, device: torch.device) -> None:
    """Make a copy of the model in `folder` with a bank beside it: pairs from all over the training split of `data`."""
    manifest, split = Manifest.read(data), PreparedSplit(data, "train")
    if manifest.ledger is not None:
        raise UserError(f"{data} was prepared as private data, and a bank is public; declare it public: dvc repro")
    if pairs > split.units:
        raise UserError(f"a bank of {pairs} pairs was asked for, and {data} has {split.units}; lower `pairs`")
    shutil.copytree(model, folder, dirs_exist_ok=True)
    encoder = saved.load(model)
    encoder.model.to(device).eval()
    rows = [split.rows_of_unit(k * split.units // pairs)[0] for k in range(pairs)]
    texts = [list(split.texts_and_label(row)[0]) or [""] for row in rows]
    paired = [its[k % len(its)] for k, its in enumerate(texts)]  # of an image with several, one
    found: dict[str, list[torch.Tensor]] = {"image": [], "text": []}
    for start in range(0, pairs, AT_ONCE):
        some = slice(start, start + AT_ONCE)
        images = torch.stack([encoder.read(split.row(row).image) for row in rows[some]])
        tokens = encoder.tokenize(paired[some])
        found["image"].append(encoder.model.encode_image(images.to(device), normalize=True))
        found["text"].append(encoder.model.encode_text(tokens.to(device), normalize=True))
    save_file({name: torch.cat(parts).float().cpu() for name, parts in found.items()}, folder / FEATURES)
    facts = {"data": manifest.dataset, "data_sha256": manifest.data_hash, "texts": texts}
    (folder / FACTS).write_text(json.dumps(facts, ensure_ascii=False), encoding="utf-8")
