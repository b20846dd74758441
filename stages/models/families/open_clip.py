"""Models of open_clip: CLIP, SigLIP, MobileCLIP and others, by their names there or by a folder in its layout."""

import json
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import model_validator

from stages.models.families.base.family import ABILITIES, Aligned, Family, Names, Published
from stages.models.kinds import OPEN_CLIP, config_folder
from stages.sections import PositiveFloat

if TYPE_CHECKING:
    from stages.models.encoder import WholeEncoder


class Weights(Published):
    """Published weights: those of a name and a tag of open_clip, or a folder as its models have on the hub."""

    architecture: str
    pretrained: str | None = None  # one of the name's tags, as openai
    file: str | None = None  # a local file with them; without one they are downloaded

    @model_validator(mode="after")
    def _name_or_folder(self) -> "Weights":
        if FAMILY.recognises(config_folder(self.architecture)):
            if self.pretrained or self.file:
                raise ValueError("the architecture is a folder, which has its weights; leave out pretrained and file")
        elif self.pretrained is None:
            raise ValueError(
                f"pretrained is missing: one of the tags that open_clip has for {self.architecture!r}; or give a "
                f"folder with {OPEN_CLIP.config} as architecture"
            )
        return self


class Towers(Aligned):
    """Pretrained towers that come in Python packages, and projections fitted to public data."""

    architecture: str  # a folder with open_clip_config.json that names the packages
    ridge: PositiveFloat


class OpenClip(Family):
    name = "open_clip"
    layout, library = OPEN_CLIP, "open_clip"
    names = Names(image_tower=("visual.",), token_tables=("token_embedding", "word_embeddings"))
    weights, align, aligning = Weights, Towers, "alignment"

    def recognises(self, folder: Path) -> bool:
        return (folder / OPEN_CLIP.config).is_file()

    def abilities(self, entry: Mapping[str, Any]) -> frozenset[str]:
        architecture = entry.get("architecture")
        if not isinstance(architecture, str):
            return frozenset(ABILITIES)  # a mistake that is reported with the rest of the schema
        biased = _config(architecture).get("init_logit_bias") is not None
        return frozenset({"compares", *(["logit_bias"] if biased else [])})

    def create(self, folder: Path, texts: Iterable[str]) -> "WholeEncoder":
        from stages.models import clip

        return clip.create(str(folder))

    def load(self, folder: Path, weights: Path) -> "WholeEncoder":
        from stages.models import clip

        return clip.from_folder(folder, weights)

    def published(self, entry: Weights) -> "WholeEncoder":
        from stages.models import clip

        if entry.pretrained is None:
            return clip.published_folder(config_folder(entry.architecture))
        return clip.pretrained(entry.architecture, entry.pretrained, Path(entry.file) if entry.file else None)

    def sketch(self, entry: Weights | Towers, texts: Iterable[str]) -> "WholeEncoder":
        from stages.models import towers

        folder = config_folder(entry.architecture)
        return towers.create(folder) if isinstance(entry, Towers) else self.create(folder, texts)

    def loading(self, folder: str, ability: str) -> str:
        return f"""\
import open_clip
model, _, preprocess = open_clip.create_model_and_transforms("local-dir:{folder}")
tokenizer = open_clip.get_tokenizer("local-dir:{folder}")"""

    def pretraining(self, encoder: "WholeEncoder") -> str:
        return "contrastive" if encoder.model.logit_bias is None else "sigmoid"


def _config(architecture: str) -> dict:
    """The model's config in its folder, or that of its name in open_clip, which is not imported to read it."""
    folder, library = config_folder(architecture), find_spec("open_clip")
    named = Path((library and library.origin) or "", "..", "model_configs", f"{Path(architecture).name}.json").resolve()
    try:
        if (folder / OPEN_CLIP.config).is_file():
            return json.loads((folder / OPEN_CLIP.config).read_bytes())["model_cfg"]
        return json.loads(named.read_bytes())
    except (OSError, ValueError, LookupError, TypeError):
        return {}  # whoever creates the model says what is wrong


FAMILY = OpenClip()
