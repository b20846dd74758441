"""Each image's softmax against the fixed class prompts: the mean over records of a term of its own.

The prompts are those of the public initial weights and stay as they are, so the text tower must not be trained.
"""

from typing import TYPE_CHECKING

from stages.errors import UserError
from stages.keys import IMAGE_PARTS
from stages.losses.base.fixed import AgainstFixed
from stages.losses.base.loss import About, Loss, Parameters, Tensors, Trained

if TYPE_CHECKING:
    import torch

    from stages.data.rows import Labels
    from stages.models.batches import Batch
    from stages.models.encoder import Encoder


class Prompts(Loss):
    name = "prompts"
    is_sum_over_records = True

    def unfit(self, has_labels: bool, is_written: bool) -> str | None:
        instead = "contrastive or writing" if is_written else "contrastive"
        return None if has_labels else f"needs classes, which the task does not have; write {instead}"

    def unfit_part(self, part: str) -> str | None:
        if part in IMAGE_PARTS:
            return None
        return (
            "also trains the texts, and the loss prompts stands against fixed ones; write one of "
            f"{', '.join(IMAGE_PARTS)}"
        )

    def objective(self, encoder: "Encoder", trained: Trained, about: About) -> "AgainstClasses":
        from stages.models.parts import of_image

        if about.labels is None:
            raise UserError("the loss prompts needs class labels, and this dataset has none; use the loss contrastive")
        if others := [name for name in trained if not of_image(name)]:
            raise UserError(
                f"the loss prompts stands against fixed prompts, and {others[0]} is trained too; "
                "set trainable to image-tower or image-projection"
            )
        return AgainstClasses(encoder, trained, about.labels)


class AgainstClasses(AgainstFixed):
    def __init__(self, encoder: "Encoder", trained: Trained, labels: "Labels"):
        from stages.models.heads import factors_of
        from stages.models.prompts import class_features

        self._model = encoder.model
        self._device = next(encoder.model.parameters()).device
        scale = encoder.model.logit_scale.exp().detach()
        self._classes = scale * class_features(encoder, labels, self._device)  # (classes, d)
        self.factors = factors_of(encoder.model, trained)

    def records(self, batch: "Batch") -> Tensors:
        import torch

        return {
            "images": batch.images.to(self._device, non_blocking=True),
            "labels": torch.tensor(batch.labels, device=self._device),
        }

    def features(self, parameters: Parameters, records: Parameters, merge: bool) -> Tensors:
        from stages.models.encoder import encode

        image, _ = encode(self._model, parameters, records["images"], None, self.bf16)
        return {"image": image, "labels": records["labels"]}

    def choices(self, parameters: Parameters, features: Parameters) -> "list[tuple[torch.Tensor, torch.Tensor]]":
        from stages.privacy.places import product

        return [(product(features["image"], self._classes.T), features["labels"])]


LOSS = Prompts()
