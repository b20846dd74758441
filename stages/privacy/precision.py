"""Products in full precision, whatever the process has asked for elsewhere.

Training may ask torch for faster float32 products (TF32 on GPUs, bf16 in oneDNN). That is a matter of the gradients
alone: whatever they are, they are clipped. But what measures and adds them must not be rounded to 10 bits.

    >>> torch.set_float32_matmul_precision("medium")
    >>> with full_precision():
    ...     torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision
    ('ieee', 'ieee')
    >>> torch.get_float32_matmul_precision()
    'medium'
    >>> torch.set_float32_matmul_precision("highest")
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch

BACKENDS = cast(Any, torch.backends)  # its types lack half of what follows
SETTINGS = (  # a later one, where it says nothing itself, says what the earlier ones do
    BACKENDS,
    BACKENDS.cudnn,
    BACKENDS.mkldnn,
    BACKENDS.cuda.matmul,
    BACKENDS.cudnn.conv,
    BACKENDS.cudnn.rnn,
    BACKENDS.mkldnn.matmul,
    BACKENDS.mkldnn.conv,
    BACKENDS.mkldnn.rnn,
)
REDUCTIONS = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")


@contextmanager
def full_precision() -> Iterator[None]:
    """Within it no float32 product is shortened, and no sum of bf16 or fp16 products; afterwards all is as it was."""
    kept = []
    reductions = {name: getattr(torch.backends.cuda.matmul, name) for name in REDUCTIONS}
    try:
        for setting in SETTINGS:
            if (value := setting.fp32_precision) != "ieee":
                kept.append((setting, value))
                setting.fp32_precision = "ieee"
        for name in REDUCTIONS:
            setattr(torch.backends.cuda.matmul, name, False)
        yield
    finally:
        for setting, value in reversed(kept):
            setting.fp32_precision = value
        for name, value in reductions.items():
            setattr(torch.backends.cuda.matmul, name, value)
