"""How far down the list one has to look: ranks of what belongs to a query, by similarity.

    >>> similarity = np.array([[0.9, 0.5, 0.1], [0.2, 0.2, 0.2]])  # of two queries to three things
    >>> belongs = np.array([[False, True, True], [True, False, False]])
    >>> ranks(similarity, belongs).tolist()
    [2, 3]
    >>> recall(ranks(similarity, belongs), at=2)
    0.5

The second query finds all things equally similar, and what belongs to it comes last: who says the same of everything
has found nothing.
"""

import numpy as np


def ranks(similarity: np.ndarray, belongs: np.ndarray) -> np.ndarray:
    """(queries,): 1 + how many things that do not belong to a query are at least as similar as the best that does."""
    best = np.where(belongs, similarity, -np.inf).max(axis=1, keepdims=True)
    if not np.isfinite(best).all():
        raise ValueError("there is a query to which nothing belongs, or a similarity that is not finite")
    return 1 + (~belongs & (similarity >= best)).sum(axis=1)


def recall(found: np.ndarray, at: int) -> float:
    """The share of queries for which one of the first `at` things belongs to them."""
    return float((found <= at).mean())
