"""Outputs of the frozen towers of a model on a dataset -> features/DATASET/MODEL, for every epsilon and seed."""

from stages import commands, params
from stages.atomic import new_folder
from stages.errors import UserError, run
from stages.keys import ON_FROZEN_TOWERS, data_dir, features_dir, initial_model_dir
from stages.models import features, saved
from stages.models.encoder import device_of


def main() -> None:
    parser = commands.parser("stages.encode", __doc__)
    parser.add_argument(
        "--dataset", required=True, help="a name in `prepare`, `folders`, `coco` or `vqa` of params.yaml"
    )
    parser.add_argument("--model", required=True, help="a name in `pretrain`, `align`, `weights` or `banks`")
    args, p = parser.parse_args(), params.load()
    models = (*p.models, *p.banks)
    if args.dataset not in p.datasets or args.model not in models:
        raise UserError(
            f"no dataset {args.dataset!r} or no model {args.model!r} in params.yaml; datasets: "
            f"{', '.join(p.datasets)}; models: {', '.join(models)}"
        )

    wanted = any(p.train.on(args.dataset).methods[name].trainable in ON_FROZEN_TOWERS for name in p.sweep.method)
    with new_folder(features_dir(args.dataset, args.model)) as folder:
        if not wanted:
            features.write_none(folder)
            print(f"{args.dataset}, {args.model}: every method trains a tower, so nothing is computed ahead")
            return
        model, device = initial_model_dir(args.model), device_of(p.compute.device)
        clip, at_once = saved.load(model), p.compute.records_at_once
        features.write(folder, clip, data_dir(args.dataset), saved.sha256(model), at_once, device)


if __name__ == "__main__":
    run(main)
