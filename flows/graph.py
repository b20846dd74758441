"""DVC's graph as plain names: which stages there are, what each waits for, and which are up to date."""

from collections.abc import Iterable
from dataclasses import dataclass

import networkx


@dataclass(frozen=True)
class Graph:
    """`upstream[stage]` are the stages it needs. `fresh` are the ones nothing has to be done for."""

    upstream: dict[str, tuple[str, ...]]  # in an order in which every stage comes after what it needs
    fresh: frozenset[str]


def read(targets: Iterable[str] = ()) -> Graph:
    """The part of the pipeline in this folder that `targets` need; all of it by default."""
    from dvc.repo import Repo

    with Repo() as repo:
        # DVC's edges point upstream. Names are its addresses: train@classification-mnist5k-...
        graph = networkx.relabel_nodes(repo.index.graph, {stage: stage.addressing for stage in repo.index.stages})
        changed = set(repo.status())
    if targets := set(targets):
        needed = targets.union(*(networkx.descendants(graph, target) for target in targets))
        graph = graph.subgraph(needed)
    order = list(networkx.topological_sort(graph.reverse(copy=False)))
    fresh = {s for s in order if s not in changed and changed.isdisjoint(networkx.descendants(graph, s))}
    return Graph({stage: tuple(sorted(graph.successors(stage))) for stage in order}, frozenset(fresh))


def names() -> list[str]:
    from dvc.repo import Repo

    with Repo() as repo:
        return [stage.addressing for stage in repo.index.stages]
