"""What has been spent on the records, over all runs ever made on them, and what of it was released.

python -m stages.ledger                       for every dataset of the sweep
python -m stages.ledger --dataset mnist5k     for one
python -m stages.ledger --convert             take over ledgers made before charges went by record
"""

from pathlib import Path

from stages import commands, params
from stages.data.manifest import Manifest
from stages.errors import run
from stages.keys import data_dir
from stages.ledger.converting import convert
from stages.ledger.spent import show
from stages.privacy import secret
from stages.privacy.facts import delta_of
from stages.privacy.ledger import Ledger
from stages.privacy.records import Records
from stages.privacy.releases import Releases


def main() -> None:
    parser = commands.parser("stages.ledger", __doc__)
    parser.add_argument("--dataset", help="a name in params.yaml; default: the datasets of the sweep")
    parser.add_argument("--convert", action="store_true", help="take over ledgers that went by a dataset's content")
    args, p = parser.parse_args(), params.load()
    if args.convert:
        print(convert(secret.folder(), Path("data")))
        return
    for name in [args.dataset] if args.dataset else p.sweep.dataset:
        manifest = Manifest.read(data_dir(name))
        secret.require(manifest.ledger, str(data_dir(name)))
        delta = delta_of(p.privacy.delta, p.privacy.public_n.get(name, manifest.n))
        records, out = Records.read(data_dir(name)), Releases().runs()
        print(show(name, Ledger(), records, delta, p.privacy.budget, out, p.privacy.release_budget))


if __name__ == "__main__":
    run(main)
