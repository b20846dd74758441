"""Equation (1) of the paper: -1/b sum_i log softmax_j(s_ij)_ii - 1/b sum_i log softmax_j(s_ji)_ii.

It is not a sum over records: every pair is in every term.
"""

import functools
from typing import TYPE_CHECKING

from stages.keys import PIECES_OF_A_WRITER
from stages.losses.base.loss import About, Loss, Objective, Parameters, Tensors, Trained, mean

if TYPE_CHECKING:
    import torch

    from stages.models.batches import Batch
    from stages.models.encoder import Encoder

PADDING = -1e9  # a similarity that no softmax sees; -inf would make NaN of a row that is all padding
OF_NO_TOWER = ("logit_scale", "logit_bias")
FIXED_TEXTS = 2**16  # features of texts that are kept when the text tower is not trained


class Contrastive(Loss):
    name = "contrastive"
    is_sum_over_records = False

    def unfit_part(self, part: str) -> str | None:
        if part in PIECES_OF_A_WRITER:
            return "is moved by writing alone; write the loss writing"
        return None

    def objective(self, encoder: "Encoder", trained: Trained, about: About) -> "PairsOfABatch":
        return PairsOfABatch(encoder, trained, about)


class PairsOfABatch(Objective):
    def __init__(self, encoder: "Encoder", trained: Trained, about: About):
        from stages.models.heads import factors_of
        from stages.models.parts import of_image

        self._model, self._tokenize = encoder.model, encoder.tokenize
        self._device = next(encoder.model.parameters()).device
        self._text_is_trained = any(not of_image(name) and name not in OF_NO_TOWER for name in trained)
        self._fixed_text = functools.lru_cache(maxsize=FIXED_TEXTS)(self._encode_fixed)
        self.factors = factors_of(encoder.model, trained)

    def _encode_fixed(self, text: str) -> "torch.Tensor":
        import torch

        with torch.no_grad():
            return self._model.encode_text(self._tokenize([text]).to(self._device), normalize=True)[0]

    def records(self, batch: "Batch") -> Tensors:
        import torch

        if self._text_is_trained:
            text = {"tokens": self._tokenize(batch.texts).to(self._device)}
        else:
            text = {"text": torch.stack([self._fixed_text(t) for t in batch.texts])}
        return {"images": batch.images.to(self._device, non_blocking=True), **text}

    def features(self, parameters: Parameters, records: Parameters, merge: bool) -> Tensors:
        """(b, d) each. Equal texts have equal features: merged, each distinct one is encoded once."""
        import torch

        from stages.models.encoder import encode

        tokens, index = records.get("tokens"), None
        if merge and tokens is not None:
            tokens, index = torch.unique(tokens, dim=0, return_inverse=True)
        image, text = encode(self._model, parameters, records["images"], tokens, self.bf16)
        if tokens is None:
            text = records["text"]
        return {"image": image, "text": text if index is None else text[index]}

    def loss(self, parameters: Parameters, features: Parameters, present: "torch.Tensor") -> "torch.Tensor":
        import torch
        import torch.nn.functional as F

        scale = parameters.get("logit_scale", self._model.logit_scale).exp()
        similarity = scale * features["image"] @ features["text"].T  # (b, b)
        own = torch.arange(len(similarity), device=similarity.device)
        hidden = torch.where(present, 0.0, PADDING)  # over the columns of both directions
        each = F.cross_entropy(similarity + hidden, own, reduction="none")
        return mean(each + F.cross_entropy(similarity.T + hidden, own, reduction="none"), present)


LOSS = Contrastive()
