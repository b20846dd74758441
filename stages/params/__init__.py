"""params.yaml as typed, frozen objects: `params.load()`."""

from stages.params.models import Align, BlipWeights, Model, PlainVectors, Pretrain, ReferredVectors, Weights
from stages.params.reading import load
from stages.params.schema import Compute, Evaluate, Method, Params, Privacy, Theory, Train

__all__ = [
    "Align",
    "BlipWeights",
    "Compute",
    "Evaluate",
    "Method",
    "Model",
    "Params",
    "PlainVectors",
    "Pretrain",
    "Privacy",
    "ReferredVectors",
    "Theory",
    "Train",
    "Weights",
    "load",
]
