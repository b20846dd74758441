"""Class names as CLIP sees them: the mean feature of a class's prompts."""

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
