"""What was spent on the records of a dataset, in words."""

from collections.abc import Collection

from stages.privacy.facts import round_up
from stages.privacy.ledger import Ledger, total_epsilon
from stages.privacy.records import Records


def show(
    name: str,
    ledger: Ledger,
    records: Records,
    delta: float,
    budget: float | None,
    released: Collection[str] = (),
    release_budget: float | None = None,
) -> str:
    """`released` are runs, on whatever records."""
    by_run = ledger.on(records)
    charges = list(by_run.values())
    private = [c for c in charges if c.private]
    lines = [f"{name}: {len(charges)} run(s) on its records, {len(private)} of them private"]
    lines += [
        f"  {c.cell}: epsilon {round_up(total_epsilon([c], delta), 4)} "
        f"(sigma {c.sigma:.4g}, q {c.q:.4g}, {c.steps} steps)"
        if c.private
        else f"  {c.cell}: NOT PRIVATE; no epsilon covers its release"
        for c in charges
    ]
    spent = ledger.total(records, delta)
    neighbours = " and ".join(sorted({c.sampling.adjacency.value for c in private})) or "no private run"
    lines.append(
        f"  all private runs together, for the record that most was spent on: epsilon {round_up(spent, 4)} "
        f"at delta {delta:.3g}, {neighbours}"
    )
    if budget is not None:
        lines.append(f"  budget {budget:g}, of which {max(0.0, budget - spent):.4g} is left")
    out, given = ledger.total(records, delta, released), sorted(by_run[run].cell for run in released if run in by_run)
    if given:
        lines.append(f"  released {len(given)}: {', '.join(given)}")
        lines.append(f"  all that was released together: epsilon {round_up(out, 4)} at delta {delta:.3g}")
    if release_budget is not None:
        lines.append(f"  release budget {release_budget:g}, of which {max(0.0, release_budget - out):.4g} is left")
    return "\n".join(lines)
