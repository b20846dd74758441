"""GIT of transformers, a captioner: an image tower, and a decoder whose text comes after what the tower sees.

    git.image_encoder             the vision tower
    git.visual_projection         from what it sees to tokens of the decoder
    git.embeddings, git.encoder   the decoder: patches see each other, a word sees them and the words before it
    output                        from the decoder to words; in small models it is the word embeddings again

It has no text tower, so it compares nothing. Names of tensors are those of transformers: a saved folder loads with
GitForCausalLM.from_pretrained.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import GitConfig, GitForCausalLM

from stages.errors import UserError
from stages.models import from_transformers, vocabulary
from stages.models.from_transformers import HIDDEN, LAYOUT, TEXT_TOKENS, TOKENIZER
from stages.models.writing import Writer


class Git(from_transformers.Checkpointed):
    def __init__(self, config: Any):  # a GitConfig; its type says less of it than is true
        super().__init__()
        whole: Any = GitForCausalLM(config)
        self.config, self.git, self.output = config, whole.git, whole.output
        self._whole = (whole,)  # for its beam search; in a tuple, or its tensors would have two names

    def forward(self, images: torch.Tensor, texts: torch.Tensor) -> torch.Tensor:
        """(b,): the mean over the words of each text of -log p, given its image."""
        seen: torch.Tensor = self.git.visual_projection(self.git.image_encoder(images).last_hidden_state)
        inputs, targets = texts[:, :-1], texts[:, 1:]
        both = torch.cat([seen, self.git.embeddings(input_ids=inputs)], dim=1)  # (b, patches + words, d)
        hidden = self.git.encoder(both, attention_mask=_mask(seen.shape[1], both)).last_hidden_state
        logits = self.output(hidden[:, seen.shape[1] :])
        there = targets != self.config.pad_token_id
        each = F.cross_entropy(logits.mT, targets, reduction="none")
        return torch.where(there, each, 0.0).sum(1) / there.sum(1).clamp(min=1)

    def generate(self, images: torch.Tensor, **search: Any) -> torch.Tensor:
        start = torch.full((len(images), 1), self.config.bos_token_id, device=images.device)
        ends = {"eos_token_id": self.config.eos_token_id, "pad_token_id": self.config.pad_token_id}
        return self._whole[0].generate(pixel_values=images, input_ids=start, do_sample=False, **ends, **search)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Of the vision tower: transformers' hook on the decoder's embeddings adds to them in place."""
        tower = self.git.image_encoder
        tower.gradient_checkpointing_enable() if enable else tower.gradient_checkpointing_disable()
        self.train(self.training)


def _mask(patches: int, both: torch.Tensor) -> torch.Tensor:
    """(patches + words,) squared: no patch sees a word, and no word a later one. What follows a text's end is padding,
    which no word of it sees; transformers would look into a mask of tokens, which vmap cannot.
    """
    later = torch.full((both.shape[1],) * 2, HIDDEN, device=both.device).triu(1)
    later[:patches, :patches] = 0.0
    return later


@dataclass(frozen=True)
class GitEncoder(Writer):
    writes = ("captions",)

    @property
    def pad(self) -> int:
        return self.model.config.pad_token_id

    def captions(self, images: torch.Tensor, beams: int, most_tokens: int) -> list[str]:
        return self.decode(self.model.generate(images, num_beams=beams, max_new_tokens=most_tokens))


def pretrained(captioner: str) -> GitEncoder:
    """Published weights, by their name on the hub (as microsoft/git-base-coco) or a local folder."""
    from transformers import AutoTokenizer, CLIPImageProcessor

    try:
        whole = GitForCausalLM.from_pretrained(captioner)
        tokenizer, images = AutoTokenizer.from_pretrained(captioner), CLIPImageProcessor.from_pretrained(captioner)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0][:160]
        raise UserError(
            f"GIT's weights {captioner!r} could not be loaded ({reason}). Two ways: run once with a network, or put "
            "them in a local folder (save_pretrained of transformers makes one) and name the folder"
        ) from None
    files = from_transformers.files_of(tokenizer, images)
    return assemble(json.loads(whole.config.to_json_string()), files, whole.state_dict())


def create(folder: Path, texts: Iterable[str]) -> GitEncoder:
    """Random weights. A folder without a tokenizer gets a vocabulary of its own, of these public texts."""
    config, files = from_transformers.read(folder, "GIT")
    if TOKENIZER[0] not in files:
        files |= vocabulary.learn(texts, config["vocab_size"], TEXT_TOKENS)
    return assemble(config, files, None)


def from_folder(folder: Path, weights: Path) -> GitEncoder:
    config, files = from_transformers.read(folder, "GIT")
    from_transformers.require_tokenizer(files, folder, "GIT")
    return assemble(config, files, load_file(weights))


def assemble(config: dict, files: Mapping[str, bytes], state: Mapping[str, torch.Tensor] | None) -> GitEncoder:
    if config.get("num_image_with_embedding"):
        raise UserError("this GIT is one for videos (num_image_with_embedding); take one for images")
    model = Git(GitConfig.from_dict(config))
    if state is not None:
        from_transformers.load_state(model, state, tied="output.weight" if config.get("tie_word_embeddings") else None)
    tokenizer = from_transformers.tokenizer_of(files)
    transform = from_transformers.preprocessing(files)
    tokenize, decode = from_transformers.tokens_of(tokenizer), from_transformers.texts_of(tokenizer)
    return GitEncoder(model, tokenize, transform, config, files, LAYOUT, decode)
