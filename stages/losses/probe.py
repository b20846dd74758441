"""A linear probe on vectors: softmax of the class texts' logits and what the probe adds, a term for each record.

The probe looks at a record's public features from a centre that is learned with it, in the same steps and under the
same clip. A record's loss is

    -log softmax(logits + s g W)[label]  +  a s^2 |f - centre|^2 / 2        g = (f - centre) / |f - centre|, s = 10

whose second part, the mean of all records for the centre, has no labels in it; the first is not differentiated by the
centre. Both belong to this record alone, so `example` has its sensitivity C: one norm over the gradient of both.
"""

from typing import TYPE_CHECKING

from stages.errors import UserError
from stages.losses.base.loss import About, Loss, Objective, Parameters, Tensors, Trained, mean

if TYPE_CHECKING:
    import torch

    from stages.data.rows import Labels
    from stages.models.batches import Batch
    from stages.models.encoder import Encoder

BLOCK = 256  # records
PULL = 0.5  # a: how much of a clipped gradient the centre gets; chosen on public features


class Probe(Loss):
    name = "probe"
    is_sum_over_records = True

    def unfit(self, has_labels: bool, is_written: bool) -> str | None:
        return None if has_labels else "needs classes, which the task does not have; write contrastive"

    def unfit_part(self, part: str) -> str | None:
        return None if part == "probe" else "is not what the loss probe trains; write probe, or the loss prompts"

    def reaches(self, tensor: str, about: About) -> bool:
        from stages.models.heads import CENTRE, PROBE

        return tensor in (PROBE, CENTRE)

    def objective(self, encoder: "Encoder", trained: Trained, about: About) -> "OnVectors":
        from stages.models.heads import require_classes

        if about.labels is None:
            raise UserError("the loss probe needs class labels, and this dataset has none; use the loss contrastive")
        if not getattr(encoder.model, "more", None) or not trained:
            raise UserError("the loss probe is for models of vectors (stages/data/README.md); use the loss prompts")
        require_classes(encoder.model.class_probe, len(about.labels.classes))
        return OnVectors(encoder, trained, about.labels)


class OnVectors(Objective):
    def __init__(self, encoder: "Encoder", trained: Trained, labels: "Labels"):
        from stages.models.heads import factors_of
        from stages.models.prompts import class_features

        self._model = encoder.model
        self._device = next(encoder.model.parameters()).device
        scale = encoder.model.logit_scale.exp().detach()
        self._classes = scale * class_features(encoder, labels, self._device)  # (classes, d)
        self.factors = factors_of(encoder.model, trained)

    def records(self, batch: "Batch") -> Tensors:
        """Within a step the centre is the one that was released before it: what the probe sees is an input then."""
        import torch

        images = batch.images.to(self._device, non_blocking=True)
        logits, centred = self._fixed(images)
        return {
            "logits": logits,
            "centred": centred,
            "seen": images[:, self._model.width :],
            "ones": torch.ones(len(images), 1, device=self._device),
            "labels": torch.tensor(batch.labels, device=self._device),
        }

    def _fixed(self, images: "torch.Tensor") -> "tuple[torch.Tensor, torch.Tensor]":
        """Logits by the class texts, and what the probe looks at, in blocks of one size, the last one filled up.

        In a block of another size the last digits would differ, and one more record would move those of all others
        (privacy/passes.py).
        """
        import torch

        from stages.privacy.places import product

        found = []
        with torch.no_grad():
            for start in range(0, len(images), BLOCK):
                some = images[start : start + BLOCK]
                block = torch.cat([some, some[:1].expand(BLOCK - len(some), -1)])
                logits = product(self._model.encode_image(block, normalize=True), self._classes.T)
                found.append((logits[: len(some)], self._model.centred(block)[: len(some)]))
        logits, centred = (torch.cat(parts) for parts in zip(*found, strict=True))
        return logits, centred

    def features(self, parameters: Parameters, records: Parameters, merge: bool) -> Tensors:
        from stages.models.heads import CENTRE, PROBE, SHARPNESS
        from stages.privacy.places import product

        zero = self._model.class_shift
        added = product(records["centred"], parameters[PROBE]) + parameters.get("class_shift", zero)
        centre = records["ones"] @ parameters[CENTRE] + parameters.get("centre_shift", zero)
        return {
            "logits": records["logits"] + SHARPNESS * added,
            "away": SHARPNESS * records["seen"] - centre,  # the tensor is s times the centre
            "labels": records["labels"],
        }

    def loss(self, parameters: Parameters, features: Parameters, present: "torch.Tensor") -> "torch.Tensor":
        import torch.nn.functional as F

        each = F.cross_entropy(features["logits"], features["labels"], reduction="none")
        return mean(each + PULL * features["away"].square().sum(-1) / 2, present)


LOSS = Probe()
