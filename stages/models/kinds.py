"""Which library a model's folder is of. Nothing heavy is imported to say so."""

import json
from pathlib import Path

OPEN_CLIP = "open_clip_config.json"


def is_blip(folder: Path) -> bool:
    config = folder / "config.json"  # in a folder of open_clip it may be a text tower's
    if (folder / OPEN_CLIP).is_file() or not config.is_file():
        return False
    try:
        facts = json.loads(config.read_bytes())
    except ValueError:
        return False  # whoever loads the folder says what is wrong with it
    return isinstance(facts, dict) and facts.get("model_type") == "blip"
