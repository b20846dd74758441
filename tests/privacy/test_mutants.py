"""The audit of one step finds nothing in the code as it is, and finds each of the mistakes that would break it.

How tight it is, at delta = 10^-5, for q = 1/2 and mu = 2, with 2,000 runs of each side. One step claims epsilon 8.98.

    batch, group, example; each unit's gradient or factors      at least 4.5 to 5.9 in 12 audits
    two steps without sampling, which claim 15.46                at least 10.3 to 11.4

What is missing to the claim is the price of bounds that hold but for once in 10^7 audits. The mistake that shows least
is a clip for each of two tensors, which makes mu 1.4 times as large: at least 11.8 to 13 where 10.0 is claimed.
"""

import dataclasses

import numpy as np
import pytest
import torch

from stages.privacy import factored
from stages.privacy import gradients as g
from stages.privacy.accounting import Plan
from stages.privacy.methods.batch import BatchClipping
from stages.privacy.methods.example import ExampleClipping
from stages.privacy.methods.group import GroupClipping
from stages.privacy.sampling import FixedSizeSampling, PoissonSampling, ShuffledBatches
from stages.train import loop
from tests.privacy.cancelling import crafted
from tests.privacy.one_step_audit import Step, audit
from tests.privacy.test_factored import Linear, parameters, records, same

C, Z, N = 0.3, 0.5, 12
MECHANISMS = {
    "batch": BatchClipping(C, 2 * Z),
    "group": GroupClipping(C, 2 * Z, groups=2),
    "example": ExampleClipping(C, Z),
}


def step(method: str, path: str = "gradients", n: int = N, size: int = N // 2, rows=None, **changes) -> Step:
    """All records push the same way, far beyond C, and the sign of a unit's gradient turns with each one more."""
    objective = Linear(couple=method != "example")
    objective.factors = objective.factors if path == "factored" else None
    plan = Plan(PoissonSampling(n, size), MECHANISMS[method], steps=1)
    return dataclasses.replace(Step(plan, objective, parameters(), (rows or same(n, 50.0),)), **changes)


def cancelling(method: str) -> Step:
    """The long gradient of the target, beside two records that cancel each other."""
    objective, trained, rows = crafted("Linear", "image-projection", "contrastive", 1e9)
    return Step(Plan(PoissonSampling(3, 3), MECHANISMS[method], 1), objective, trained, (rows,))


@pytest.mark.slow
@pytest.mark.parametrize("path", ["gradients", "factored"])
@pytest.mark.parametrize("method", MECHANISMS)
def test_the_code_as_it_is_passes(method, path):
    claimed, found = audit(step(method, path), runs=2000)
    print(f"{method:8} {path:10} claimed {claimed:.2f}, at least {found:.2f}")
    assert 0.3 * claimed < found <= claimed  # and it does find most of what is there


@pytest.mark.slow
def test_it_passes_on_records_that_cancel_in_two_steps_and_in_groups_of_records_of_all_lengths():
    for one, runs in ((cancelling("batch"), 1000), (two_steps(), 1000), (uneven_groups(GroupClipping), 200)):
        claimed, found = audit(one, runs)
        print(f"claimed {claimed:.2f}, at least {found:.2f}")
        assert found <= claimed


def two_steps() -> Step:
    """The weights have moved meanwhile, and the target pushes the other way."""
    rows = same(N, 50.0)
    return step("example", size=N, records=(rows, {k: -t for k, t in rows.items()}))


def uneven_groups(kind) -> Step:
    """In each group one record outshines the others: to move it to a group of another size turns its sign."""
    scales = 10 ** torch.linspace(2, 6, 50)[:, None]
    rows = {k: t * scales for k, t in records(50, seed=3).items()}
    return step("group", rows=rows, claimed=Plan(PoissonSampling(50, 50), kind(C, 2 * Z, groups=20), 1))


class Chunked(GroupClipping):
    def assign(self, records, key, t):
        return np.argsort(key.stream("unit", t).permutation(len(records))) * self.groups // len(records)


class TwiceAsOften(PoissonSampling):
    def sample(self, *args):
        return PoissonSampling(self.n, 2 * self.batch_size).sample(*args)


class EveryCaption(PoissonSampling):
    """Captions are drawn, and the target's image has four."""

    def sample(self, key, t, size):
        captions = PoissonSampling(size + 3, round(self.q * (size + 3))).sample(key, t, size + 3)
        return np.minimum(captions, self.n - 1)


def clip_each_tensor(patch) -> Step:
    jointly = g._on_grid
    patch.setattr(g, "_on_grid", lambda tensors, _, C: [jointly([t], g._joint_norms([t]), C)[0] for t in tensors])
    return step("batch", size=N)


def half_the_noise(patch) -> Step:
    real = loop.noised
    patch.setattr(loop, "noised", lambda total, grid, std, *rest: real(total, grid, std / 2, *rest))
    return step("example", size=N)


def the_same_noise_again(patch) -> Step:
    real = loop.noised
    patch.setattr(loop, "noised", lambda total, grid, std, key, t, *rest: real(total, grid, std, key, 0, *rest))
    return two_steps()


def a_norm_that_rounds_to_zero(patch) -> Step:
    def lossy(X, D):
        squares = sum(((X[n] @ X[n].mT) * (D[n] @ D[n].mT)).sum((1, 2)) for n in X)
        return squares.clamp(min=0).sqrt(), torch.zeros_like(squares)

    patch.setattr(factored, "bounded_norms", lossy)
    return cancelling("batch")


MUTANTS = {
    "a clip for each tensor": clip_each_tensor,
    "groups cut from a shuffled batch": lambda _: uneven_groups(Chunked),
    "half the noise": half_the_noise,
    "the same noise in two steps": the_same_noise_again,
    "every caption is a record": lambda _: step("example", sampler=EveryCaption(N, N // 2)),
    "a norm that rounds to zero": a_norm_that_rounds_to_zero,
    "records drawn twice as often": lambda _: step("example", sampler=TwiceAsOften(N, N // 2)),
    "batches of one size, accounted as Poisson": lambda _: step("example", sampler=FixedSizeSampling(N, N // 2)),
    "a shuffled loader, accounted as Poisson": lambda _: step("example", sampler=ShuffledBatches(N, N // 2)),
}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_audit_finds(mutant, monkeypatch):
    # So many that what is found lies above the claim by nine standard deviations or more.
    runs = 2500 if mutant.startswith(("a clip", "batches", "a shuffled")) else 1000
    runs = 200 if mutant.startswith("groups") else runs  # no two of its batches are equal, which takes its time
    claimed, found = audit(MUTANTS[mutant](monkeypatch), runs)
    print(f"{mutant}: claimed {claimed:.2f}, at least {found:.2f}")
    assert found > claimed
