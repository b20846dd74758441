"""Where a model's configuration is, and the files of its folder. Nothing heavy is imported to say so."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Layout:
    """The names of the files in a saved model's folder; they are those of the library that made the model."""

    config: str
    weights: str


OPEN_CLIP = Layout("open_clip_config.json", "open_clip_model.safetensors")
TRANSFORMERS = Layout("config.json", "model.safetensors")
VECTORS = Layout("vectors.json", "model.safetensors")
INSTALLED = Path(__file__).parents[2]  # the folder of `stages`


def config_folder(architecture: str | Path) -> Path:
    """An architecture of params.yaml as a folder: stages/models/configs/NAME is in the package, outside a clone too.

    >>> config_folder("stages/models/configs/tiny-clip").is_dir(), config_folder("ViT-B-32").is_dir()
    (True, False)
    """
    here, installed = Path(architecture), INSTALLED / architecture
    ours = here.parts[:1] == ("stages",) and not here.is_dir() and installed.is_dir()
    return installed if ours else here
