"""Models on disk, in the layout of the library they come from, as their family (families/) says.

What training changed is kept by itself (`save_changes`): a head that was trained on a frozen tower is a small file.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from stages.errors import UserError
from stages.models import families
from stages.models.encoder import WholeEncoder
from stages.models.heads import needed, on_trunks
from stages.models.kinds import config_folder

CHANGES = "changes.safetensors"
WEIGHTS = tuple(dict.fromkeys(family.layout.weights for family in families.known().values()))


def exists(folder: Path) -> bool:
    return any((folder / name).is_file() for name in WEIGHTS)


def load(folder: Path, changes: Path | None = None) -> WholeEncoder:
    """A saved model; with `changes`, a folder that `save_changes` made from it, as it was after that training."""
    encoder = families.of_folder(folder).load(folder, _weights(folder))
    if changes is not None:
        unknown = encoder.model.load_state_dict(_changes(changes), strict=False).unexpected_keys
        if unknown:
            raise UserError(f"{changes} was not made from {folder}: {unknown[0]} is not in it; run: dvc repro")
    return encoder


def heads(folder: Path, changes: Path | None = None) -> dict[str, torch.nn.Parameter] | None:
    """The projections of a saved model and its logit_scale alone: what there is to train on features of its towers.

    None if `changes` are of more than that. Neither the towers nor their libraries are loaded, which takes longer than
    such a training.
    """
    trained = {} if changes is None else _changes(changes)
    with safe_open(_weights(folder), framework="pt") as tensors:
        if not trained.keys() <= set(on_trunks(tensors.keys())):
            return None
        found = {name: tensors.get_tensor(name) for name in needed(tensors.keys())} | trained
    return {name: torch.nn.Parameter(tensor) for name, tensor in found.items()}


def create(architecture: str, texts: Iterable[str] = ()) -> WholeEncoder:
    """A model with random weights: from a folder with its config, or by its name in open_clip.

    `texts` are public; a model of transformers whose folder has no tokenizer makes its vocabulary of them.
    """
    folder = config_folder(architecture)
    return families.of_folder(folder).create(folder, texts)


def save(encoder: WholeEncoder, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(state(encoder.model), folder / encoder.layout.weights)
    (folder / encoder.layout.config).write_text(json.dumps(encoder.config, indent=2) + "\n", encoding="utf-8")
    for name, content in encoder.files.items():
        (folder / name).write_bytes(content)


def save_changes(model: torch.nn.Module | None, base: Path, folder: Path) -> None:
    """The tensors that are not those of the model in `base`; None for a model that was not trained."""
    with safe_open(_weights(base), framework="pt") as before:
        after = state(model) if model is not None else {}
        changed = {k: v for k, v in after.items() if not torch.equal(v, before.get_tensor(k))}
    save_file(changed, folder / CHANGES)


def changed(folder: Path) -> list[str]:
    """The names of the tensors that `save_changes` kept."""
    with safe_open(folder / CHANGES, framework="pt") as tensors:
        return list(tensors.keys())


def sha256(folder: Path) -> str:
    """Of a saved model's weights."""
    with _weights(folder).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def state(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """A tensor that has two names (tied weights) is there once, under the first."""
    by_identity: dict[int, tuple[str, torch.Tensor]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        by_identity.setdefault(id(tensor), (name, tensor))
    return {name: tensor.detach().cpu().contiguous() for name, tensor in by_identity.values()}


def _weights(folder: Path) -> Path:
    found = [folder / name for name in WEIGHTS if (folder / name).is_file()]
    if not found:
        raise UserError(f"no model in {folder}: {' or '.join(WEIGHTS)} is missing; run: dvc repro")
    return found[0]


def _changes(folder: Path) -> dict[str, torch.Tensor]:
    if not (folder / CHANGES).is_file():
        raise UserError(f"no trained weights in {folder}: {CHANGES} is missing; run: dvc repro")
    return load_file(folder / CHANGES)
