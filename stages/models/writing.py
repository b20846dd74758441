"""What a model with a decoder writes: captions of images, and answers to questions. Nothing is drawn at random."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from stages.errors import UserError
from stages.models.encoder import Encoder, WholeEncoder
from stages.models.families import ABILITIES


@dataclass(frozen=True)
class Writer(WholeEncoder):
    """A model with a decoder. `model(images, texts=..., questions=...)` says how badly each text is written: (b,)."""

    decode: Callable[[torch.Tensor], list[str]]  # from the decoder's tokens to texts

    writes: ClassVar[tuple[str, ...]]  # captions, answers

    @property
    @abstractmethod
    def pad(self) -> int:
        """The token of which a text has as many as it is too short."""

    @abstractmethod
    def captions(self, images: torch.Tensor, beams: int, most_tokens: int) -> list[str]: ...

    def answers(
        self, images: torch.Tensor, questions: list[str], beams: int, most_tokens: int, answer_list: list[str] | None
    ) -> list[str]:
        """In any words; or, of a list of possible answers, the likeliest."""
        raise NotImplementedError


def require_decoder(encoder: Encoder, task: str, writes: str) -> Writer:
    if not isinstance(encoder, Writer):
        raise UserError(f"{task} needs a model with a decoder, as a BLIP; this one has none")
    if writes not in encoder.writes:
        raise UserError(f"{task} needs a model that {ABILITIES[writes]}, as a BLIP; this one does not")
    return encoder


@torch.no_grad()
def captions(encoder: Writer, images: torch.Tensor, beams: int, most_tokens: int) -> list[str]:
    return encoder.captions(images, beams, most_tokens)


@torch.no_grad()
def answers(
    encoder: Writer,
    images: torch.Tensor,
    questions: list[str],
    beams: int,
    most_tokens: int,
    answer_list: list[str] | None = None,
) -> list[str]:
    return encoder.answers(images, questions, beams, most_tokens, answer_list)
