"""Losses of a batch, in two parts: the features of each record, and the loss of all of them (privacy/gradients.py).

Both are pure functions of the trained parameters, so that a backward pass can be vmapped over clip units.
"""

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch.func import functional_call

from stages.data.rows import Labels
from stages.errors import UserError
from stages.models.batches import Batch
from stages.models.encoder import Encoder
from stages.models.parts import of_image
from stages.models.prompts import class_features
from stages.privacy.factored import Factor

torch.backends.mha.set_fastpath_enabled(False)  # attention that knows no autocast on a CPU, and no gradient

PADDING = -1e9  # a similarity that no softmax sees; -inf would make NaN of a row that is all padding
FIXED_TEXTS = 2**16  # features of texts that are kept when the text tower is not trained


class Contrastive:
    """Equation (1) of the paper: -1/b sum_i log softmax_j(s_ij)_ii - 1/b sum_i log softmax_j(s_ji)_ii.

    It is not a sum over records: every pair is in every term.
    """

    is_sum_over_records = False
    bf16 = one_by_one = False

    def __init__(self, encoder: Encoder, trained: dict[str, torch.nn.Parameter], labels: Labels | None = None):
        self._model, self._tokenize = encoder.model, encoder.tokenize
        self._device = next(encoder.model.parameters()).device
        self._text_is_trained = any(not of_image(name) and name != "logit_scale" for name in trained)
        self._fixed_text = functools.lru_cache(maxsize=FIXED_TEXTS)(self._encode_fixed)
        self.factors = _factors(encoder, trained)

    @torch.no_grad()
    def _encode_fixed(self, text: str) -> torch.Tensor:
        return self._model.encode_text(self._tokenize([text]).to(self._device), normalize=True)[0]

    def records(self, batch: Batch) -> dict[str, torch.Tensor]:
        if self._text_is_trained:
            text = {"tokens": self._tokenize(batch.texts).to(self._device)}
        else:
            text = {"text": torch.stack([self._fixed_text(t) for t in batch.texts])}
        return {"images": batch.images.to(self._device), **text}

    def features(self, parameters, records, merge: bool) -> dict[str, torch.Tensor]:
        """(b, d) each. Equal texts have equal features: merged, each distinct one is encoded once."""
        tokens, index = records.get("tokens"), None
        if merge and tokens is not None:
            tokens, index = torch.unique(tokens, dim=0, return_inverse=True)
        image, text = _encode(self._model, parameters, records["images"], tokens, self.bf16)
        if tokens is None:
            text = records["text"]
        return {"image": image, "text": text if index is None else text[index]}

    def loss(self, parameters, features, present) -> torch.Tensor:
        scale = parameters.get("logit_scale", self._model.logit_scale).exp()
        similarity = scale * features["image"] @ features["text"].T  # (b, b)
        own = torch.arange(len(similarity), device=similarity.device)
        hidden = torch.where(present, 0.0, PADDING)  # over the columns of both directions
        each = F.cross_entropy(similarity + hidden, own, reduction="none")
        each = each + F.cross_entropy(similarity.T + hidden, own, reduction="none")
        return torch.where(present, each, 0.0).sum() / present.sum()


class PromptSoftmax:
    """Each image's softmax against the fixed class prompts: the mean over records of a term of its own.

    The prompts are those of the public initial weights and stay as they are, so the text tower must not be trained.
    """

    is_sum_over_records = True
    bf16 = one_by_one = False

    def __init__(self, encoder: Encoder, trained: dict[str, torch.nn.Parameter], labels: Labels | None):
        if labels is None:
            raise UserError("the loss prompts needs class labels, and this dataset has none; use the loss contrastive")
        if others := [name for name in trained if not of_image(name)]:
            raise UserError(
                f"the loss prompts stands against fixed prompts, and {others[0]} is trained too; "
                "set trainable to image-tower or image-projection"
            )
        self._model = encoder.model
        self._device = next(encoder.model.parameters()).device
        scale = encoder.model.logit_scale.exp().detach()
        self._classes = scale * class_features(encoder, labels, self._device)  # (classes, d)
        self.factors = _factors(encoder, trained)

    def records(self, batch: Batch) -> dict[str, torch.Tensor]:
        return {"images": batch.images.to(self._device), "labels": torch.tensor(batch.labels, device=self._device)}

    def features(self, parameters, records, merge: bool) -> dict[str, torch.Tensor]:
        image, _ = _encode(self._model, parameters, records["images"], None, self.bf16)
        return {"image": image, "labels": records["labels"]}

    def loss(self, parameters, features, present) -> torch.Tensor:
        each = F.cross_entropy(features["image"] @ self._classes.T, features["labels"], reduction="none")
        return torch.where(present, each, 0.0).sum() / present.sum()


def _encode(model, parameters, images, tokens, bf16: bool) -> tuple[torch.Tensor, Any]:  # None without tokens
    """Normalised features with these parameters in place of the model's; open_clip answers in two ways.

    In bf16 only the towers' products are; parameters, gradients and all that follows stay in float32.
    """
    with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=bf16):
        answer = functional_call(model, dict(parameters), (images, tokens))
    image, text = (answer["image_features"], answer.get("text_features")) if isinstance(answer, dict) else answer[:2]
    return image.float(), None if text is None else text.float()


def _factors(encoder: Encoder, trained: dict[str, torch.nn.Parameter]) -> dict[str, Factor] | None:
    """Where all that is trained are projections on frozen towers: see privacy/factored.py."""
    known = getattr(encoder.model, "factors", {})
    return {name: known[name] for name in trained} if known.keys() >= trained.keys() else None


OBJECTIVES: dict[str, type[Contrastive] | type[PromptSoftmax]] = {"contrastive": Contrastive, "prompts": PromptSoftmax}


def objective_of(
    loss: str,
    encoder: Encoder,
    trained: dict[str, torch.nn.Parameter],
    labels: Labels | None,
    bf16: bool = False,
    one_by_one: bool = False,
):
    """`one_by_one`: vmap cannot take the model, because it is checkpointed or compiled; nor can it in bf16."""
    objective = OBJECTIVES[loss](encoder, trained, labels)
    objective.bf16, objective.one_by_one = bf16, one_by_one or bf16
    return objective
