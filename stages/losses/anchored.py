"""A record's pair against a fixed bank of public pairs, in both directions: the mean over records of a term of its own.

    -log softmax of its text, for its image, among {its text, the texts of the bank}
    -log softmax of its image, for its text, among {its image, the images of the bank}

It is for pairs without classes, what `prompts` is for images with them. No other record is in the term, so each record
can be clipped on its own, with half the sensitivity of the contrastive loss.

Features of the bank (stages/models/bank.py) are those of the public initial model, and stay so if both towers are
trained: they are constants. A pair of the bank that has the record's text among its own is no wrong choice, and is left
out of both.
"""

from collections import defaultdict
from typing import TYPE_CHECKING

from stages.errors import UserError
from stages.losses.base.fixed import AgainstFixed
from stages.losses.base.loss import About, Parameters, Tensors, Trained
from stages.losses.contrastive import PADDING, Contrastive, PairsOfABatch

if TYPE_CHECKING:
    import torch

    from stages.models.bank import Bank
    from stages.models.batches import Batch
    from stages.models.encoder import Encoder


class Anchored(Contrastive):
    name = "anchored"
    is_sum_over_records = True
    needs_bank = True

    def objective(self, encoder: "Encoder", trained: Trained, about: About) -> "AgainstBank":
        if about.bank is None:
            raise UserError("the loss anchored needs a model with a bank of public pairs; name one in `banks`")
        return AgainstBank(encoder, trained, about, about.bank)


class AgainstBank(AgainstFixed, PairsOfABatch):
    def __init__(self, encoder: "Encoder", trained: Trained, about: About, bank: "Bank"):
        super().__init__(encoder, trained, about)
        self._images, self._texts = bank.image.to(self._device), bank.text.to(self._device)  # (pairs, d)
        self._having: dict[str, list[int]] = defaultdict(list)  # by text, the pairs that have it
        for pair, texts in enumerate(bank.texts):
            for text in set(texts):
                self._having[text].append(pair)

    def records(self, batch: "Batch") -> Tensors:
        import torch

        same = torch.zeros(len(batch), len(self._texts), dtype=torch.bool)
        for row, text in zip(same, batch.texts, strict=True):
            row[self._having.get(text, [])] = True
        return {**super().records(batch), "same": same.to(self._device)}

    def features(self, parameters: Parameters, records: Parameters, merge: bool) -> Tensors:
        return {**super().features(parameters, records, merge), "same": records["same"]}

    def choices(self, parameters: Parameters, features: Parameters) -> "list[tuple[torch.Tensor, torch.Tensor]]":
        import torch

        from stages.privacy.places import product

        image, text = features["image"], features["text"]  # (b, d)
        scale = parameters.get("logit_scale", self._model.logit_scale).exp()
        hidden = torch.where(features["same"], PADDING, 0.0)  # (b, pairs)
        own, first = (image * text).sum(1, keepdim=True), torch.zeros(len(image), dtype=torch.long, device=image.device)
        return [
            (scale * torch.cat([own, product(feature, bank.T) + hidden], dim=1), first)
            for feature, bank in ((image, self._texts), (text, self._images))
        ]


LOSS = Anchored()
