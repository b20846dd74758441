"""SigLIP's loss (Zhai et al., 2023): every image with every text is a question of its own, do they belong together?

    -1/b sum_i sum_j log sigmoid(z_ij (t x_i y_j + b)),  z_ij = 1 for i = j and else -1

with t and b the model's logit_scale (its exponential) and logit_bias. Equal texts are not negatives of each other: such
a pair of i and j is left out. It is not a sum over records: a record is in a term with every other one, so one more
moves the gradient of the whole unit, and its sensitivity is that of the contrastive loss.
"""

import functools
import hashlib
from typing import TYPE_CHECKING

from stages.errors import UserError
from stages.losses.base.loss import About, Parameters, Tensors, Trained
from stages.losses.contrastive import FIXED_TEXTS, Contrastive, PairsOfABatch

if TYPE_CHECKING:
    import torch

    from stages.models.batches import Batch
    from stages.models.encoder import Encoder


class Sigmoid(Contrastive):
    name = "sigmoid"
    abilities = ("compares", "logit_bias")

    def reaches(self, tensor: str, about: About) -> bool:
        from stages.models.parts import LOGIT_BIAS

        return tensor == LOGIT_BIAS or super().reaches(tensor, about)

    def objective(self, encoder: "Encoder", trained: Trained, about: About) -> "EveryPair":
        if getattr(encoder.model, "logit_bias", None) is None:
            raise UserError("the loss sigmoid needs a model with a logit_bias, a SigLIP; for others write contrastive")
        return EveryPair(encoder, trained, about)


class EveryPair(PairsOfABatch):
    def __init__(self, encoder: "Encoder", trained: Trained, about: About):
        super().__init__(encoder, trained, about)
        self._identity = functools.lru_cache(maxsize=FIXED_TEXTS)(self._identify)

    def _identify(self, text: str) -> int:
        """Equal for texts that are the same to the model, on every process."""
        seen = self._tokenize([text])[0].cpu().numpy().tobytes()
        return int.from_bytes(hashlib.blake2b(seen, digest_size=8).digest(), "little", signed=True)

    def records(self, batch: "Batch") -> Tensors:
        import torch

        same = torch.tensor([self._identity(text) for text in batch.texts], device=self._device)
        return {**super().records(batch), "same": same}

    def features(self, parameters: Parameters, records: Parameters, merge: bool) -> Tensors:
        return {**super().features(parameters, records, merge), "same": records["same"]}

    def loss(self, parameters: Parameters, features: Parameters, present: "torch.Tensor") -> "torch.Tensor":
        import torch
        import torch.nn.functional as F

        scale = parameters.get("logit_scale", self._model.logit_scale).exp()
        logits = scale * features["image"] @ features["text"].T + parameters.get("logit_bias", self._model.logit_bias)
        own = torch.eye(len(logits), dtype=torch.bool, device=logits.device)  # (b, b)
        equal = features["same"][:, None] == features["same"][None]
        counted = present[:, None] & present[None] & (own | ~equal)
        each = -F.logsigmoid(torch.where(own, logits, -logits))
        return torch.where(counted, each, 0.0).sum() / present.sum()


LOSS = Sigmoid()
