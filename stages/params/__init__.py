"""params.yaml as typed, frozen objects: `params.load()`."""

from stages.params.data import (
    Benchmark,
    Coco,
    CocoSplit,
    EasyVqa,
    Folder,
    FontDigits,
    Mnist5k,
    OpticalDigits,
    Scenes,
    Source,
    Vqa,
    VqaSplit,
)
from stages.params.models import Align, BlipWeights, Pretrain, Weights
from stages.params.reading import load
from stages.params.schema import Compute, Evaluate, GroupMethod, Method, Params, Privacy, Theory, Train

__all__ = [
    "Align",
    "Benchmark",
    "BlipWeights",
    "Coco",
    "CocoSplit",
    "Compute",
    "EasyVqa",
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
    "Scenes",
    "Source",
    "Theory",
    "Train",
    "Vqa",
    "VqaSplit",
    "Weights",
    "load",
]
