"""DVC's graph as plain names: which stages there are, what each waits for, and which are up to date."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import networkx

from stages.errors import UserError

# What may want a GPU, and needs nothing but DVC's files
ON_WORKERS = ("pretrain", "align", "bank", "encode", "train", "evaluate")


@dataclass(frozen=True)
class Graph:
    """`upstream[node]` are the nodes it needs. `fresh` are the ones nothing has to be done for."""

    upstream: dict[str, tuple[str, ...]]  # in an order in which every node comes after what it needs
    fresh: frozenset[str]
    stages: dict[str, tuple[str, ...]]  # by node, the stages of it in the order in which they run; mostly itself

    def joined(self, name_of: Callable[[str], str]) -> "Graph":
        """The stages that are given one name become one node, which runs them one after the other."""
        upstream: dict[str, set[str]] = {}
        stages: dict[str, tuple[str, ...]] = {}
        for stage, needed in self.upstream.items():
            name = name_of(stage)
            stages[name] = (*stages.get(name, ()), stage)
            upstream.setdefault(name, set()).update({name_of(each) for each in needed} - {name})
        graph = networkx.DiGraph([(need, node) for node, needed in upstream.items() for need in needed])
        graph.add_nodes_from(upstream)
        order = networkx.lexicographical_topological_sort(graph, key=list(upstream).index)
        fresh = {name for name, members in stages.items() if self.fresh.issuperset(members)}
        return Graph({name: tuple(sorted(upstream[name])) for name in order}, frozenset(fresh), stages)

    def only(self, nodes: Iterable[str]) -> "Graph":
        """These nodes alone; what they need is taken as it is."""
        kept = [node for node in self.upstream if node in set(nodes)]
        upstream = {node: tuple(need for need in self.upstream[node] if need in kept) for node in kept}
        return Graph(upstream, frozenset(), {node: self.stages[node] for node in kept})

    def inputs(self, node: str) -> list[str]:
        """The stages whose outputs `node` reads."""
        return [stage for each in self.upstream[node] for stage in self.stages[each]]


def require_clone() -> None:
    if not Path("dvc.yaml").is_file():
        raise UserError(
            f"no dvc.yaml in {Path.cwd()}: a flow runs DVC's graph, which is in a clone of the project. Outside one, "
            "the stages run one by one, by their names (dp-clip --help)"
        )


def kind(stage: str) -> str:
    return stage.partition("@")[0]


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
    upstream = {stage: tuple(sorted(graph.successors(stage))) for stage in order}
    return Graph(upstream, frozenset(fresh), {stage: (stage,) for stage in order})


def names() -> list[str]:
    from dvc.repo import Repo

    with Repo() as repo:
        return [stage.addressing for stage in repo.index.stages]
