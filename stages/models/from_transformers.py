"""What models of transformers have in common: files of their folders, tokenizer, preprocessing, checkpointing."""

import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.modeling_layers import GradientCheckpointingLayer

from stages.errors import UserError
from stages.models.kinds import TRANSFORMERS as LAYOUT

PREPROCESSOR = "preprocessor_config.json"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
TEXT_TOKENS = 35  # of a text, as in BLIP; the rest is cut off
HIDDEN = -1e9  # a similarity that no softmax sees


def read(folder: Path, kind: str) -> tuple[dict, dict[str, bytes]]:
    """The config, and the other files that a model needs; a folder that was never trained may have no tokenizer."""
    config = json.loads((folder / LAYOUT.config).read_text(encoding="utf-8"))
    files = {n: (folder / n).read_bytes() for n in (PREPROCESSOR, *TOKENIZER) if (folder / n).is_file()}
    if PREPROCESSOR not in files:
        raise UserError(f"no {kind} that can be used in {folder}: {PREPROCESSOR} is missing")
    return config, files


def require_tokenizer(files: Mapping[str, bytes], folder: Path, kind: str) -> None:
    if TOKENIZER[0] not in files:
        raise UserError(f"no {kind} that can be used in {folder}: {TOKENIZER[0]} is missing; run: dvc repro")


def files_of(tokenizer: Any, images: Any) -> dict[str, bytes]:
    """As `read` finds them, of a tokenizer and an image processor of transformers."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        images.save_pretrained(folder)
        return {name: (Path(folder) / name).read_bytes() for name in (PREPROCESSOR, *TOKENIZER)}


def load_state(model: torch.nn.Module, state: Mapping[str, torch.Tensor], tied: str | None) -> None:
    """`tied` is how the name begins of a tensor that is another one again, if there is one: it may be missing."""
    result = model.load_state_dict(state, strict=False)
    missing = [name for name in result.missing_keys if tied is None or not name.startswith(tied)]
    if missing or result.unexpected_keys:
        raise UserError(f"the weights do not fit the config: missing {missing}, unknown {result.unexpected_keys}")


def tokenizer_of(files: Mapping[str, bytes], extra: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """`extra` are special tokens beside BERT's."""
    facts = json.loads(files.get(TOKENIZER[1], b"{}"))
    special = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    known = {name: facts[name] for name in special if isinstance(facts.get(name), str)}
    known = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"} | known
    length = facts.get("model_max_length", TEXT_TOKENS)
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(files[TOKENIZER[0]].decode()),
        model_max_length=int(min(length, 512)),
        additional_special_tokens=list(extra),
        **known,
    )


def tokens_of(tokenizer: PreTrainedTokenizerFast) -> Callable[[list[str]], torch.Tensor]:
    def tokenize(texts: list[str]) -> torch.Tensor:
        # All of one length: with padding as long as the longest, a text's features would depend on its neighbours.
        most = min(TEXT_TOKENS, tokenizer.model_max_length)
        found = tokenizer(texts, padding="max_length", truncation=True, max_length=most, return_tensors="pt")
        return found["input_ids"]

    return tokenize


def texts_of(tokenizer: PreTrainedTokenizerFast) -> Callable[[torch.Tensor], list[str]]:
    def decode(tokens: torch.Tensor) -> list[str]:
        return [text.strip() for text in tokenizer.batch_decode(tokens, skip_special_tokens=True)]

    return decode


def preprocessing(files: Mapping[str, bytes]) -> Callable[[Image.Image], torch.Tensor]:
    """As transformers does: the whole image is squeezed into a square; or, where the shortest edge has a size (as in
    GIT), the middle of the image is cut out.
    """
    facts = json.loads(files[PREPROCESSOR])
    cut = "shortest_edge" in facts["size"]
    size = facts["crop_size"] if cut else facts["size"]
    chosen = PreprocessCfg(
        size=(size["height"], size["width"]),
        mean=tuple(facts["image_mean"]),
        std=tuple(facts["image_std"]),
        interpolation="bicubic",
        resize_mode="shortest" if cut else "squash",
    )
    return image_transform_v2(chosen, is_train=False)


class Checkpointed(torch.nn.Module):
    """transformers checkpoints a layer only if it is in training; layers inside it (dropout) stay as `mode`."""

    def train(self, mode: bool = True) -> "Checkpointed":
        super().train(mode)
        for module in self.modules():
            if isinstance(module, GradientCheckpointingLayer) and module.gradient_checkpointing:
                module.training = True
        return self
