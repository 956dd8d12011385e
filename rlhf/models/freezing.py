"""Training the last blocks of a model only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rlhf.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def freeze_below(model: PreTrainedModel, layers: int) -> None:
    """Leaves the last blocks trainable and what stands behind them: the last norm, an output layer of its own.

    The embedding is frozen, and with it an output layer that is tied to it. No gradient flows below the first
    trainable block, so that nothing is kept for one there; no optimiser state is made for what is frozen.

    Args:
        model: A Hugging Face model, with or without a language-model head.
        layers: How many blocks; 0 leaves only what stands behind them.

    Raises:
        UserError: the model has fewer blocks, or none that can be told apart, or nothing is left to train.
    """
    blocks = check_layers(model, layers)
    model.requires_grad_(True)
    trained = {p for block in blocks[len(blocks) - layers :] for p in block.parameters()} | _behind(model, blocks)
    if not trained:
        raise UserError(
            f"trainable_layers: 0, but no weight of {type(model).__name__} stands behind its blocks; give at least 1"
        )
    for parameter in model.parameters():
        parameter.requires_grad_(parameter in trained)


def check_layers(model: PreTrainedModel, layers: int) -> list[nn.Module]:
    """The blocks of a model, whose last ones are to be trained.

    Raises:
        UserError: the model has fewer blocks, or none that can be told apart.
    """
    _, blocks = blocks_of(model, "leave trainable_layers null, to train everything")
    if layers > len(blocks):
        raise UserError(
            f"trainable_layers: {layers}, but {type(model).__name__} has {len(blocks)} blocks; give at most that many, "
            "or null to train everything"
        )
    return blocks


def blocks_of(model: PreTrainedModel, remedy: str) -> tuple[str, list[nn.Module]]:
    """The blocks of a model in order, and the name of the list that holds them.

    Raises:
        UserError: there is no such list; ``remedy`` is what to do then.
    """
    count = model.config.get_text_config().num_hidden_layers
    for name, module in model.named_modules():  # outer lists come before those inside their blocks, as of experts
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return name, list(module)
    raise UserError(f"{type(model).__name__} has no list of {count} blocks; {remedy}")


def _behind(model: PreTrainedModel, blocks: list[nn.Module]) -> set[nn.Parameter]:
    """The weights outside of the blocks that only act behind them, found by asking which a gradient reaches there.

    Names and order of registration differ between families; what a gradient from the output meets before the last
    block's result does not.
    """
    inside = {p for block in blocks for p in block.parameters()}
    embedding = set(model.get_input_embeddings().parameters())
    outside = [p for p in model.parameters() if p not in inside and p not in embedding]
    if not outside:
        return set()

    def cut(module: nn.Module, args: Any, output: Any) -> Any:
        hidden = output if isinstance(output, Tensor) else output[0]
        hidden = hidden.detach().requires_grad_()
        return hidden if isinstance(output, Tensor) else (hidden, *output[1:])

    handle = blocks[-1].register_forward_hook(cut)
    try:
        with torch.enable_grad():
            answer = model(input_ids=torch.tensor([[0, 1]], device=model.device), use_cache=False)[0]
            slopes = torch.autograd.grad(answer.float().sum(), outside, allow_unused=True)
    finally:
        handle.remove()
    return {parameter for parameter, slope in zip(outside, slopes, strict=True) if slope is not None}
