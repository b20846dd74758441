"""The centre and the principal directions of public features, for a model of vectors (models/vectors.py)."""

import json
from pathlib import Path

import numpy as np
import torch

from stages.data import vectors as kept
from stages.data.manifest import Manifest
from stages.data.prepared import PreparedSplit
from stages.errors import UserError
from stages.models import vectors
from stages.models.families.vectors import Referred
from stages.models.kinds import VECTORS, config_folder


def aligned(entry: Referred, data: Path, at_once: int, device: torch.device) -> vectors.VectorEncoder:
    """With the first `directions` of them; the model folder says of which data."""
    directions = entry.directions
    if Manifest.read(data).ledger is not None:
        raise UserError(f"{data} is not declared public: the centre of a model for vectors is made of public features")
    rows = PreparedSplit(data, "train")
    if not kept.is_vector(rows.row(0).image):
        raise UserError(f"{data} has images; a model for vectors takes features (source: features)")
    X = np.stack([kept.read(rows.row(i).image) for i in range(rows.rows)]).astype(np.float64)
    centre, most = X.mean(axis=0), min(len(X) - 1, X.shape[1])
    if directions > most:
        raise UserError(f"directions: {directions} is over {most}, which {len(X)} vectors of {X.shape[1]} numbers have")
    _, _, V = np.linalg.svd(X - centre, full_matrices=False)
    config = json.loads((config_folder(entry.architecture) / VECTORS.config).read_text(encoding="utf-8"))
    config["reference"] = Manifest.read(data).source
    encoder = vectors.built(X.shape[1], directions, entry.classes or 0, config)
    encoder.model.centre.copy_(torch.from_numpy(centre))
    encoder.model.basis.copy_(torch.from_numpy(V[:directions].T.copy()))
    return encoder
