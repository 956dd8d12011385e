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

    Order of what is done to the logits: temperature, tokens that cannot be drawn, repetition penalty, top-k, top-p,
    min-p.

    Args:
        temperature: Divides the logits; the same number belongs in every log-prob that enters a ratio.
        top_k: Draw among the k most probable tokens only, tokens as probable as the k-th included. None: all tokens.
        top_p: Draw among the fewest most probable tokens that together have at least this probability (after top_k).
            None: all tokens.
        min_p: Draw only among tokens at least this many times as probable as the most probable one (before top_k and
            top_p, which cannot exclude that one). None: all tokens.
        repetition_penalty: Divides the positive, multiplies the negative logits of tokens that stand in the prompt or
            the response already: 1 changes nothing, more makes repeating less likely.
        greedy: Take the most probable token instead of drawing one.
        max_new_tokens: Longest response, the stop token included. What is cut here is marked as not ended.
        min_new_tokens: Number of tokens before which no stop token can be drawn.
        stop_tokens: Tokens that end a response besides the template's end token, written as text. Each must be
            exactly one token of the tokenizer.
        stop_strings: Texts that end a response with the token that completes one, once there are ``min_new_tokens``.
            The token counts as drawn; the response's text ends before the string.
        allowed_tokens: The only tokens that can be drawn besides those that end a response, written as text like
            ``stop_tokens``. None: all.
        max_rows: Prompts decoded at once. Changes speed and memory, never results.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0
    greedy: bool = False
    max_new_tokens: int = 128
    min_new_tokens: int = 0
    stop_tokens: list[str] = field(default_factory=list)
    stop_strings: list[str] = field(default_factory=list)
    allowed_tokens: list[str] | None = None
    max_rows: int = 256

    def __post_init__(self) -> None:
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise UserError(f"temperature: {self.temperature}; give a positive number, or set greedy: true.")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k: {self.top_k}; give at least 1, or null for all tokens.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top_p: {self.top_p}; give a number in (0, 1], or null for all tokens.")
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise UserError(f"min_p: {self.min_p}; give a number in [0, 1], or null for all tokens.")
        if not (self.repetition_penalty > 0 and math.isfinite(self.repetition_penalty)):
            raise UserError(f"repetition_penalty: {self.repetition_penalty}; give a positive number, 1 for none.")
        if "" in self.stop_strings:
            raise UserError("stop_strings: one of them is empty, and would end every response; leave it out.")
        if self.allowed_tokens == []:
            raise UserError("allowed_tokens: none; name the tokens that can be drawn, or give null for all.")
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
        named = (_single_id("stop_tokens", text, tokenizer) for text in self.stop_tokens)
        return list(dict.fromkeys([*end_ids, *named]))

    def allowed_ids(self, tokenizer: PreTrainedTokenizerBase) -> list[int] | None:
        """Ids of ``allowed_tokens``; None: all.

        Args:
            tokenizer: The policy's.

        Raises:
            UserError: one of them is not exactly one known id.
        """
        if self.allowed_tokens is None:
            return None
        return [_single_id("allowed_tokens", text, tokenizer) for text in self.allowed_tokens]


def _single_id(setting: str, text: str, tokenizer: PreTrainedTokenizerBase) -> int:
    ids = tokenizer.encode(text, add_special_tokens=False)
    unknown = ids == [tokenizer.unk_token_id] and text != tokenizer.unk_token
    if len(ids) == 1 and not unknown:
        return ids[0]
    found = "unknown to the tokenizer" if unknown else f"{len(ids)} tokens {tokenizer.convert_ids_to_tokens(ids)}"
    raise UserError(f"{setting}: {text!r} is {found}; name exactly one token, or add it to the tokenizer.")


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


def draw(
    logits: Tensor,
    uniforms: Tensor,
    sampling: Sampling,
    *,
    forbidden: Tensor | None = None,
    seen: Tensor | None = None,
) -> Drawn:
    """Chooses a token per row: the inverse of the cumulative distribution at the row's uniform number.

    The softmax is fp32, like every log-prob of the project; its running sum is float64, because in fp32 the rounding
    of tens of thousands of additions moves the borders between tokens, and a token below 6e-8 may never be reached.

    Args:
        logits: [B, V] of the next token, any floating dtype.
        uniforms: [B] float64 in [0, 1); not read when greedy.
        sampling: Temperature, penalty, limits, greedy.
        forbidden: [V] or [B, V] bool, tokens that cannot be drawn: the stop tokens before the minimum length, and ids
            that the tokenizer has no token for.
        seen: [B, V] bool, tokens that the repetition penalty acts on. None: on none.
    """
    tempered = logits.float()
    if sampling.temperature != 1:
        tempered = tempered / sampling.temperature
    logprobs = tempered.log_softmax(-1)
    allowed = logprobs if seen is None else penalized(tempered, seen, sampling.repetition_penalty)
    allowed = allowed if forbidden is None else allowed.masked_fill(forbidden, -torch.inf)
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


def penalized(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    """The logits [B, V], of tokens seen already ([B, V] bool) divided by the penalty, or multiplied where negative.

    Source: arXiv:1909.05858, section 4.1; negative logits as in the Hugging Face implementation. As the temperature
    is a positive factor, it may be in the logits already.
    """
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def filter_logits(logits: Tensor, sampling: Sampling) -> Tensor:
    """Sets what top-k, top-p and min-p exclude to −∞.

    Top-k keeps every token tied with the k-th, so the outcome does not hang on a sorting order. Top-p must choose
    among equals to be smallest, and takes the lower id.
    Source of top-p: arXiv:1904.09751, eq. 2; of min-p: arXiv:2407.01082, section 3.

    Args:
        logits: [B, V], tempered already; adding a constant to a row changes nothing.
        sampling: The limits.

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
    if sampling.min_p:
        threshold = logits.max(-1, keepdim=True).values + math.log(sampling.min_p)
        logits = logits.masked_fill(logits < threshold, -torch.inf)
    return logits
