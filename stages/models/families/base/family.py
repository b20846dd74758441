"""What every family of models declares. The rest of the project asks these objects and knows no family by its name."""

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from stages.models.kinds import OPEN_CLIP, TRANSFORMERS, Layout, config_folder
from stages.sections import Name, Section

if TYPE_CHECKING:  # none of it is needed to read params.yaml, and it takes seconds
    from stages.models.encoder import WholeEncoder

# What a model can do, and how that is said. Losses and tasks name those they need.
ABILITIES = {
    "compares": "compares images with texts",
    "logit_bias": "has a logit_bias, as a SigLIP",
    "captions": "writes captions",
    "answers": "answers questions",
}


@dataclass(frozen=True)
class Names:
    """Where a family's tensors are, by how their names begin; those in none of these compare, and do not write."""

    image_tower: tuple[str, ...] = ()  # sees the image, for comparing and for writing
    image_head: tuple[str, ...] = ()  # after it, for comparing alone
    question_encoder: tuple[str, ...] = ()
    decoder: tuple[str, ...] = ()
    neither: tuple[str, ...] = ()  # part of neither comparing nor writing
    cross_attention: tuple[str, ...] = ()  # anywhere in a name: how a text looks at an image
    token_tables: tuple[str, ...] = ()  # a whole name, or a part of one between dots


class Aligned(Section):
    """An entry of `align` in params.yaml: a model fitted to public data. A family adds what it needs to know."""

    architecture: str
    data: Name


class Published(Section):
    """An entry of `weights` in params.yaml. A family adds what it needs to know."""

    architecture: str


class Family(ABC):
    """Derive from it, and read git.py beside this."""

    name: ClassVar[str]  # that of the file; `architecture` of an entry of `weights`, unless the family takes others
    layout: ClassVar[Layout]
    names: ClassVar[Names]
    library: ClassVar[str] = "safetensors"  # that loads a saved folder without this project, as Hugging Face names it
    weights: ClassVar[type[Published] | None] = None  # its entries of `weights`; None: it has no published weights
    align: ClassVar[type[Aligned] | None] = None  # its entries of `align`
    aligning: ClassVar[str | None] = None  # the file in stages/pretrain that has `aligned` for them

    def recognises(self, folder: Path) -> bool:
        """Whether a folder, which may not exist, holds the config of such a model; nothing heavy is imported."""
        return False

    def takes(self, entry: Mapping[str, Any]) -> bool:
        """Whether an entry of `pretrain`, `align` or `weights` is of this family. It may have mistakes."""
        architecture = entry.get("architecture")
        if not isinstance(architecture, str):
            return False
        return architecture == self.name or self.recognises(config_folder(architecture))

    @abstractmethod
    def abilities(self, entry: Mapping[str, Any]) -> frozenset[str]:
        """Those of ABILITIES that the model of such an entry has."""

    def missing(self, entry: Mapping[str, Any], ability: str) -> str | None:
        """The key without which an entry of `weights` gives a model that cannot do it."""
        return None

    @abstractmethod
    def create(self, folder: Path, texts: Iterable[str]) -> "WholeEncoder":
        """Random weights. Of the public `texts` a model without a tokenizer makes its vocabulary."""

    @abstractmethod
    def load(self, folder: Path, weights: Path) -> "WholeEncoder":
        """A saved model."""

    def published(self, entry: Any) -> "WholeEncoder":
        """Published weights; `entry` is of the type `weights`."""
        raise NotImplementedError(f"{self.name} has no published weights")

    def sketch(self, entry: Any, texts: Iterable[str]) -> "WholeEncoder":
        """A model like the one of an entry of `weights` or `align`, with random weights: it takes as much time."""
        return self.create(config_folder(entry.architecture), texts)

    def loading(self, folder: str, ability: str) -> str:
        """Python that loads a saved folder, with its library alone, for whoever needs the ability."""
        return f'from safetensors.torch import load_file\ntensors = load_file("{folder}/{self.layout.weights}")'

    @abstractmethod
    def pretraining(self, encoder: "WholeEncoder") -> str:
        """How it learns from public data: the name of a loss, or of a file in stages/pretrain that has `loss`."""


def type_in_transformers(folder: Path) -> str | None:
    """What the config.json of a folder says; None for a folder of open_clip, where it may be that of a text tower."""
    config = folder / TRANSFORMERS.config
    if (folder / OPEN_CLIP.config).is_file() or not config.is_file():
        return None
    try:
        facts = json.loads(config.read_bytes())
    except ValueError:
        return None  # whoever loads the folder says what is wrong with it
    return facts.get("model_type") if isinstance(facts, dict) else None
