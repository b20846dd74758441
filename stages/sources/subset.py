"""Low data: a fixed part of the units, chosen for each unit by its own id and a public seed alone.

    >>> units = [f"photo-{i}.png" for i in range(10)]
    >>> taken(units, fraction=0.3, seed=0)
    ['photo-2.png', 'photo-4.png', 'photo-6.png', 'photo-9.png']
    >>> taken(units[:2] + units[3:], fraction=0.3, seed=0)
    ['photo-4.png', 'photo-6.png', 'photo-9.png']

A unit is taken if the number that a hash makes of (seed, id), uniform in [0, 1), is below the fraction. So about
fraction * n of n units are taken, and about that share of each class; neither is exact.

Why not exactly so many, or a share of every class: stages/privacy/README.md section 6. Let one record be replaced by an
empty one, as neighbours differ. Whether any *other* record is taken is a function of its id, the seed and the fraction,
and none of these changed: the two subsets differ in that one record at most, and what is guaranteed for the records of
the subset holds for those of the whole. A choice that fills a quota, of the whole or of a class, breaks this: the place
that one record frees goes to another one, and ranks and draws move for hundreds. `units: K` of N images is the fraction
K/N; N is public and the same for neighbours. Where N is secret (privacy.public_n), `units` is refused.
"""

import hashlib
from collections.abc import Iterable

from stages.errors import UserError
from stages.sections import Fraction, Seed
from stages.sources.source import Source


class Part(Source):
    """A source that may give about a fraction of its training units; n, q and delta follow it."""

    train_fraction: Fraction | None = None
    subset_seed: Seed = 0  # chooses the units


def position(text: str) -> float:
    """A fixed number in [0, 1) for each text, as if drawn uniformly."""
    return (int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 11) / 2**53


def taken(units: Iterable[str], fraction: float | None, seed: int) -> list[str]:
    """Those of `units` that are in the part, in their order; all of them without a fraction."""
    return [u for u in units if fraction is None or position(f"subset {seed} of {u}") < fraction]


def require_some(part: list[str], key: str, value: float | None) -> None:
    if not part:
        raise UserError(f"{key} {value} took no unit; give a larger one, or another seed")


def note(fraction: float | None, seed: int) -> str:
    """What the manifest's source says of it."""
    return "" if fraction is None else f", train_fraction {fraction} (subset_seed {seed})"
