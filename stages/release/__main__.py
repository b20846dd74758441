"""Release a model: one folder that leaves the house, with its card, its privacy statement and the whole weights.

python -m stages.release --cell CELL                  into releases/CELL-with-dashes
python -m stages.release --cell CELL --to FOLDER

It loads without this project, in open_clip or transformers. What has no sound guarantee is refused. Each release is
written into the ledger first, and its joint epsilon with all earlier ones stands on the card; privacy.release_budget
limits it. The same run released again charges nothing more.
"""

from pathlib import Path

from safetensors import SafetensorError

from stages import commands, params
from stages.atomic import new_folder
from stages.data.manifest import Manifest
from stages.errors import UserError, run
from stages.keys import Cell, data_dir
from stages.privacy.facts import round_up
from stages.privacy.releases import Releases
from stages.release.allowed import joint_within, released_outcome
from stages.release.card import UNSTATED, Card
from stages.release.folder import default_folder, family_of, require_replaceable, write
from stages.release.words import licences

EVER = "ever released, taken together,"


def main() -> None:
    parser = commands.parser("stages.release", __doc__)
    parser.add_argument("--cell", required=True, help="task/dataset/model/method/eps-E/seed-S")
    parser.add_argument("--to", type=Path, metavar="FOLDER", help="default: releases/CELL-with-dashes")
    parser.add_argument("--licence", default=UNSTATED, metavar="ID", help="of the weights, by Hugging Face's names")
    args, p = parser.parse_args(), params.load()
    cell = Cell.parse(args.cell)
    to = (args.to or default_folder(cell)).resolve()
    outcome = released_outcome(cell)
    joint, known = joint_within(outcome, p.privacy.release_budget)
    card = Card(
        outcome,
        family_of(cell),
        to.name,
        joint.sentence(EVER) if joint else None,
        scores_stay(cell, p),
        args.licence,
        licences(cell, p),
    )
    try:
        with new_folder(to) as folder:
            write(folder, card, joint)
            require_replaceable(to, {path.name for path in folder.iterdir()})
            if outcome.training.run:
                Releases().add(outcome.training.run, str(cell), known)  # last: what can fail has not failed
    except (OSError, SafetensorError) as error:
        raise UserError(f"the release could not be written to {to} ({error})") from None
    together = f"; all models ever released: epsilon {round_up(joint.published, 4)}" if joint else ""
    print(f"{cell}: wrote {args.to or default_folder(cell)}{together}")


def scores_stay(cell: Cell, p: params.Params) -> bool:
    """Whether the test split is private, by the data as they were prepared or by params.yaml as it is now."""
    source = p.datasets.get(cell.dataset)
    return Manifest.read(data_dir(cell.dataset)).private_test or bool(source and source.private_test)


if __name__ == "__main__":
    run(main)
