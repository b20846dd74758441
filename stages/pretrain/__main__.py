"""Public, non-private initialisation -> models/NAME. No private data are read.

A model of the section `pretrain` learns from public data, one of `align` has pretrained towers and gets projections
fitted to public data, one of `weights` is taken as it was released, and one of `banks` is one of these
with public pairs beside it.
"""

from importlib import import_module

from stages import commands, params
from stages.atomic import new_folder
from stages.errors import UserError, run
from stages.keys import data_dir, initial_model_dir
from stages.models import bank, families, saved
from stages.models.encoder import device_of
from stages.pretrain.learning import pretrained


def main() -> None:
    parser = commands.parser("stages.pretrain", __doc__)
    parser.add_argument("--model", required=True, help="a name in `pretrain`, `align`, `weights` or `banks`")
    name = parser.parse_args().model
    p = params.load()
    match p.models.get(name, p.banks.get(name)):
        case params.Pretrain() as config:
            encoder = pretrained(config, p.compute.device)
        case params.Aligned() as config:
            fitting = import_module(f"stages.pretrain.{families.of(config.model_dump()).aligning}")
            at_once, device = p.compute.records_at_once, device_of(p.compute.device)
            encoder = fitting.aligned(config, data_dir(config.data), at_once, device)
        case params.Published() as config:
            encoder = families.of(config.model_dump()).published(config)
        case params.Bank() as config:
            with new_folder(initial_model_dir(name)) as folder:
                data, device = data_dir(config.data), device_of(p.compute.device)
                bank.write(folder, initial_model_dir(config.model), data, config.pairs, device)
            return
        case _:
            raise UserError(
                f"model {name!r} is in none of pretrain, align, weights and banks of params.yaml; "
                f"known: {', '.join((*p.models, *p.banks))}"
            )
    with new_folder(initial_model_dir(name)) as folder:
        saved.save(encoder, folder)


if __name__ == "__main__":
    run(main)
