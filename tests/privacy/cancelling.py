"""Records on frozen features that cancel each other: a long gradient, of which a sum of inner products sees nothing.

Two images have the same features x, nearly all of which the projection W does not see: x W stays short, and x^T d is as
long as x. What their texts (or labels) ask of them, d and -d, adds up to zero. The third record's gradient, much longer
than the clip, is what is left; beside the terms that cancel it is below the last digit of float64.
"""

import numpy as np
import torch
from torch.nn.functional import normalize, pad

from stages.data.rows import Labels
from stages.losses import About, objective_of
from stages.models.batches import Batch
from stages.models.encoder import Encoder
from stages.models.heads import Heads
from stages.models.parts import trainable_parameters

SIZE, INPUTS, OUTPUTS = 3, 12, 4  # records of a unit; widths of the projections
NAMES = {"Parameter": ("visual.proj", "text_projection"), "Linear": ("visual.head.proj.weight", "text.proj.weight")}
CASES = [("image-projection", "contrastive"), ("projections", "contrastive"), ("image-projection", "prompts")]
CLASSES = Labels(classes=tuple("abc"), templates=("{}",))
TEXTS = normalize(torch.tensor([[1.0, 0.5, 0.0, 0.0], [1.0, -0.5, 0.0, 0.0], [-1.0, 0.0, 0.0, 0.0]]), dim=1)


def crafted(layout: str, part: str, loss: str, length: float):
    """Objective, parameters and the records of one unit; the features are about `length` times what W sees of them."""
    matrix = torch.eye(INPUTS)[:, :OUTPUTS]
    weights = [matrix.T.clone() if layout == "Linear" else matrix.clone() for _ in range(2)]
    parameters = {name: torch.nn.Parameter(w) for name, w in zip(NAMES[layout], weights, strict=True)}
    model = Heads(parameters | {"logit_scale": torch.nn.Parameter(torch.tensor(100.0).log())})
    texts = pad(TEXTS, (0, INPUTS - OUTPUTS))
    encoder = Encoder(model, lambda names: texts[["abc".index(name) for name in names]])
    trained = trainable_parameters(model, part)
    objective = objective_of(loss, encoder, trained, About(CLASSES))
    images = torch.zeros(SIZE, INPUTS)
    images[:2, 0], images[:2, OUTPUTS:], images[2, 3] = 1.0, length, 1.0
    return objective, trained, objective.records(Batch(images, list(CLASSES.classes), list(range(SIZE))))


def ordinary(records: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """As many others, which do not cancel."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: t if name == "labels" else normalize(torch.randn(t.shape, generator=generator), dim=1)
        for name, t in records.items()
    }


def together(*parts: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], np.ndarray]:
    """Records of several units, and the unit of each."""
    return {k: torch.cat([part[k] for part in parts]) for k in parts[0]}, np.repeat(np.arange(len(parts)), SIZE)
