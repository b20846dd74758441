"""Norms and sums of clipped gradients are computed in full precision, whatever the process has asked for elsewhere."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stages.privacy import factored, gradients, grid, onepass
from stages.privacy.precision import REDUCTIONS, SETTINGS
from tests.privacy.cancelling import crafted, ordinary, together


def now() -> tuple:
    return *(s.fp32_precision for s in SETTINGS), *(getattr(torch.backends.cuda.matmul, name) for name in REDUCTIONS)


FULL = ("ieee",) * len(SETTINGS) + (False,) * len(REDUCTIONS)


@pytest.fixture
def fast():
    """All that torch can be asked for."""
    kept = now()
    for setting in SETTINGS:
        setting.fp32_precision = "tf32"
    for name in REDUCTIONS:
        setattr(torch.backends.cuda.matmul, name, True)
    yield now()
    for setting, value in zip(SETTINGS, kept, strict=False):
        setting.fp32_precision = value


class Watch(TorchDispatchMode):
    """The precision at every operation, by its name and its type."""

    def __init__(self):
        super().__init__()
        self.seen: dict[tuple, set] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.seen.setdefault((function.overloadpacket.__name__, result.dtype), set()).add(now())
        return result


# By the way a sum is computed, the operations that measure and add, and those of the model.
WAYS = {
    "vmapped": (gradients, {"linalg_vector_norm", "round_"}, {"mm", "bmm"}),
    "one pass": (gradients, {"linalg_vector_norm", "round_"}, {"mm"}),  # and bmm, which is the loss's too
    "factored": (factored, {"bmm", "mm"}, {"mm", "bmm"}),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("length", [1.0, 1e9])
def test_norms_and_sums_are_in_full_precision_and_the_models_products_are_as_asked(fast, way, length, monkeypatch):
    objective, trained, rows = crafted("Linear", "projections", "contrastive", length)
    rows, units = together(ordinary(rows, 0), rows, ordinary(rows, 1))
    module, measures, models = WAYS[way]
    known = onepass.learned(objective, trained, rows) if way == "one pass" else None
    monkeypatch.setattr(onepass, "known", lambda *_: known)
    with Watch() as watch:
        module.clipped_sum(objective, trained, rows, units, 0.1, 100)
    assert now() == fast
    kinds = {"bmm": torch.float64, "mm": torch.float64}
    measuring = {n: v for (n, kind), v in watch.seen.items() if n in measures and kinds.get(n, kind) == kind}
    measuring |= {"made": watch.seen["bmm", torch.float32] - {fast}} if way == "one pass" else {}
    assert len(measuring) >= 2 and all(v == {FULL} for v in measuring.values()), measuring
    products = [v for (n, kind), v in watch.seen.items() if n in models and kind == torch.float32]
    assert products and all(v == {fast} for v in products)


def test_it_is_as_before_also_after_an_error(fast):
    with pytest.raises(RuntimeError, match="inside"), gradients.full_precision():
        assert now() == FULL
        raise RuntimeError("inside")
    assert now() == fast


def test_a_setting_that_follows_another_one_still_follows_it():
    torch.backends.fp32_precision = "tf32"
    try:
        with gradients.full_precision():
            pass
        assert torch.backends.mkldnn.conv.fp32_precision == "tf32"
        torch.backends.fp32_precision = "ieee"
        assert torch.backends.mkldnn.conv.fp32_precision == "ieee"
    finally:
        torch.backends.fp32_precision = "none"


def test_one_clipped_unit_is_the_same_under_all_settings(fast):
    objective, trained, rows = crafted("Parameter", "projections", "contrastive", 10.0)
    total, _ = factored.clipped_sum(objective, trained, rows, np.zeros(3, int), 0.1, 100)
    length = sum(t.square().sum() for t in total).sqrt() * grid.grid_of(0.1)
    assert 0.0999 < length <= 0.1
