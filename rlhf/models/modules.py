"""What engines run: a policy that answers log-probabilities, never logits, and a model that answers values.

Hidden states of the columns P − 1 … P + T − 2 predict the response tokens, and stand for the states before them. Both
models read the trunk there once; slots without a prediction hold exactly 0, in the value and in the gradient.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rlhf.algorithms.functional import logprobs as functional
from rlhf.errors import UserError
from rlhf.models.trunk import apply_head, head_is_known, run_trunk, run_whole
from rlhf.types import Outputs, Sequences

if TYPE_CHECKING:
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)


def _of_all(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same function of logits, called with the tokens that were drawn too."""
    return lambda logits, tokens, *, temperature: function(logits, temperature=temperature)


OF_THE_VOCABULARY: dict[str, Callable[..., Tensor]] = {
    "logprobs": functional.token_logprobs,
    "entropy": _of_all(functional.entropy),
    "collision": _of_all(functional.collision),
    "distribution": _of_all(functional.log_softmax),
}
"""Fields of :class:`Outputs` that are read off the logits, from [1, N, V] logits and [1, N] tokens."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """New weights depend on ``seed`` only, and the caller's random numbers go on as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


def predicted(sequences: Sequences) -> Tensor:
    """[B, T] bool: response tokens that a token of the same example stands before.

    The first token of a packed example, or after left pads, is nobody's prediction.
    """
    before, target = slice(sequences.prompt_width - 1, -1), slice(sequences.prompt_width, None)
    real, segments = sequences.attention_mask, sequences.segments
    found = real[:, before] & real[:, target]
    return found if segments is None else found & (segments[:, before] == segments[:, target])


