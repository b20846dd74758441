"""What is said of a released model beside its guarantee: where it comes from, and under which licences."""

from pathlib import Path

from stages import params
from stages.data.manifest import Manifest
from stages.errors import UserError
from stages.keys import Cell, data_dir

NO_AUDIT = (
    "None was run: nobody measured a lower bound on the epsilon of this model. The guarantee rests on its proof and on "
    "tests of the code that made it."
)


def licences(cell: Cell, p: params.Params) -> list[tuple[str, str]]:
    """(what, under which licence), of the private data and of the model that training started from."""
    return [(f"private data, `{cell.dataset}`", _of_data(cell.dataset)), *_of_base(cell.model, p)]


def _of_base(model: str, p: params.Params) -> list[tuple[str, str]]:
    entry = p.models.get(model, p.banks.get(model))
    base = f"initial model, `{model}`"
    match entry:
        case params.Pretrain():
            return [(f"{base}: made from public data, `{entry.data}`", _of_data(entry.data))]
        case params.Aligned():
            towers = (f"{base}: `{_without_path(entry.architecture)}`", "that of its packages or files")
            return [towers, (f"public data it was fitted to, `{entry.data}`", _of_data(entry.data))]
        case params.Published():
            named = entry.model_dump(exclude_none=True, exclude={"file"})
            what = ", ".join(f"{key} {_without_path(value)}" for key, value in named.items())
            return [(f"{base}: published weights ({what})", "that of their publisher")]
        case params.Bank():
            bank = (f"public pairs that its loss stood against, `{entry.data}`", _of_data(entry.data))
            return [*_of_base(entry.model, p), bank]
    return [(base, "not stated: params.yaml does not name it now")]


def _without_path(value: object) -> str:
    """Where a folder is on this machine is nobody's business."""
    return Path(str(value)).name if Path(str(value)).exists() else str(value)


def _of_data(name: str) -> str:
    try:
        return Manifest.read(data_dir(name)).licence
    except UserError:
        return "not stated: the data are not prepared here"
