"""params.yaml as typed, frozen objects: `params.load()`."""

from stages.params.reading import load
from stages.params.schema import (
    Align,
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
    Weights,
)

__all__ = [
    "Align",
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
    "Weights",
    "load",
]
