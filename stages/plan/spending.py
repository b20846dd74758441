"""What the private cells of a sweep would add to what was spent on the records, before anything is charged."""

from dataclasses import dataclass

from stages import params
from stages.data.manifest import Manifest
from stages.keys import data_dir
from stages.privacy import secret
from stages.privacy.facts import Guarantee, round_up
from stages.privacy.ledger import Charge, Ledger, total_epsilon
from stages.privacy.records import Records


@dataclass(frozen=True)
class Planned:
    """A private setting, which each model and seed of the sweep is trained with once."""

    dataset: str
    clip_norm: float
    guarantee: Guarantee

    def charge(self) -> Charge:
        g = self.guarantee
        facts = {"cell": "planned", "private": True, "clip_norm": self.clip_norm, "neighbours": g.adjacency}
        return Charge(n=g.n, q=g.q, steps=g.steps, sigma=g.sigma, z=g.z, sampler=g.sampler, **facts)  # type: ignore[arg-type]


def sentences(planned: list[Planned], p: params.Params) -> list[str]:
    """Of each dataset that is prepared; the others have no records yet that anything could be charged to."""
    times, found = len(p.sweep.model) * len(p.sweep.seed), []
    for dataset in dict.fromkeys(each.dataset for each in planned):
        folder = data_dir(dataset)
        if not folder.is_dir() or p.privacy.unsafe_noise_seed is not None or p.privacy.unsafe_diagnostics:
            continue
        secret.require(Manifest.read(folder).ledger, str(folder))
        its = [each for each in planned if each.dataset == dataset]
        delta, before = its[0].guarantee.delta, list(Ledger().on(Records.read(folder)).values())
        relations = {charge.sampling.relation for charge in (*before, its[0].charge()) if charge.private}
        if len(relations) > 1:
            found.append(f"{dataset}: its runs so far are for other neighbours, so none of these will be started")
            continue
        spent = total_epsilon(before, delta)
        # More than any one record has, if some of these runs were on others: the sound side.
        after = total_epsilon([*before, *(each.charge() for each in its for _ in range(times))], delta)
        left, budget = "", p.privacy.budget
        if budget is not None and after > budget:
            left = f"; OVER the budget of {budget:g}: runs that would exceed it do not start"
        elif budget is not None:
            left = f"; of the budget of {budget:g}, {budget - after:.4g} would be left"
        found.append(
            f"{dataset}: epsilon {round_up(spent, 4)} was spent on its records so far, {round_up(after, 4)} if all "
            f"{len(its) * times} private cells are trained once more, at delta {delta:.3g}{left}"
        )
    return found
