"""params.yaml as typed, frozen objects: `params.load()`."""

from stages.params.models import Align, Bank, BlipWeights, Pretrain, Weights
from stages.params.reading import load
from stages.params.schema import Compute, Evaluate, Method, Params, Privacy, Theory, Train

__all__ = [
    "Align",
    "Bank",
    "BlipWeights",
    "Compute",
    "Evaluate",
    "Method",
    "Params",
    "Pretrain",
    "Privacy",
    "Theory",
    "Train",
    "Weights",
    "load",
]
