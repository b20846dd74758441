"""What the sweep of params.yaml would do, and trains nothing: cells, noise, both epsilons, what is spent, time.

    python -m stages.plan                the whole plan
    python -m stages.plan --no-timing    without measuring steps

Time is that of the training steps alone, one cell after the other, on this machine. It is measured on random images.
"""

import os
from typing import cast

from stages import commands, markdown, params, progress
from stages.calibrate.guarantee import guarantee_of
from stages.data.manifest import Manifest
from stages.errors import run
from stages.keys import canonical_epsilon, data_dir
from stages.plan.spending import Planned, sentences
from stages.privacy.facts import round_up

COLUMNS = ("dataset", "method", "n", "batch", "steps", "delta", "epsilon", "sound", "paper's", "sigma")


def main() -> None:
    parser = commands.parser("stages.plan", __doc__)
    parser.add_argument("--no-timing", action="store_true", help="measure no steps")
    args, p = parser.parse_args(), params.load(check_sources=True)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

    sizes = {dataset: n_of(dataset, p) for dataset in p.sweep.dataset}
    print(f"{len(list(p.cells()))} cells: {counts(p)}\n")
    planned, rows = noise(p, sizes)
    print(markdown.table(COLUMNS, rows), end="\n\n")
    print(
        "sound: epsilon with the true sensitivity; paper's: what the paper's convention would claim for this noise.\n"
    )
    if said := sentences(planned, p):
        print("\n".join(said), end="\n\n")
    if not args.no_timing:
        rows, total = times(p, sizes)
        header = ("dataset", "model", "method", "seconds per step", "hours for all its cells")
        print(markdown.table(header, rows), end="\n\n")
        print(f"estimated for all training steps, one after the other on this machine: {total / 3600:.1f} hours")


def n_of(dataset: str, p: params.Params) -> int:
    """A public number: that of the records, or the one that stands for it."""
    if (public_n := p.privacy.public_n.get(dataset)) is not None:
        return public_n
    prepared = data_dir(dataset)
    return Manifest.read(prepared).n if prepared.is_dir() else p.datasets[dataset].quick_look().n


def counts(p: params.Params) -> str:
    axes = {axis: len(getattr(p.sweep, axis)) for axis in ("dataset", "model", "method", "epsilon", "seed")}
    return " x ".join(f"{count} {axis}{'' if count == 1 else 's'}" for axis, count in axes.items())


def noise(p: params.Params, sizes: dict[str, int]) -> tuple[list[Planned], list[tuple]]:
    settings = [(d, m, canonical_epsilon(e)) for d in sizes for m in p.sweep.method for e in p.sweep.epsilon]
    planned, rows = [], []
    for dataset, name, epsilon in progress.bar(settings, "calibrate", "settings"):
        method, n = p.train.on(dataset).methods[name], sizes[dataset]
        if epsilon in ("0", "inf"):
            continue
        g = guarantee_of(
            name,
            p.privacy.sampling,
            n=n,
            public_n=p.privacy.public_n.get(dataset),
            batch_size=method.batch_size,
            epochs=method.epochs,
            steps=method.steps,
            epsilon=float(epsilon),
            delta=p.privacy.delta,
            convention=p.privacy.convention,
        )
        planned.append(Planned(dataset, method.clip_norm, g))
        sound, claimed = round_up(g.epsilon, 3), round_up(g.epsilon_paper, 3)
        row = (
            dataset,
            name,
            n,
            method.batch_size,
            g.steps,
            f"{g.delta:.3g}",
            epsilon,
            sound,
            claimed,
            f"{g.sigma:.4g}",
        )
        rows.append(row)
    return planned, rows


def times(p: params.Params, sizes: dict[str, int]) -> tuple[list[tuple], float]:
    from stages.plan.timing import seconds_a_step
    from stages.privacy.sampling import sampling_of

    trained = sum(canonical_epsilon(e) != "0" for e in p.sweep.epsilon) * len(p.sweep.seed)
    settings = [(d, model, m) for d in sizes for model in p.sweep.model for m in p.sweep.method]
    rows, total = [], 0.0
    for dataset, model, name in progress.bar(settings, "measure steps", "settings"):
        t = p.train.on(dataset)
        method = t.methods[name]
        sampling = sampling_of(p.privacy.sampling, sizes[dataset], method.batch_size)
        steps = method.steps or sampling.steps(cast(float, method.epochs))
        bank = p.banks.get(model)
        first, pairs = (bank.model, bank.pairs) if bank else (model, 0)
        each = seconds_a_step(first, p.models[first], name, t, p.compute, p.datasets[dataset].has_questions, pairs)
        total += each * steps * trained
        rows.append((dataset, model, name, f"{each:.3g}", f"{each * steps * trained / 3600:.3g}"))
    return rows, total


if __name__ == "__main__":
    run(main)
