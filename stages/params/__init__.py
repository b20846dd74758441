"""params.yaml as typed, frozen objects: `params.load()`."""

from stages.models.families import Aligned, Published
from stages.params.models import Bank, Pretrain
from stages.params.reading import load
from stages.params.schema import Compute, Evaluate, Method, Params, Privacy, Theory, Train

__all__ = [
    "Aligned",
    "Bank",
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
