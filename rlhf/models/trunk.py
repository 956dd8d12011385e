"""How a Hugging Face model is called: positions, masks, packed rows, and its language-model head apart."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from rlhf.errors import UserError
from rlhf.types import Sequences

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def run_trunk(trunk: nn.Module, sequences: Sequences) -> Tensor:
    """[B, S, D] last hidden states of a Hugging Face base model; see :func:`_run` for what it is given."""
    return _run(trunk, sequences)[0]


def run_whole(lm: PreTrainedModel, sequences: Sequences) -> Tensor:
    """[B, S, V] logits of the model's own forward."""
    return _run(lm, sequences).logits


def apply_head(lm: PreTrainedModel, hidden: Tensor) -> Tensor:
    """[N, V] fp32 logits of [N, D] hidden states: output embedding, then the scalings that some families have."""
    logits = cast(nn.Module, lm.get_output_embeddings())(hidden)
    logits = logits if logits.dtype == torch.float64 else logits.float()
    config = lm.config.get_text_config()
    if scale := getattr(config, "logit_scale", None):  # Cohere
        logits = logits * scale
    if scale := getattr(config, "logits_scaling", None):  # Granite
        logits = logits / scale
    if cap := getattr(config, "final_logit_softcapping", None):  # Gemma 2 and later
        logits = cap * torch.tanh(logits / cap)
    return logits


def _run(module: nn.Module, sequences: Sequences) -> Any:
    """Calls a Hugging Face model with position ids from the mask, so that left pads change nothing."""
    positions = sequences.position_ids
    _check_positions(module, sequences, positions)
    extra: dict[str, Tensor] = {}
    if "position_ids" in inspect.signature(module.forward).parameters:
        extra["position_ids"] = positions
    elif sequences.segments is not None:
        raise UserError(f"packing: {type(module).__name__} takes no position ids; turn packing off for this model")
    mask = sequences.attention_mask.long() if sequences.segments is None else _packed_mask(module, sequences)
    return module(input_ids=sequences.ids, attention_mask=mask, use_cache=False, **extra)


def _check_positions(module: nn.Module, sequences: Sequences, positions: Tensor) -> None:
    config = getattr(module, "config", None)
    limit = getattr(config, "max_position_embeddings", None)
    if limit and positions.shape[1] > limit and int(positions.max()) >= limit:
        raise UserError(
            f"sequence: {int(positions.max()) + 1} tokens but {type(module).__name__} has max_position_embeddings "
            f"{limit}; shorten the prompt or response limit"
        )
    for name in ("sliding_window", "attention_chunk_size") if sequences.segments is not None else ():
        window = getattr(config, name, None)
        if window and positions.shape[1] > window and int(positions.max()) >= window:
            raise UserError(
                f"packing: an example of {int(positions.max()) + 1} tokens but {type(module).__name__} attends to "
                f"{window} at a time ({name}); turn packing off, or shorten the examples"
            )


def _packed_mask(module: nn.Module, sequences: Sequences) -> Tensor:
    """[B, 1, S, S] additive mask: causal within a segment. Finite, so that a row of pads is no NaN."""
    config = getattr(module, "config", None)
    attention = getattr(config, "_attn_implementation", "eager")
    if attention not in ("eager", "sdpa"):
        raise UserError(f"packing: attention {attention!r} takes no mask per pair; load the model with sdpa or eager")
    real, segments = sequences.attention_mask, cast(Tensor, sequences.segments)
    width = segments.shape[1]
    causal = torch.ones(width, width, dtype=torch.bool, device=segments.device).tril()
    same = (segments.unsqueeze(2) == segments.unsqueeze(1)) & real.unsqueeze(1) & causal
    dtype = next((p.dtype for p in module.parameters()), torch.float32)
    mask = torch.zeros(same.shape, dtype=dtype, device=segments.device)
    return mask.masked_fill_(~same, torch.finfo(dtype).min).unsqueeze(1)


@torch.no_grad()
def head_is_known(lm: PreTrainedModel) -> bool:
    """Whether :func:`apply_head` on the trunk gives the model's own logits, tried on two tokens."""
    if lm.get_output_embeddings() is None:
        return False
    if any(p.is_meta for p in lm.parameters()):
        return True  # nothing to compare yet: a model without weights cannot run either way
    training = lm.training
    lm.eval()
    ids = torch.tensor([[0, 1]], device=lm.device)
    pair = Sequences(ids, torch.ones_like(ids, dtype=torch.bool), 1)
    ours = apply_head(lm, run_trunk(lm.base_model, pair)).float()
    theirs = run_whole(lm, pair).float()
    lm.train(training)
    tolerance = max(1e-4, 4 * torch.finfo(lm.dtype).eps) * float(theirs.abs().max())
    return ours.shape == theirs.shape and bool((ours - theirs).abs().max() <= tolerance)
