"""How the next token is chosen: the settings, and the pure functions that follow them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from rlhf.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How responses are drawn.

    Order of what is done to the logits: temperature, minimum length, top-k, top-p.

    Args:
        temperature: Divides the logits; the same number belongs in every log-prob that enters a ratio.
        top_k: Draw among the k most probable tokens only, tokens as probable as the k-th included. None: all tokens.
        top_p: Draw among the fewest most probable tokens that together have at least this probability (after top_k).
            None: all tokens.
        greedy: Take the most probable token instead of drawing one.
        max_new_tokens: Longest response, the stop token included. What is cut here is marked as not ended.
        min_new_tokens: Number of tokens before which no stop token can be drawn.
        stop_tokens: Tokens that end a response besides the template's end token, written as text. Each must be
            exactly one token of the tokenizer.
        max_rows: Prompts decoded at once. Changes speed and memory, never results.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    greedy: bool = False
    max_new_tokens: int = 128
    min_new_tokens: int = 0
    stop_tokens: list[str] = field(default_factory=list)
    max_rows: int = 256

    def __post_init__(self) -> None:
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise UserError(f"temperature: {self.temperature}; give a positive number, or set greedy: true.")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k: {self.top_k}; give at least 1, or null for all tokens.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top_p: {self.top_p}; give a number in (0, 1], or null for all tokens.")
        if self.max_new_tokens < 1:
            raise UserError(f"max_new_tokens: {self.max_new_tokens}; give at least 1.")
        if not 0 <= self.min_new_tokens <= self.max_new_tokens:
            raise UserError(f"min_new_tokens: {self.min_new_tokens}; give 0 to max_new_tokens ({self.max_new_tokens}).")
        if self.max_rows < 1:
            raise UserError(f"max_rows: {self.max_rows}; give at least 1.")

    def stop_ids(self, tokenizer: PreTrainedTokenizerBase, *end_ids: int) -> list[int]:
        """Ids that end a response, each once.

        Args:
            tokenizer: The policy's.
            end_ids: The templates' end tokens.

        Raises:
            UserError: a stop token is not exactly one known id.
        """
        return list(dict.fromkeys([*end_ids, *(_single_id(text, tokenizer) for text in self.stop_tokens)]))


def _single_id(text: str, tokenizer: PreTrainedTokenizerBase) -> int:
    ids = tokenizer.encode(text, add_special_tokens=False)
    unknown = ids == [tokenizer.unk_token_id] and text != tokenizer.unk_token
    if len(ids) == 1 and not unknown:
        return ids[0]
    found = "unknown to the tokenizer" if unknown else f"{len(ids)} tokens {tokenizer.convert_ids_to_tokens(ids)}"
    raise UserError(f"stop_tokens: {text!r} is {found}; name exactly one token, or add it to the tokenizer.")


class Drawn(NamedTuple):
    """One token per row.

    Attributes:
        ids: [B] int64.
        rollout_logprobs: [B] fp32 log-probability under the full tempered softmax.
        behaviour_logprobs: [B] fp32 the same under the distribution drawn from; 0 when greedy, whose choice is certain.
    """

    ids: Tensor
    rollout_logprobs: Tensor
    behaviour_logprobs: Tensor


def draw(logits: Tensor, uniforms: Tensor, sampling: Sampling, *, forbidden: Tensor | None = None) -> Drawn:
    """Chooses a token per row: the inverse of the cumulative distribution at the row's uniform number.

    The softmax is fp32, like every log-prob of the project; its running sum is float64, because in fp32 the rounding
    of tens of thousands of additions moves the borders between tokens, and a token below 6e-8 may never be reached.

    Args:
        logits: [B, V] of the next token, any floating dtype.
        uniforms: [B] float64 in [0, 1); not read when greedy.
        sampling: Temperature, top-k, top-p, greedy.
        forbidden: [V] bool, tokens that cannot be drawn: the stop tokens before the minimum length, and ids that the
            tokenizer has no token for.
    """
    logprobs = (logits.float() / sampling.temperature).log_softmax(-1)
    allowed = logprobs if forbidden is None else logprobs.masked_fill(forbidden, -torch.inf)
    if sampling.greedy:
        ids = allowed.argmax(-1, keepdim=True)
        picked = logprobs.gather(-1, ids).squeeze(-1)
        return Drawn(ids.squeeze(-1), picked, torch.zeros_like(picked))
    kept = filter_logits(allowed, sampling)
    behaviour = logprobs if kept is logprobs else kept.log_softmax(-1)
    cumulative = behaviour.exp().cumsum(-1, dtype=torch.float64)
    # The first token whose running sum is above u · total: never one of probability 0. In float64 u · total stays below
    # the total for every u < 1, so the clamp acts on NaN logits only; their log-probs are NaN, which the caller checks.
    ids = torch.searchsorted(cumulative, uniforms.unsqueeze(-1) * cumulative[:, -1:], right=True)
    ids = ids.clamp_(max=logits.shape[-1] - 1)
    rollout_logprobs = logprobs.gather(-1, ids).squeeze(-1)
    if behaviour is logprobs:
        return Drawn(ids.squeeze(-1), rollout_logprobs, rollout_logprobs)
    return Drawn(ids.squeeze(-1), rollout_logprobs, behaviour.gather(-1, ids).squeeze(-1))


def filter_logits(logits: Tensor, sampling: Sampling) -> Tensor:
    """Sets what top-k and then top-p exclude to −∞.

    Top-k keeps every token tied with the k-th, so the outcome does not hang on a sorting order. Top-p must choose
    among equals to be smallest, and takes the lower id.
    Source of top-p: arXiv:1904.09751, eq. 2.

    Args:
        logits: [B, V], tempered already; adding a constant to a row changes nothing.
        sampling: The two limits.

    Returns:
        [B, V]: ``logits`` itself where no limit acts. At least one token per row is left.
    """
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        threshold = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < threshold, -torch.inf)
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        probabilities = ordered.softmax(-1).double()
        before = probabilities.cumsum(-1) - probabilities
        excluded = torch.zeros_like(order, dtype=torch.bool).scatter_(-1, order, before >= sampling.top_p)
        logits = logits.masked_fill(excluded, -torch.inf)
    return logits
