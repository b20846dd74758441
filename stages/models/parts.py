"""Which part of a model is trained, by the names of its tensors."""

from collections.abc import Callable, Iterable

import torch

from stages.errors import UserError
from stages.keys import FOR_VECTORS, with_adapters
from stages.models import families
from stages.models.heads import ADAPTER, CENTRE, PROBE, projections

LOGIT_BIAS = "logit_bias"  # of a SigLIP; of all losses that compare, the pairwise one alone reads it


def _all(field: str) -> tuple[str, ...]:
    """What the families say of a part; their names do not clash (tests/models/test_families.py)."""
    return tuple(dict.fromkeys(name for family in families.known().values() for name in getattr(family.names, field)))


TOWER, DECODER, QUESTIONS = _all("image_tower"), _all("decoder"), _all("question_encoder")
IMAGE, LOOKS, TABLES = (*TOWER, *_all("image_head")), _all("cross_attention"), _all("token_tables")
NOT_COMPARED = (*DECODER, *_all("neither"))
# By piece, where its tensors are; token tables belong to none, because a decoder's is its output layer too.
PIECES: dict[str, Callable[[str], bool]] = {
    "image-tower": lambda name: name.startswith(IMAGE),
    "question-encoder": lambda name: name.startswith(QUESTIONS),
    "decoder": lambda name: name.startswith(DECODER),
    "cross-attention": lambda name: _looks(name),
}


def of_image(name: str) -> bool:
    return name.startswith(IMAGE)


def compares(name: str) -> bool:
    """Whether the similarity of an image and a text depends on the tensor of this name."""
    return not name.startswith(NOT_COMPARED) and not _looks(name) and name != LOGIT_BIAS


def writes(name: str, with_questions: bool) -> bool:
    """Whether what is written of an image depends on it: nothing that only compares, and what reads a question only
    where there are some.
    """
    return name.startswith((*TOWER, *DECODER, *(QUESTIONS if with_questions else ())))


def _looks(name: str) -> bool:
    return any(part in name for part in LOOKS)


def trainable_parameters(
    model: torch.nn.Module, part: str, lora_rank: int = 8, seed: int = 0, reached: Callable[[str], bool] = compares
) -> dict[str, torch.nn.Parameter]:
    """Freeze all but the named part; returns what stays trainable, by name. A tensor with two names is there once.

    `reached` are the tensors that the loss depends on: noise on any other would protect nothing and spoil it. For LoRA,
    adapters are put in first. `seed` chooses where they start, which is public, as all initial weights are.
    """
    if with_adapters(part):
        with torch.random.fork_rng():  # nothing else draws from it
            torch.manual_seed(seed)
            _add_adapters(model, part, lora_rank, reached)
    heads = projections(name for name, _ in model.named_parameters())

    def is_trained(name: str) -> bool:
        match part:
            case "all":
                return True
            case "no-token-table":
                return not _of_tokens(name)
            case "projections":
                return name in heads
            case "image-projection":
                return name in heads and of_image(name)
            case "adapter":
                return name == ADAPTER
            case "probe":
                return name in (PROBE, CENTRE)
            case _ if with_adapters(part):
                return ".lora_" in name
            case _:
                return _in_pieces(name, part.split("+"))

    for name, parameter in model.named_parameters():
        parameter.requires_grad_(reached(name) and is_trained(name))
    chosen = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not chosen and part in FOR_VECTORS:
        raise UserError(f"trainable: {part!r} is in models for vectors alone (stages/data/README.md), and this is none")
    if not chosen:
        raise UserError(f"trainable: {part!r} matches no parameter of this model; choose all or image-tower")
    return chosen


def _of_tokens(name: str) -> bool:
    return name in TABLES or any(part in TABLES for part in name.split("."))


def _in_pieces(name: str, pieces: Iterable[str]) -> bool:
    return not _of_tokens(name) and any(PIECES[piece](name) for piece in pieces)


def _add_adapters(model: torch.nn.Module, part: str, rank: int, reached: Callable[[str], bool]) -> None:
    """A matrix of low rank beside each linear layer of the towers, or of the pieces that are named.

    Attention of torch's own class is left out: it reads the weights of its layers past the adapters.
    """
    from peft import LoraConfig, inject_adapter_in_model

    heads = projections(name for name, _ in model.named_parameters())
    pieces = [p.removesuffix("-lora").replace("image", "image-tower") for p in part.split("+")]
    targets = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
        and reached(f"{name}.weight")
        and (part == "lora" or _in_pieces(f"{name}.weight", pieces))
        and not name.endswith(".out_proj")
        and not _of_tokens(f"{name}.weight")
        and f"{name}.weight" not in heads
    ]
    if not targets:
        raise UserError("trainable: lora matches no layer of this model; choose all, image-tower or projections")
    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=rank, target_modules=targets), model)


def merge_adapters(model: torch.nn.Module) -> None:
    """Add what adapters learned to the layers they stand beside: the model has its usual layers again."""
    from peft.tuners.lora import LoraLayer

    for name, module in list(model.named_modules()):
        if isinstance(module, LoraLayer):
            module.merge()
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, module.base_layer)
