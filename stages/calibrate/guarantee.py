"""The guarantee that a cell of params.yaml asks for, or that values given by hand do."""

from stages import params
from stages.data.manifest import Manifest
from stages.keys import Cell, data_dir
from stages.privacy.facts import Guarantee, PrivacyFacts, delta_of


def of_cell(cell: Cell, p: params.Params) -> PrivacyFacts:
    guarantee, public_n = None, p.privacy.public_n.get(cell.dataset)
    if cell.is_private:
        n, method = Manifest.read(data_dir(cell.dataset)).n, p.train.on(cell.dataset).methods[cell.method]
        guarantee = guarantee_of(
            cell.method,
            p.privacy.sampling,
            n=n,
            public_n=public_n,
            batch_size=method.batch_size,
            epochs=method.epochs,
            steps=method.steps,
            epsilon=float(cell.epsilon),
            delta=p.privacy.delta,
            convention=p.privacy.convention,
        )
    return PrivacyFacts(
        task=cell.task,
        dataset=cell.dataset,
        method=cell.method,
        target=cell.epsilon,
        public_n=public_n,
        guarantee=guarantee,
    )


def guarantee_of(
    method: str, sampler: str, *, n, batch_size, epochs, steps, epsilon, delta, convention, public_n=None
) -> Guarantee:
    """`delta` is the setting. With `public_n`, which stands for a secret n, nothing comes from n."""
    from stages.calibrate.calibration import calibrate
    from stages.privacy.accounting import Plan
    from stages.privacy.methods import METHODS
    from stages.privacy.sampling import sampling_of

    sampling = sampling_of(sampler, n, batch_size, public_n)
    plan = Plan(sampling, METHODS[method](clip_norm=1.0, sigma=1.0), steps or sampling.steps(epochs))
    return calibrate(plan, sampler, epsilon, delta_of(delta, sampling.n), convention)