class PolicyModel(nn.Module):
    """A causal language model that answers log-probabilities and entropies, and values with a shared-trunk critic.

    The vocabulary's logits are made for the wanted positions only, some at a time, and made again in the backward pass
    where there is more than one chunk, so that memory does not grow with positions × vocabulary.

    Args:
        lm: Any Hugging Face causal language model.
        head: Value head of a critic that shares the trunk.
        detach_trunk: Whether the head's gradient stops before the trunk.
    """

    chunk_elements = 2**22
    """Logits held at once (16 MiB in fp32)."""

    def __init__(self, lm: PreTrainedModel, head: nn.Module | None = None, *, detach_trunk: bool = False) -> None:
        super().__init__()
        if lm.base_model is lm:
            raise UserError(f"lm: {type(lm).__name__} has no trunk under a language-model head; give a causal LM")
        self.lm = lm
        self.head = head
        self.detach_trunk = detach_trunk
        self.split_head = head_is_known(lm)
        if not self.split_head:
            logger.warning(
                "%s does more after its trunk than its output embedding and the scalings we know: "
                "its own forward runs on whole sequences, and needs memory for all their logits.",
                type(lm).__name__,
            )

    def forward(
        self,
        sequences: Sequences,
        *,
        temperature: float = 1.0,
        want: Sequence[str] = ("logprobs",),
        mask: Tensor | None = None,
    ) -> Outputs:
        """Runs the model.

        Args:
            sequences: B rows.
            temperature: Divides the logits of log-probabilities and entropies.
            want: Fields of :class:`Outputs` to fill.
            mask: [B, T] bool, the slots needed; all predicted tokens where None. Fewer slots, less work.

        Raises:
            ValueError: a field that this model cannot answer, or inputs it cannot read.
        """
        _check_want(self, want, (*OF_THE_VOCABULARY, *(("values", "scores") if self.head is not None else ())))
        mask = _slots(sequences, mask)
        index = mask.flatten().nonzero().squeeze(1)
        fields, reads_head = [name for name in OF_THE_VOCABULARY if name in want], {"values", "scores"} & set(want)
        answers: dict[str, Tensor] = {}
        hidden = None
        if reads_head or self.split_head:
            hidden = run_trunk(self.lm.base_model, sequences)
        if fields:
            if hidden is not None and self.split_head:
                rows, head = _before(hidden, sequences)[index], self._logits
            else:
                rows, head = _before(run_whole(self.lm, sequences), sequences)[index], _identity
            found = self._in_chunks(head, rows, sequences.response_ids.flatten()[index], temperature, fields)
            answers = {name: _scatter(value, index, mask) for name, value in zip(fields, found, strict=True)}
        if reads_head and hidden is not None and self.head is not None:
            hidden = hidden.detach() if self.detach_trunk else hidden
            answers |= _read_head(self.head, hidden, sequences, mask, want)
        return Outputs(**answers)

    def _logits(self, hidden: Tensor) -> Tensor:
        return apply_head(self.lm, hidden)

    def _in_chunks(
        self,
        head: Callable[[Tensor], Tensor],
        rows: Tensor,
        tokens: Tensor,
        temperature: float,
        fields: Sequence[str],
    ) -> list[Tensor]:
        """The fields, each [N] or [N, V], of N rows of hidden states (or logits)."""

        def answer(rows: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
            logits = head(rows).unsqueeze(0)
            read = OF_THE_VOCABULARY
            return tuple(read[name](logits, tokens.unsqueeze(0), temperature=temperature).squeeze(0) for name in fields)

        size = max(1, self.chunk_elements // self.lm.config.get_text_config().vocab_size)
        if len(rows) <= size:  # once even without a row, so that the head takes part in every pass on every rank
            return list(answer(rows, tokens))
        chunks = []
        for part in zip(rows.split(size), tokens.split(size), strict=True):
            again = torch.is_grad_enabled()
            chunks.append(checkpoint(answer, *part, use_reentrant=False) if again else answer(*part))
        return [torch.cat(parts) for parts in zip(*cast(list[tuple[Tensor, ...]], chunks), strict=True)]


class ValueModel(nn.Module):
    """A trunk with a scalar head: critic and reward model alike. It answers (raw − mean) / std, in fp32.

    Args:
        trunk: Hugging Face model without a language-model head.
        head: Module of a :class:`rlhf.interfaces.ValueHead`.
        mean: Raw value that becomes 0.
        std: Raw difference that becomes 1.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, trunk: PreTrainedModel, head: nn.Module, mean: float = 0.0, std: float = 1.0) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = head
        self.register_buffer("mean", torch.zeros((), dtype=torch.float32))
        self.register_buffer("std", torch.ones((), dtype=torch.float32))
        self.set_normalisation(mean, std)

    def set_normalisation(self, mean: float, std: float) -> None:
        """Sets which raw values are answered as 0 and 1. It is saved, and restored, with the weights."""
        if not (math.isfinite(mean) and math.isfinite(std) and std > 0):
            raise ValueError(f"normalisation: mean {mean}, std {std}; both must be finite and std positive")
        self.mean.fill_(mean)
        self.std.fill_(std)

    def standardise(self, mean: float, std: float) -> None:
        """Makes what is answered as ``mean`` the new 0, and ``std`` away from it the new 1."""
        old_mean, old_std = float(self.mean), float(self.std)
        self.set_normalisation(old_mean + mean * old_std, old_std * std)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ValueModel:
        kept = {"mean": self.mean, "std": self.std}
        super()._apply(fn, recurse)
        for name, tensor in kept.items():
            moved = getattr(self, name)
            if moved.dtype.itemsize < tensor.dtype.itemsize:  # .bfloat16() of the model must not round the normaliser
                setattr(self, name, tensor.to(moved.device))
        return self

    def forward(
        self,
        sequences: Sequences,
        *,
        temperature: float = 1.0,
        want: Sequence[str] = ("values",),
        mask: Tensor | None = None,
    ) -> Outputs:
        """Runs the model.

        Args:
            sequences: B rows.
            temperature: Every model is called with it; values do not depend on it.
            want: ``values`` [B, T] of the state before each response token, ``scores`` [B] at the last real token.
            mask: [B, T] bool, the slots to fill with values; all predicted tokens where None.

        Raises:
            ValueError: a field that this model cannot answer, or inputs it cannot read.
        """
        _check_want(self, want, ("values", "scores"))
        hidden = run_trunk(self.trunk, sequences)
        answers = _read_head(self.head, hidden, sequences, _slots(sequences, mask), want, self._normalised)
        return Outputs(**answers)

    def _normalised(self, raw: Tensor) -> Tensor:
        return (raw - self.mean) / self.std


# --------------------------------------------------------------------------------------------------------------- slots


def _check_want(model: nn.Module, want: Sequence[str], can: tuple[str, ...]) -> None:
    if unknown := [name for name in want if name not in can]:
        raise ValueError(f"want: {type(model).__name__} answers {', '.join(can)}, not {', '.join(unknown)}")


def _slots(sequences: Sequences, mask: Tensor | None) -> Tensor:
    if mask is None:
        return predicted(sequences)
    if mask.shape != sequences.response_ids.shape or mask.dtype != torch.bool:
        wanted = list(sequences.response_ids.shape)
        raise ValueError(f"mask: {mask.dtype} {list(mask.shape)}; it must be bool {wanted}, a slot per response token")
    return mask


def _before(columns: Tensor, sequences: Sequences) -> Tensor:
    """[B, S, X] -> [B·T, X]: the columns just before the response tokens."""
    return columns[:, sequences.prompt_width - 1 : -1].flatten(0, 1)


def _identity(x: Tensor) -> Tensor:
    return x


def _scatter(values: Tensor, index: Tensor, mask: Tensor) -> Tensor:
    """Puts [N] or [N, V] values in their slots of [B, T] or [B, T, V], among exact zeros."""
    further = values.shape[1:]
    return values.new_zeros(mask.numel(), *further).index_put((index,), values).view(*mask.shape, *further)


def _read_head(
    head: nn.Module,
    hidden: Tensor,
    sequences: Sequences,
    mask: Tensor,
    want: Sequence[str],
    transform: Callable[[Tensor], Tensor] = _identity,
) -> dict[str, Tensor]:
    answers: dict[str, Tensor] = {}
    if "values" in want:
        values = transform(head(hidden[:, sequences.prompt_width - 1 : -1]))
        answers["values"] = torch.where(mask, values, torch.zeros_like(values))
    if "scores" in want:
        if sequences.segments is not None:
            raise UserError("want: scores of packed rows, which hold several sequences each; turn packing off")
        rows = torch.arange(len(sequences), device=hidden.device)
        answers["scores"] = transform(head(hidden[rows, sequences.last_index()]))
    return answers
