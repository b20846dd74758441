"""Class names and prompts of published sets, as `labels/NAME.json` has them."""

import functools
from pathlib import Path

from stages.data.rows import Labels, read_labels


@functools.cache
def published(name: str) -> Labels:
    return read_labels(Path(__file__).parent / "labels" / f"{name}.json")
