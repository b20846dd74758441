"""Models on disk, in the layout of the library they come from: CLIPs in open_clip's, BLIPs in that of transformers.

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
from stages.models import clip
from stages.models.encoder import Encoder
from stages.models.kinds import is_blip

CHANGES = "changes.safetensors"


def exists(folder: Path) -> bool:
    return _weights(folder) is not None


def load(folder: Path, changes: Path | None = None) -> Encoder:
    """A saved model; with `changes`, a folder that `save_changes` made from it, as it was after that training."""
    if (weights := _weights(folder)) is None:
        raise UserError(f"no model in {folder}: it has no weights; run: dvc repro")
    if is_blip(folder):
        from stages.models import blip

        encoder = blip.from_folder(folder, weights)
    else:
        encoder = clip.from_folder(folder, weights)
    if changes is not None:
        if not (changes / CHANGES).is_file():
            raise UserError(f"no trained weights in {changes}: {CHANGES} is missing; run: dvc repro")
        unknown = encoder.model.load_state_dict(load_file(changes / CHANGES), strict=False).unexpected_keys
        if unknown:
            raise UserError(f"{changes} was not made from {folder}: {unknown[0]} is not in it; run: dvc repro")
    return encoder


def create(architecture: str, texts: Iterable[str] = ()) -> Encoder:
    """A model with random weights: from a folder with its config, or by its name in open_clip.

    `texts` are public; a BLIP whose folder has no tokenizer makes its vocabulary of them.
    """
    if not is_blip(Path(architecture)):
        return clip.create(architecture)
    from stages.models import blip  # transformers takes its time

    return blip.create(Path(architecture), texts)


def save(encoder: Encoder, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(state(encoder.model), folder / encoder.layout.weights)
    (folder / encoder.layout.config).write_text(json.dumps(encoder.config, indent=2) + "\n", encoding="utf-8")
    for name, content in encoder.files.items():
        (folder / name).write_bytes(content)


def save_changes(encoder: Encoder, base: Path, folder: Path) -> None:
    """The tensors that are not those of the model in `base`."""
    with safe_open(base / encoder.layout.weights, framework="pt") as before:
        changed = {k: v for k, v in state(encoder.model).items() if not torch.equal(v, before.get_tensor(k))}
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
    by_identity = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        by_identity.setdefault(id(tensor), (name, tensor))
    return {name: tensor.detach().cpu().contiguous() for name, tensor in by_identity.values()}


def _weights(folder: Path) -> Path | None:
    names = ("open_clip_model.safetensors", "model.safetensors")
    return next((folder / name for name in names if (folder / name).is_file()), None)
