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
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from open_clip.transform import PreprocessCfg, image_transform_v2
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import BlipConfig, BlipTextModel, BlipVisionModel, PreTrainedTokenizerFast
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.models.blip.modeling_blip_text import BlipTextLMHeadModel

from stages.errors import UserError
from stages.models import vocabulary
from stages.models.encoder import Layout, WholeEncoder

LAYOUT = Layout("config.json", "model.safetensors")
PREPROCESSOR = "preprocessor_config.json"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
TEXT_TOKENS = 35  # of a text in the contrastive loss, as in BLIP; the rest is cut off
HIDDEN = -1e9  # a similarity that no softmax sees


class Blip(torch.nn.Module):
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

    def train(self, mode: bool = True) -> "Blip":
        """transformers checkpoints a layer only if it is in training; layers inside it (dropout) stay as `mode`."""
        super().train(mode)
        for module in self.modules():
            if isinstance(module, GradientCheckpointingLayer) and module.gradient_checkpointing:
                module.training = True
        return self


@dataclass(frozen=True)
class BlipEncoder(WholeEncoder):
    decode: Callable[[torch.Tensor], list[str]]  # from the decoder's tokens to texts


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
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        images.save_pretrained(folder)
        files = {name: (Path(folder) / name).read_bytes() for name in (PREPROCESSOR, *TOKENIZER)}
    config = json.loads(writes.config.to_json_string()) | {
        "image_text_hidden_size": compares.config.image_text_hidden_size
    }
    state = {k: v for k, v in compares.state_dict().items() if not k.startswith("vision_model.")}
    state |= {"logit_scale": torch.tensor(writes.config.logit_scale_init_value)} | writes.state_dict()
    return assemble(config, files, state)


def create(folder: Path, texts: Iterable[str]) -> BlipEncoder:
    """Random weights. A folder without a tokenizer gets a vocabulary of its own, of these public texts."""
    config, files = _read(folder)
    if TOKENIZER[0] not in files:
        files |= vocabulary.learn(texts, config["text_config"]["vocab_size"], TEXT_TOKENS)
    return assemble(config, files, None)


def from_folder(folder: Path, weights: Path) -> BlipEncoder:
    config, files = _read(folder)
    if TOKENIZER[0] not in files:
        raise UserError(f"no BLIP that can be used in {folder}: {TOKENIZER[0]} is missing; run: dvc repro")
    return assemble(config, files, load_file(weights))


def _read(folder: Path) -> tuple[dict, dict[str, bytes]]:
    config = json.loads((folder / LAYOUT.config).read_text(encoding="utf-8"))
    files = {n: (folder / n).read_bytes() for n in (PREPROCESSOR, *TOKENIZER) if (folder / n).is_file()}
    if PREPROCESSOR not in files:
        raise UserError(f"no BLIP that can be used in {folder}: {PREPROCESSOR} is missing")
    return config, files


def assemble(config: dict, files: Mapping[str, bytes], state: Mapping[str, torch.Tensor] | None) -> BlipEncoder:
    model = Blip(BlipConfig.from_dict(config))
    if state is not None:
        result = model.load_state_dict(state, strict=False)
        missing = [name for name in result.missing_keys if not name.startswith("text_decoder.cls.predictions.decoder")]
        if missing or result.unexpected_keys:
            raise UserError(f"the weights do not fit the config: missing {missing}, unknown {result.unexpected_keys}")
    tokenizer = _tokenizer(files)

    def tokenize(texts: list[str]) -> torch.Tensor:
        # All of one length: with padding as long as the longest, a text's features would depend on its neighbours.
        most = min(TEXT_TOKENS, tokenizer.model_max_length)
        found = tokenizer(texts, padding="max_length", truncation=True, max_length=most, return_tensors="pt")
        return found["input_ids"]

    def decode(tokens: torch.Tensor) -> list[str]:
        return [text.strip() for text in tokenizer.batch_decode(tokens, skip_special_tokens=True)]

    transform = image_transform_v2(_preprocess(json.loads(files[PREPROCESSOR])), is_train=False)
    return BlipEncoder(model, tokenize, transform, config, files, LAYOUT, decode)


def _tokenizer(files: Mapping[str, bytes]) -> PreTrainedTokenizerFast:
    facts = json.loads(files.get(TOKENIZER[1], b"{}"))
    special = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    known = {name: facts[name] for name in special if isinstance(facts.get(name), str)}
    known = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"} | known
    # [DEC] and [ENC] are BLIP's: a decoder starts with the one, the matching head with the other.
    extra = ["[DEC]", "[ENC]"]
    length = facts.get("model_max_length", TEXT_TOKENS)
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(files[TOKENIZER[0]].decode()),
        model_max_length=int(min(length, 512)),
        additional_special_tokens=extra,
        **known,
    )


def _preprocess(facts: dict) -> PreprocessCfg:
    """As transformers' BlipImageProcessor: the whole image is squeezed into a square."""
    size = facts["size"]
    return PreprocessCfg(
        size=(size["height"], size["width"]),
        mean=tuple(facts["image_mean"]),
        std=tuple(facts["image_std"]),
        interpolation="bicubic",
        resize_mode="squash",
    )


def _with_mask(module: torch.nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """transformers 5.22 gives a cross-attention the mask of what it looks at by a name that it then does not read."""
    return args, {"encoder_attention_mask": kwargs.get("attention_mask")} | kwargs


def _normalised(features: torch.Tensor, normalize: bool) -> torch.Tensor:
    return F.normalize(features, dim=-1) if normalize else features
