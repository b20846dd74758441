"""BLIP's three losses on public data: contrastive, matching and language modelling (Li et al., 2022).

What is written is a caption of the image; or, where the data have questions, the answer to one (the texts of the other
two losses are then question and answer). Smaller than the original in two ways: negatives come from the batch alone (no
momentum encoder, no queue), and the text encoder and the decoder share no weights.
"""

import torch
import torch.nn.functional as F

from stages.models.batches import Batch
from stages.models.blip import HIDDEN, Blip, BlipEncoder


def loss(encoder: BlipEncoder, batch: Batch) -> torch.Tensor:
    model, device = encoder.model, encoder.model.logit_scale.device
    with torch.no_grad():
        model.logit_scale.clamp_(*model.logit_scale_range)  # itself, as in BLIP: beyond, it would have no gradient

    def tokens(texts: list[str]) -> torch.Tensor:
        found = encoder.tokenize(texts).to(device)
        return found[:, : (found != model.config.text_config.pad_token_id).sum(1).max()]

    asked = [tokens(list(texts)) for texts in zip(*batch.asked, strict=True)] if batch.asked else None
    return sum(three_losses(model, batch.images.to(device), tokens(batch.texts), asked))


def three_losses(
    model: Blip, images: torch.Tensor, tokens: torch.Tensor, asked: list[torch.Tensor] | None = None
) -> tuple[torch.Tensor, ...]:
    """`asked` has the tokens of questions and of answers."""
    patches = model.patches(images)  # once for all three
    image, text = model.of_patches(patches, normalize=True), model.encode_text(tokens, normalize=True)
    similarity = model.logit_scale.exp() * image @ text.T
    own = torch.arange(len(images), device=images.device)
    contrastive = (F.cross_entropy(similarity, own) + F.cross_entropy(similarity.T, own)) / 2
    if asked is None:
        written = _writing(model, patches, None, tokens)
    else:
        questions, answers = asked
        words = (questions != model.config.text_config.pad_token_id).long()
        written = _writing(model, model.look(patches, questions), words, answers)
    return contrastive, _matching(model, patches, tokens, similarity.detach()), written


def _matching(model: Blip, patches: torch.Tensor, tokens: torch.Tensor, similarity: torch.Tensor) -> torch.Tensor:
    """Does the text belong to the image? Pairs that belong together, and for each two that look as if they did."""
    same = (tokens[:, None] == tokens[None]).all(-1)  # also a pair is no negative if its text is the image's own
    chance = F.softmax(similarity.masked_fill(same, HIDDEN), dim=1)
    chance_back = F.softmax(similarity.T.masked_fill(same, HIDDEN), dim=1)
    other_text, other_image = (torch.multinomial(c, 1)[:, 0] for c in (chance, chance_back))
    texts = torch.cat([tokens, tokens[other_text], tokens])
    looked = model.look(torch.cat([patches, patches, patches[other_image]]), texts)
    belongs = torch.arange(len(texts), device=texts.device) < len(tokens)
    return F.cross_entropy(model.itm_head(looked[:, 0]), belongs.long())


def _writing(model: Blip, seen: torch.Tensor, mask: torch.Tensor | None, tokens: torch.Tensor) -> torch.Tensor:
    text = model.config.text_config
    inputs = tokens.clone()
    inputs[:, 0] = text.bos_token_id
    there = inputs != text.pad_token_id
    labels = inputs.masked_fill(~there, -100)
    return model.text_decoder(
        input_ids=inputs,
        attention_mask=there.long(),
        encoder_hidden_states=seen,
        encoder_attention_mask=mask,
        labels=labels,
    ).loss
