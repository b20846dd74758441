"""BLIP of transformers: one vision tower, and on it the contrastive heads, the matching head and a decoder.

    vision_model                            all that follows
    vision_proj, text_encoder, text_proj    comparing images with texts: the contrastive loss
    itm_head                                matching, of public pretraining alone
    text_encoder with its cross-attention   reading a question about an image
    text_decoder                            writing a caption of an image, or an answer: the loss of writing

Which of them private training moves depends on its loss (stages/losses) and on `trainable` (parts.py). A decoder's word
embeddings are its output layer too.

Names of tensors are those of transformers: a saved folder loads with BlipForImageTextRetrieval.from_pretrained, and by
what its decoder was made for with BlipForConditionalGeneration or BlipForQuestionAnswering.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from transformers import BlipConfig, BlipTextModel, BlipVisionModel
from transformers.models.blip.modeling_blip_text import BlipTextLMHeadModel

from stages.errors import UserError
from stages.models import from_transformers, vocabulary
from stages.models.from_transformers import HIDDEN, LAYOUT, TEXT_TOKENS, TOKENIZER
from stages.models.writing import Writer

EXTRA = ("[DEC]", "[ENC]")  # special tokens of BLIP's: a decoder starts with the one, the matching head with the other


class Blip(from_transformers.Checkpointed):
    logit_scale_range = (math.log(1 / 0.5), math.log(1 / 0.001))  # BLIP keeps its temperature from 0.001 to 0.5

    def __init__(self, config: Any):  # a BlipConfig; its type says less of its parts than is true
        super().__init__()
        self.config = config
        vision, text = config.vision_config, config.text_config
        self.vision_model = BlipVisionModel(vision)
        self.text_encoder = BlipTextModel(text, add_pooling_layer=False)
        self.text_decoder = BlipTextLMHeadModel(text)
        self.vision_proj = torch.nn.Linear(vision.hidden_size, config.image_text_hidden_size)
        self.text_proj = torch.nn.Linear(text.hidden_size, config.image_text_hidden_size)
        self.itm_head = torch.nn.Linear(text.hidden_size, 2)
        self.logit_scale = torch.nn.Parameter(torch.tensor(config.logit_scale_init_value))
        for layer in cast(Any, self.text_decoder.bert.encoder.layer):
            layer.crossattention.self.register_forward_pre_hook(_with_mask, with_kwargs=True)

    def patches(self, images: torch.Tensor) -> torch.Tensor:
        """(b, 1 + patches, d): what the contrastive head takes the first of, and the decoder all of."""
        return self.vision_model(pixel_values=images).last_hidden_state

    def encode_image(self, images: torch.Tensor, normalize: bool = False) -> torch.Tensor:
        return self.of_patches(self.patches(images), normalize)

    def of_patches(self, patches: torch.Tensor, normalize: bool = False) -> torch.Tensor:
        return _normalised(self.vision_proj(patches[:, 0]), normalize)

    def encode_text(self, tokens: torch.Tensor, normalize: bool = False) -> torch.Tensor:
        hidden = self.text_encoder(input_ids=tokens, attention_mask=self.mask(tokens)).last_hidden_state
        return _normalised(self.text_proj(hidden[:, 0]), normalize)

    def forward(
        self,
        images: torch.Tensor,
        tokens: torch.Tensor | None = None,
        texts: torch.Tensor | None = None,
        questions: torch.Tensor | None = None,
    ):
        """Features of images and tokens; or with `texts`, how badly each is written."""
        if texts is not None:
            return self.written(images, texts, questions)
        text = None if tokens is None else self.encode_text(tokens, normalize=True)
        return self.encode_image(images, normalize=True), text

    def look(self, patches: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """(b, tokens, d): a text that looks at an image, for the matching head or as a question to answer."""
        tokens = tokens.clone()
        tokens[:, 0] = self.config.text_config.bos_token_id + 1  # [ENC], in BLIP's vocabulary the one after [DEC]
        return self.text_encoder(
            input_ids=tokens, attention_mask=self.mask(tokens), encoder_hidden_states=patches
        ).last_hidden_state

    def written(self, images: torch.Tensor, texts: torch.Tensor, questions: torch.Tensor | None) -> torch.Tensor:
        """(b,): the mean over the words of each text of -log p, given its image and the question about it."""
        text, seen, seen_mask = self.config.text_config, self.patches(images), None
        if questions is not None:
            seen, seen_mask = self.look(seen, questions), self.mask(questions)
        start = torch.full_like(texts[:, :1], text.bos_token_id)
        inputs, targets = torch.cat([start, texts[:, 1:-1]], dim=1), texts[:, 1:]
        later = torch.full((inputs.shape[1],) * 2, HIDDEN, device=inputs.device).triu(1)
        logits = self.text_decoder(
            input_ids=inputs,
            attention_mask=self.mask(inputs) + later,
            encoder_hidden_states=seen,
            encoder_attention_mask=seen_mask,
            use_cache=False,
        ).logits  # (b, words, vocabulary)
        there = targets != text.pad_token_id
        each = F.cross_entropy(logits.mT, targets, reduction="none", label_smoothing=text.label_smoothing)
        return torch.where(there, each, 0.0).sum(1) / there.sum(1).clamp(min=1)

    def mask(self, tokens: torch.Tensor) -> torch.Tensor:
        """Of four dimensions: transformers would look into one of two, which vmap cannot."""
        return torch.where(tokens != self.config.text_config.pad_token_id, 0.0, HIDDEN)[:, None, None, :]

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Of the vision tower, which has most of the tokens; transformers has none for the text encoder."""
        tower = self.vision_model
        tower.gradient_checkpointing_enable() if enable else tower.gradient_checkpointing_disable()
        self.train(self.training)


