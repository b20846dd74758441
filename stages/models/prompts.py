"""Class names as CLIP sees them, the mean feature of a class's prompts, and how well images fit them."""

from typing import Any

import torch
import torch.nn.functional as F

from stages.data.rows import Labels
from stages.models.encoder import Encoder


@torch.no_grad()
def class_features(clip: Encoder, labels: Labels, device: torch.device) -> torch.Tensor:
    """(classes, d): the normalised mean of each class's normalised prompt features."""
    features = []
    for label in range(len(labels.classes)):
        prompts = clip.model.encode_text(clip.tokenize(list(labels.captions(label))).to(device), normalize=True)
        features.append(F.normalize(prompts.mean(dim=0), dim=0))
    return torch.stack(features)


def class_scores(model: Any, images: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    """(b, classes): the similarity of each image with each class; a linear probe, where there is one, adds its own."""
    similarity = model.encode_image(images, normalize=True) @ classes.T
    added = model.probed(images, len(classes)) if hasattr(model, "probed") else None
    return similarity if added is None else similarity + added / model.logit_scale.exp()
