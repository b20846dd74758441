"""params.yaml as typed, frozen objects: `params.load()`."""

from stages.models.families import Published
from stages.params.models import Align, Pretrain
from stages.params.reading import load
from stages.params.schema import Compute, Evaluate, Method, Params, Privacy, Theory, Train

__all__ = [
    "Align",
    "Compute",
    "Evaluate",
    "Method",
    "Params",
    "Pretrain",
    "Privacy",
    "Published",
    "Theory",
    "Train",
    "load",
]
