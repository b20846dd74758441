"""Low data: a fixed part of the training units, every class with its share.

    >>> labels = [0] * 6 + [1] * 3 + [2]
    >>> chosen = stratified(labels, fraction=0.5, seed=0)
    >>> [labels[i] for i in chosen]
    [0, 0, 0, 1, 2]

The guarantee is for the records of the subset: n, q and delta are the subset's, and what was left out was not trained
on. Which records were chosen depends on the labels of all of them and on a public seed; that choice is not covered.
"""

from collections.abc import Sequence

import numpy as np

from stages.errors import UserError


def size(fraction: float | None, n: int) -> int:
    return n if fraction is None else round(fraction * n)


def note(fraction: float | None, seed: int) -> str:
    """What the manifest's source says of it."""
    return "" if fraction is None else f", train_fraction {fraction} (subset_seed {seed})"


def stratified(labels: Sequence, fraction: float | None, seed: int) -> np.ndarray:
    """Sorted indices of size(fraction, n) labels: shares by largest remainder, at random within a class.

    Every class has at least one, where that many are wanted.
    """
    n = len(labels)
    total = size(fraction, n)
    if total == n:
        return np.arange(n)
    if not total:
        raise UserError(f"train_fraction {fraction} of {n} training units is none; give a larger one")
    _, class_of, counts = np.unique(np.asarray(labels), return_inverse=True, return_counts=True)
    due = counts * total / n
    shares = np.floor(due).astype(int)
    if total >= len(counts):
        shares = np.maximum(shares, 1)
    while shares.sum() < total:
        shares[np.argmax(due - shares)] += 1
    while shares.sum() > total:  # the classes that were given their one: others give way, none below one
        shares[np.argmin(np.where(shares > 1, due - shares, np.inf))] -= 1
    rng = np.random.default_rng(seed)
    members = [np.flatnonzero(class_of == k) for k in range(len(counts))]
    return np.sort(np.concatenate([rng.choice(m, s, replace=False) for m, s in zip(members, shares, strict=True)]))