@dataclass(frozen=True)
class BlipEncoder(Writer):
    writes = ("captions", "answers")

    @property
    def pad(self) -> int:
        return self.model.config.text_config.pad_token_id

    def captions(self, images: torch.Tensor, beams: int, most_tokens: int) -> list[str]:
        return self._search(self.model.patches(images), None, beams, most_tokens)

    def answers(
        self, images: torch.Tensor, questions: list[str], beams: int, most_tokens: int, answer_list: list[str] | None
    ) -> list[str]:
        tokens = self.tokenize(questions).to(images.device)
        looked = self.model.look(self.model.patches(images), tokens)
        words = self.model.mask(tokens)  # an answer depends on no other question
        if answer_list is None:
            return self._search(looked, words, beams, most_tokens)
        chances = torch.stack([self._chance(looked, words, answer) for answer in answer_list], dim=1)
        return [answer_list[i] for i in chances.argmax(dim=1)]

    def _search(self, seen: torch.Tensor, mask: torch.Tensor | None, beams: int, most_tokens: int) -> list[str]:
        """Beam search, from [DEC] to [SEP]."""
        text = self.model.config.text_config
        tokens = self.model.text_decoder.generate(
            input_ids=torch.full((len(seen), 1), text.bos_token_id, device=seen.device),
            encoder_hidden_states=seen,
            encoder_attention_mask=mask,
            eos_token_id=text.sep_token_id,
            pad_token_id=text.pad_token_id,
            num_beams=beams,
            max_new_tokens=most_tokens,
            do_sample=False,
        )
        return self.decode(tokens)

    def _chance(self, seen: torch.Tensor, mask: torch.Tensor, answer: str) -> torch.Tensor:
        """(b,): the log probability that the decoder writes this and ends."""
        text = self.model.config.text_config
        tokens = self.tokenize([answer]).to(seen.device)
        tokens = tokens[:, : int((tokens != text.pad_token_id).sum())].repeat(len(seen), 1)
        tokens[:, 0] = text.bos_token_id
        logits = self.model.text_decoder(
            input_ids=tokens, encoder_hidden_states=seen, encoder_attention_mask=mask
        ).logits[:, :-1]
        return logits.log_softmax(-1).gather(-1, tokens[:, 1:, None]).sum(dim=(1, 2))


def pretrained(writer: str, answers: bool, contrastive: str) -> BlipEncoder:
    """Published weights, each by its name on the hub or a local folder.

    What `writer` has is taken from it: the vision tower and the decoder of one that captions (as
    Salesforce/blip-image-captioning-base), also the question encoder of one that answers (as Salesforce/blip-vqa-base).
    The rest, so the contrastive and matching heads, is that of `contrastive` (as Salesforce/blip-itm-base-coco). The
    two were tuned apart from the same pretraining, so the heads do not start as aligned as they were.
    """
    import transformers
    from transformers import AutoTokenizer, BlipForImageTextRetrieval, BlipImageProcessor

    kind = transformers.BlipForQuestionAnswering if answers else transformers.BlipForConditionalGeneration
    try:
        writes = kind.from_pretrained(writer)
        compares = BlipForImageTextRetrieval.from_pretrained(contrastive)
        tokenizer, images = AutoTokenizer.from_pretrained(writer), BlipImageProcessor.from_pretrained(writer)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0][:160]
        raise UserError(
            f"BLIP's weights {writer!r} and {contrastive!r} could not be loaded ({reason}). Two ways: run once with "
            "a network, or put each in a local folder (save_pretrained of transformers makes one) and name the folder"
        ) from None
    files = from_transformers.files_of(tokenizer, images)
    config = json.loads(writes.config.to_json_string()) | {
        "image_text_hidden_size": compares.config.image_text_hidden_size
    }
    state = {k: v for k, v in compares.state_dict().items() if not k.startswith("vision_model.")}
    state |= {"logit_scale": torch.tensor(writes.config.logit_scale_init_value)} | writes.state_dict()
    return assemble(config, files, state)


def create(folder: Path, texts: Iterable[str]) -> BlipEncoder:
    """Random weights. A folder without a tokenizer gets a vocabulary of its own, of these public texts."""
    config, files = from_transformers.read(folder, "BLIP")
    if TOKENIZER[0] not in files:
        files |= vocabulary.learn(texts, config["text_config"]["vocab_size"], TEXT_TOKENS)
    return assemble(config, files, None)


def from_folder(folder: Path, weights: Path) -> BlipEncoder:
    config, files = from_transformers.read(folder, "BLIP")
    from_transformers.require_tokenizer(files, folder, "BLIP")
    return assemble(config, files, load_file(weights))


def assemble(config: dict, files: Mapping[str, bytes], state: Mapping[str, torch.Tensor] | None) -> BlipEncoder:
    model = Blip(BlipConfig.from_dict(config))
    if state is not None:
        from_transformers.load_state(model, state, tied="text_decoder.cls.predictions.decoder")
    tokenizer = from_transformers.tokenizer_of(files, EXTRA)
    transform = from_transformers.preprocessing(files)
    tokenize, decode = from_transformers.tokens_of(tokenizer), from_transformers.texts_of(tokenizer)
    return BlipEncoder(model, tokenize, transform, config, files, LAYOUT, decode)


def _with_mask(module: torch.nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """transformers 5.22 gives a cross-attention the mask of what it looks at by a name that it then does not read."""
    return args, {"encoder_attention_mask": kwargs.get("attention_mask")} | kwargs


def _normalised(features: torch.Tensor, normalize: bool) -> torch.Tensor:
    return F.normalize(features, dim=-1) if normalize else features
