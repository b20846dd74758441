"""GIT of transformers (stages/models/git.py): it writes captions, and compares nothing."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stages.models.families.base.family import Family, Names, Published, type_in_transformers
from stages.models.kinds import TRANSFORMERS, config_folder

if TYPE_CHECKING:
    from stages.models.encoder import WholeEncoder


class GitWeights(Published):
    """Published weights of a GIT that captions."""

    architecture: Literal["git"]
    captioner: str  # its name on the hub, as microsoft/git-base-coco, or a local folder


class Git(Family):
    name = "git"
    layout, library = TRANSFORMERS, "transformers"
    names = Names(
        image_tower=("git.image_encoder.",),
        decoder=("git.visual_projection.", "git.embeddings.", "git.encoder.", "output."),
        token_tables=("word_embeddings", "output.weight"),
    )
    weights = GitWeights

    def recognises(self, folder: Path) -> bool:
        return type_in_transformers(folder) == "git"

    def abilities(self, entry: Mapping[str, Any]) -> frozenset[str]:
        return frozenset({"captions"})

    def create(self, folder: Path, texts: Iterable[str]) -> "WholeEncoder":
        from stages.models import git

        return git.create(folder, texts)

    def load(self, folder: Path, weights: Path) -> "WholeEncoder":
        from stages.models import git

        return git.from_folder(folder, weights)

    def published(self, entry: GitWeights) -> "WholeEncoder":
        from stages.models import git

        return git.pretrained(entry.captioner)

    def sketch(self, entry: GitWeights, texts: Iterable[str]) -> "WholeEncoder":
        return self.create(config_folder("stages/models/configs/git-base"), texts)

    def loading(self, folder: str, ability: str) -> str:
        return f"""\
from transformers import AutoTokenizer, CLIPImageProcessor, GitForCausalLM
model = GitForCausalLM.from_pretrained("{folder}").eval()
preprocess, tokenizer = CLIPImageProcessor.from_pretrained("{folder}"), AutoTokenizer.from_pretrained("{folder}")"""

    def pretraining(self, encoder: "WholeEncoder") -> str:
        return "writing"


FAMILY = Git()
