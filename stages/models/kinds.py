"""Where a model's configuration is, and which library it is of. Nothing heavy is imported to say so."""

import json
from pathlib import Path

OPEN_CLIP = "open_clip_config.json"
VECTORS = "vectors.json"
INSTALLED = Path(__file__).parents[2]  # the folder of `stages`


def config_folder(architecture: str | Path) -> Path:
    """An architecture of params.yaml as a folder: stages/models/configs/NAME is in the package, outside a clone too.

    >>> config_folder("stages/models/configs/tiny-clip").is_dir(), config_folder("ViT-B-32").is_dir()
    (True, False)
    """
    here, installed = Path(architecture), INSTALLED / architecture
    ours = here.parts[:1] == ("stages",) and not here.is_dir() and installed.is_dir()
    return installed if ours else here


def is_blip(folder: Path) -> bool:
    folder = config_folder(folder)
    config = folder / "config.json"  # in a folder of open_clip it may be a text tower's
    if (folder / OPEN_CLIP).is_file() or not config.is_file():
        return False
    try:
        facts = json.loads(config.read_bytes())
    except ValueError:
        return False  # whoever loads the folder says what is wrong with it
    return isinstance(facts, dict) and facts.get("model_type") == "blip"


def is_vectors(folder: Path) -> bool:
    return (config_folder(folder) / VECTORS).is_file()
