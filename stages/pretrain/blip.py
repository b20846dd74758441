"""BLIP's three losses on public data: contrastive, matching and language modelling (Li et al., 2022).

What is written are captions. Where the data have questions it is the answer to each question about an image, the texts
of the contrastive loss are question and answer, and there is no matching, as when BLIP learns to answer. Smaller than
the original in two ways: negatives come from the batch alone (no momentum encoder, no queue), and the text encoder and
the decoder share no weights.
"""

import functools
from collections.abc import Iterable

import torch
import torch.nn.functional as F

from stages.models.batches import Batch
from stages.models.blip import HIDDEN, Blip
from stages.models.encoder import WholeEncoder


def loss(encoder: WholeEncoder, batch: Batch) -> torch.Tensor:
    model, device = encoder.model, encoder.model.logit_scale.device
    with torch.no_grad():
        model.logit_scale.clamp_(*model.logit_scale_range)  # itself, as in BLIP: beyond, it would have no gradient

    def tokens(texts: Iterable[str]) -> torch.Tensor:
        found = encoder.tokenize(list(texts)).to(device)
        return found[:, : (found != model.config.text_config.pad_token_id).sum(1).max()]

    if batch.asked is None:
        return functools.reduce(torch.add, describing(model, batch.images.to(device), tokens(batch.texts)))
    rows, questions, answers = zip(*((i, *pair) for i, pairs in enumerate(batch.asked) for pair in pairs), strict=True)
    asked = (torch.tensor(rows, device=device), tokens(questions), tokens(answers))
    return functools.reduce(torch.add, answering(model, batch.images.to(device), tokens(batch.texts), *asked))


def describing(model: Blip, images: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
    patches = model.patches(images)  # once for all three
    contrastive, similarity = _contrastive(model, patches, tokens)
    matching = _matching(model, patches, tokens, similarity.detach())
    return contrastive, matching, _writing(model, patches, None, tokens)


def answering(
    model: Blip,
    images: torch.Tensor,
    tokens: torch.Tensor,
    rows: torch.Tensor,
    questions: torch.Tensor,
    answers: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    """`rows` says which image a question is about."""
    patches = model.patches(images)
    written = _writing(model, model.look(patches[rows], questions), model.mask(questions), answers)
    return _contrastive(model, patches, tokens)[0], written


def _contrastive(model: Blip, patches: torch.Tensor, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and the similarities of images and texts."""
    image, text = model.of_patches(patches, normalize=True), model.encode_text(tokens, normalize=True)
    similarity = model.logit_scale.exp() * image @ text.T
    own = torch.arange(len(image), device=image.device)
    return (F.cross_entropy(similarity, own) + F.cross_entropy(similarity.T, own)) / 2, similarity


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
