"""params.yaml as typed, frozen objects: `params.load()`."""

from stages.params.reading import load
from stages.params.schema import (
    Benchmark,
    Compute,
    Evaluate,
    Folder,
    FontDigits,
    GroupMethod,
    Method,
    Mnist5k,
    OpticalDigits,
    Params,
    Pretrain,
    Privacy,
    Source,
    Train,
)

__all__ = [
    "Benchmark",
    "Compute",
    "Evaluate",
    "Folder",
    "FontDigits",
    "GroupMethod",
    "Method",
    "Mnist5k",
    "OpticalDigits",
    "Params",
    "Pretrain",
    "Privacy",
    "Source",
    "Train",
    "load",
]
