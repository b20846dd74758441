"""What a BLIP's decoder writes: captions of images, and answers to questions about them. Nothing is drawn at random."""

import torch

from stages.errors import UserError
from stages.models.blip import BlipEncoder
from stages.models.encoder import Encoder


def require_decoder(encoder: Encoder, task: str) -> BlipEncoder:
    if not isinstance(encoder, BlipEncoder):
        raise UserError(f"{task} needs a model with a decoder, a BLIP; this one is a CLIP")
    return encoder


@torch.no_grad()
def captions(encoder: BlipEncoder, images: torch.Tensor, beams: int, most_tokens: int) -> list[str]:
    return _search(encoder, encoder.model.patches(images), None, beams, most_tokens)


@torch.no_grad()
def answers(
    encoder: BlipEncoder,
    images: torch.Tensor,
    questions: list[str],
    beams: int,
    most_tokens: int,
    answer_list: list[str] | None = None,
) -> list[str]:
    """In any words; or, of a list of possible answers, the likeliest."""
    tokens = encoder.tokenize(questions).to(images.device)
    looked = encoder.model.look(encoder.model.patches(images), tokens)
    words = encoder.model.mask(tokens)  # an answer depends on no other question
    if answer_list is None:
        return _search(encoder, looked, words, beams, most_tokens)
    chances = torch.stack([_chance(encoder, looked, words, answer) for answer in answer_list], dim=1)
    return [answer_list[i] for i in chances.argmax(dim=1)]


def _search(
    encoder: BlipEncoder, seen: torch.Tensor, mask: torch.Tensor | None, beams: int, most_tokens: int
) -> list[str]:
    """Beam search, from [DEC] to [SEP]."""
    text = encoder.model.config.text_config
    tokens = encoder.model.text_decoder.generate(
        input_ids=torch.full((len(seen), 1), text.bos_token_id, device=seen.device),
        encoder_hidden_states=seen,
        encoder_attention_mask=mask,
        eos_token_id=text.sep_token_id,
        pad_token_id=text.pad_token_id,
        num_beams=beams,
        max_new_tokens=most_tokens,
        do_sample=False,
    )
    return encoder.decode(tokens)


def _chance(encoder: BlipEncoder, seen: torch.Tensor, mask: torch.Tensor, answer: str) -> torch.Tensor:
    """(b,): the log probability that the decoder writes this and ends."""
    text = encoder.model.config.text_config
    tokens = encoder.tokenize([answer]).to(seen.device)
    tokens = tokens[:, : int((tokens != text.pad_token_id).sum())].repeat(len(seen), 1)
    tokens[:, 0] = text.bos_token_id
    logits = encoder.model.text_decoder(
        input_ids=tokens, encoder_hidden_states=seen, encoder_attention_mask=mask
    ).logits[:, :-1]
    return logits.log_softmax(-1).gather(-1, tokens[:, 1:, None]).sum(dim=(1, 2))
