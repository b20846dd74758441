"""The loss of writing a record's caption, or the answer to a question about its image: language modelling.

For each record the mean over the words of its text of -log p(word | the words before it, the image, the question), as
the decoder sees them. Of a record with several texts, or several questions and answers, a step draws one. The term
belongs to that record alone, so each record can be clipped on its own, with half the sensitivity of a contrastive loss.
"""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from stages.keys import ON_FROZEN_TOWERS
from stages.losses.base.loss import About, Loss, Objective, Parameters, Tensors, Trained, mean

if TYPE_CHECKING:
    import torch

    from stages.models.batches import Batch
    from stages.models.encoder import Encoder
    from stages.models.writing import Writer

Tokens = Annotated[int, Field(ge=2, le=35, strict=True)]  # with the two ends; BLIP's texts have 35


class Writing(Loss):
    name = "writing"
    is_sum_over_records = True
    abilities = ()  # which texts it must write depends on the task, which needs the same of it
    reads_questions = True
    fields = {"text_tokens": Tokens}  # noqa: RUF012 (of a text at most: the rest is cut off)

    def unfit(self, has_labels: bool, is_written: bool) -> str | None:
        return None if is_written else "is for captions and answers; write contrastive or prompts"

    def unfit_part(self, part: str) -> str | None:
        if part in ON_FROZEN_TOWERS:
            return "moves no word of a caption or an answer; write image-tower+decoder, all or a LoRA"
        return None

    def reaches(self, tensor: str, about: About) -> bool:
        from stages.models.parts import writes

        return writes(tensor, about.has_questions)

    def objective(self, encoder: "Encoder", trained: Trained, about: About) -> "TextsOfRecords":
        from stages.models.writing import require_decoder

        writes = "answers" if about.has_questions else "captions"
        return TextsOfRecords(require_decoder(encoder, "the loss writing", writes), about)


class TextsOfRecords(Objective):
    def __init__(self, encoder: "Writer", about: About):
        self._encoder, self._asks, self._most = encoder, about.has_questions, about.settings.get("text_tokens")
        self._device = next(encoder.model.parameters()).device

    def records(self, batch: "Batch") -> Tensors:
        """Tokens are as many for every record: the gradient of one must not depend on how long the others are."""
        if not self._asks:
            return {"images": batch.images.to(self._device, non_blocking=True), "texts": self._tokens(batch.texts)}
        asked = [pairs[0] if pairs else ("", "") for pairs in batch.asked or []]
        answers = self._tokens([answer for _, answer in asked])
        for i, pairs in enumerate(batch.asked or []):
            if not pairs:  # nothing was answered about this image: no word to write, no loss
                answers[i] = self._encoder.pad
        questions = self._encoder.tokenize([question for question, _ in asked]).to(self._device)
        return {"images": batch.images.to(self._device, non_blocking=True), "texts": answers, "questions": questions}

    def _tokens(self, texts: list[str]) -> "torch.Tensor":
        return self._encoder.tokenize(texts)[:, : self._most].to(self._device)

    def features(self, parameters: Parameters, records: Parameters, merge: bool) -> Tensors:
        """(b,): the loss of each record."""
        import torch
        from torch.func import functional_call

        images, written = records["images"], {k: v for k, v in records.items() if k != "images"}
        with torch.autocast(images.device.type, dtype=torch.bfloat16, enabled=self.bf16):
            each = functional_call(self._encoder.model, dict(parameters), (images,), written)
        return {"each": each.float()}

    def loss(self, parameters: Parameters, features: Parameters, present: "torch.Tensor") -> "torch.Tensor":
        return mean(features["each"], present)


LOSS = Writing()
