"""Which part of a model is trained, by the names of its tensors."""

import torch

from stages.errors import UserError
from stages.keys import WITH_ADAPTERS
from stages.models.heads import projections

IMAGE = ("visual.", "vision_model.", "vision_proj.")  # open_clip's and BLIP's names
# Of a BLIP: what the contrastive loss does not reach. Noise on it would protect nothing and spoil the captions.
BEYOND_THE_LOSS = ("text_decoder.", "itm_head.")
BEYOND_THE_LOSS_WITHIN = ".crossattention."


def of_image(name: str) -> bool:
    return name.startswith(IMAGE)


def in_loss(name: str) -> bool:
    return not name.startswith(BEYOND_THE_LOSS) and BEYOND_THE_LOSS_WITHIN not in name


def trainable_parameters(
    model: torch.nn.Module, part: str, lora_rank: int = 8, seed: int = 0
) -> dict[str, torch.nn.Parameter]:
    """Freeze all but the named part; returns what stays trainable, by name.

    For LoRA, adapters are put in first. `seed` chooses where they start, which is public, as all initial weights are.
    """
    if part in WITH_ADAPTERS:
        with torch.random.fork_rng():  # nothing else draws from it
            torch.manual_seed(seed)
            _add_adapters(model, lora_rank, image_only=part == "image-lora")
    heads = projections(name for name, _ in model.named_parameters())

    def is_trained(name: str) -> bool:
        match part:
            case "all":
                return True
            case "no-token-table":
                return not any(p in ("token_embedding", "word_embeddings") for p in name.split("."))
            case "image-tower":
                return of_image(name)
            case "projections":
                return name in heads
            case "image-projection":
                return name in heads and of_image(name)
            case _ if part in WITH_ADAPTERS:
                return ".lora_" in name
            case _:
                raise ValueError(f"unknown part {part!r}")

    for name, parameter in model.named_parameters():
        parameter.requires_grad_(in_loss(name) and is_trained(name))
    chosen = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not chosen:
        raise UserError(f"trainable: {part!r} matches no parameter of this model; choose all or image-tower")
    return chosen


def _add_adapters(model: torch.nn.Module, rank: int, image_only: bool) -> None:
    """A matrix of low rank beside each linear layer of the towers.

    Attention of torch's own class is left out: it reads the weights of its layers past the adapters.
    """
    from peft import LoraConfig, inject_adapter_in_model

    heads = projections(name for name, _ in model.named_parameters())
    targets = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
        and in_loss(name)
        and (of_image(name) or not image_only)
        and not name.endswith(".out_proj")
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
