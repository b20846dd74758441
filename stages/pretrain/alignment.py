"""Projections for towers that have never met: what a text says is mapped to where the image tower would look for it.

The image tower's own classifier is public: for each of ImageNet's 1,000 classes a direction w_c in its feature space.
The text tower gives a vector t_c for the name of the class. A ridge regression M from t_c to w_c then predicts, for any
text, the direction that detects it, and  f M t  scores an image with features f against it. The classes of a labelled
public dataset join the regression with directions of their own (a ridge classifier on its features). The singular
value decomposition M = U S V^T splits it into the two projections, U sqrt(S) for images and V sqrt(S) for texts.

No image of ImageNet is needed, and there is nothing to iterate.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from stages.data.manifest import Manifest
from stages.data.prepared import PreparedSplit
from stages.errors import UserError
from stages.models import features, towers
from stages.models.encoder import WholeEncoder
from stages.models.families.open_clip import Towers
from stages.models.heads import projections

TEMPLATE = "a photo of a {}."  # for ImageNet's names
DATA_WEIGHT = 10.0  # of a class of the dataset beside one of ImageNet
CLASSIFIER_RIDGE = 0.1


@torch.no_grad()
def aligned(entry: Towers, data: Path, at_once: int, device: torch.device) -> WholeEncoder:
    architecture, ridge = Path(entry.architecture), entry.ridge
    labels = Manifest.read(data).labels
    if labels is None:
        raise UserError(f"{data} has no class labels; projections are aligned on labelled public data")
    clip = towers.create(architecture)
    names = imagenet_names()
    prompts = [TEMPLATE.replace("{}", name) for name in names]
    prompts += [labels.captions(i)[0] for i in range(len(labels.classes))]
    with tempfile.TemporaryDirectory() as folder:
        features.write(Path(folder), clip, data, "", at_once, device, splits=("train",), more_texts=prompts)
        found = features.Features(Path(folder))
        T = found.texts(prompts).double()
        directions = _classifier(
            np.load(Path(folder) / "train.npy", mmap_mode="r"), PreparedSplit(data, "train"), labels
        )
    own = towers.classifier(architecture).double()
    directions *= own.norm(dim=1).mean() / directions.norm(dim=1).mean()
    W = torch.cat([own, directions])
    weight = torch.ones(len(W), 1, dtype=torch.float64)
    weight[len(own) :] = DATA_WEIGHT
    M = _ridge((weight * T).T @ T, (weight * T).T @ W, ridge)  # (text, image)

    parameters = dict(clip.model.named_parameters())
    image, text = (parameters[name] for name in projections(parameters))  # Linear: (outputs, inputs)
    U, S, Vh = torch.linalg.svd(M, full_matrices=False)
    root = S[: len(image)].sqrt()[:, None]
    image.copy_(root * Vh[: len(image)])
    text.copy_(root * U[:, : len(text)].T)
    return clip


def imagenet_names() -> list[str]:
    """ImageNet's classes in order, by the first of their names."""
    from timm.data import ImageNetInfo

    info = ImageNetInfo()
    return [info.index_to_description(i).split(",")[0] for i in range(info.num_classes())]


def _classifier(features: np.ndarray, rows: PreparedSplit, labels) -> torch.Tensor:
    """(classes, d): ridge regression from features to one-hot labels."""
    X = torch.from_numpy(np.array(features)).double()
    X -= X.mean(dim=0)
    y = torch.tensor([rows.texts_and_label(i)[1] for i in range(rows.rows)])
    Y = F.one_hot(y, len(labels.classes)).double() - 1 / len(labels.classes)
    return _ridge(X.T @ X, X.T @ Y, CLASSIFIER_RIDGE).T


def _ridge(gram: torch.Tensor, target: torch.Tensor, strength: float) -> torch.Tensor:
    """`strength` is in units of the mean eigenvalue."""
    return torch.linalg.solve(
        gram + strength * gram.trace() / len(gram) * torch.eye(len(gram), dtype=gram.dtype), target
    )
