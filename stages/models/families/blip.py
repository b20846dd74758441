"""BLIP of transformers (stages/models/blip.py): it compares images with texts, writes captions, answers questions."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import model_validator

from stages.models.families.base.family import Family, Names, Published, type_in_transformers
from stages.models.kinds import TRANSFORMERS, config_folder

if TYPE_CHECKING:
    from stages.models.encoder import WholeEncoder

WRITERS = {"captions": "captioner", "answers": "answerer"}  # the key of `weights` for what a decoder writes

CLASSES = {
    "compares": "BlipForImageTextRetrieval",
    "captions": "BlipForConditionalGeneration",
    "answers": "BlipForQuestionAnswering",
}


class BlipWeights(Published):
    """Published weights of a BLIP, each by its name on the hub or a local folder."""

    architecture: Literal["blip"]
    captioner: str | None = None  # its vision tower and decoder, as Salesforce/blip-image-captioning-base
    answerer: str | None = None  # or its vision tower, question encoder and decoder, as Salesforce/blip-vqa-base
    contrastive: str  # its contrastive and matching heads, as Salesforce/blip-itm-base-coco

    @property
    def writer(self) -> str:
        return self.captioner or self.answerer or ""  # one of them is given

    @model_validator(mode="after")
    def _one_writer(self) -> "BlipWeights":
        if (self.captioner is None) == (self.answerer is None):
            raise ValueError("give either captioner or answerer")
        return self


class Blip(Family):
    name = "blip"
    layout, library = TRANSFORMERS, "transformers"
    names = Names(
        image_tower=("vision_model.",),
        image_head=("vision_proj.",),
        question_encoder=("text_encoder.",),
        decoder=("text_decoder.",),
        neither=("itm_head.",),
        cross_attention=(".crossattention.",),
        # the last two are one tensor: a decoder's word embeddings are its output layer
        token_tables=("word_embeddings", "text_decoder.cls.predictions.decoder.weight"),
    )
    weights = BlipWeights

    def recognises(self, folder: Path) -> bool:
        return type_in_transformers(folder) == "blip"

    def abilities(self, entry: Mapping[str, Any]) -> frozenset[str]:
        return frozenset({"compares", "captions", "answers"})

    def missing(self, entry: Mapping[str, Any], ability: str) -> str | None:
        key = WRITERS.get(ability)
        return key if key and entry.get("architecture") == self.name and not entry.get(key) else None

    def create(self, folder: Path, texts: Iterable[str]) -> "WholeEncoder":
        from stages.models import blip

        return blip.create(folder, texts)

    def load(self, folder: Path, weights: Path) -> "WholeEncoder":
        from stages.models import blip

        return blip.from_folder(folder, weights)

    def published(self, entry: BlipWeights) -> "WholeEncoder":
        from stages.models import blip

        return blip.pretrained(entry.writer, entry.answerer is not None, entry.contrastive)

    def sketch(self, entry: BlipWeights, texts: Iterable[str]) -> "WholeEncoder":
        return self.create(config_folder("stages/models/configs/blip-base"), texts)

    def loading(self, folder: str, ability: str) -> str:
        return f"""\
from transformers import AutoTokenizer, BlipImageProcessor, {CLASSES[ability]}
model = {CLASSES[ability]}.from_pretrained("{folder}").eval()
preprocess, tokenizer = BlipImageProcessor.from_pretrained("{folder}"), AutoTokenizer.from_pretrained("{folder}")"""

    def pretraining(self, encoder: "WholeEncoder") -> str:
        return "blip"  # its three losses at once


FAMILY = Blip()
