"""What every sampler shares: what it is asked, how it draws and notes tokens, and the rollout that comes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from rlhf.engines.inference.random import uniform
from rlhf.engines.inference.sampling import Sampling, draw
from rlhf.errors import NonFiniteError, UserError
from rlhf.models.tokenizer import pad_id
from rlhf.models.vocabulary import unknown_ids
from rlhf.types import Prompts, Rollout, Sequences

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

OnTokens = Callable[[list[int], list[int]], None]


@dataclass(frozen=True)
class Request:
    """Prompts to be answered, and how: all that a sampler needs besides a model.

    Attributes:
        prompts: B prompts, already repeated for groups.
        sampling: How tokens are chosen.
        tokenizer: Turns responses into text, and says which ids stand for something: others are never drawn, though
            they keep their share of ``rollout_logprobs``, which are those of the full softmax.
        seed: Run seed of the random numbers.
        counters: B global rollout numbers. A token depends on (seed, counter, position) only.
        stop_ids: Ids that end a response.
    """

    prompts: Prompts
    sampling: Sampling
    tokenizer: PreTrainedTokenizerBase
    seed: int
    counters: Sequence[int]
    stop_ids: Sequence[int]

    def __len__(self) -> int:
        return len(self.prompts)

    def select(self, rows: Sequence[int]) -> Request:
        """The same for some of the prompts."""
        counters = [self.counters[row] for row in rows]
        return Request(self.prompts.select(rows), self.sampling, self.tokenizer, self.seed, counters, self.stop_ids)

    def decode(self, ids: list[int]) -> str:
        """Text of a response."""
        return cast(str, self.tokenizer.decode(ids, skip_special_tokens=False))

    def check(self, config: PreTrainedConfig) -> None:
        """Refuses what a model cannot answer.

        Args:
            config: The model's.

        Raises:
            UserError: counters of another length, an empty prompt, prompts that leave no room for the response, stop
                ids or allowed tokens that the model lacks, or no token left to draw.
        """
        if len(self.counters) != len(self):
            raise UserError(f"counters: {len(self.counters)} for {len(self)} prompts; give one per prompt.")
        lengths = [len(ids) for ids in self.prompts.ids]
        if 0 in lengths:
            raise UserError(f"prompt {lengths.index(0)}: no tokens; give at least a beginning-of-sequence token.")
        config, new = config.get_text_config(), self.sampling.max_new_tokens
        limit = getattr(config, "max_position_embeddings", None)
        longest = max(lengths, default=0)
        if limit is not None and longest + new > limit:
            raise UserError(
                f"prompt {lengths.index(longest)}: {longest} tokens + max_new_tokens {new} = "
                f"{longest + new}, more than the model's {limit} positions (max_position_embeddings); "
                "shorten the prompts or lower max_new_tokens."
            )
        if unknown := [i for i in self.stop_ids if not 0 <= i < config.vocab_size]:
            raise UserError(
                f"stop_ids: {unknown} with a vocabulary of {config.vocab_size}; give ids the model can draw."
            )
        never, stops = self._never(config.vocab_size), self._stops(config.vocab_size)
        if self.sampling.min_new_tokens and (stops if never is None else stops | never).all():
            raise UserError(
                f"stop_ids: of {config.vocab_size} tokens none is left with min_new_tokens "
                f"{self.sampling.min_new_tokens}; leave a token that can be drawn, or set min_new_tokens to 0."
            )

    def _stops(self, vocab_size: int) -> Tensor:
        """[V] bool."""
        stops = torch.zeros(vocab_size, dtype=torch.bool)
        stops[list(self.stop_ids)] = True
        return stops

    def _never(self, vocab_size: int) -> Tensor | None:
        """[V] bool, what is never drawn; None for nothing."""
        unknown = unknown_ids(self.tokenizer, vocab_size)
        allowed = self.sampling.allowed_ids(self.tokenizer)
        if allowed is None:
            return unknown
        never = torch.ones(vocab_size, dtype=torch.bool)
        never[[id for id in (*allowed, *self.stop_ids) if id < vocab_size]] = False
        return never if unknown is None else never | unknown


class Responses:
    """The responses to a request while they are drawn.

    Args:
        request: Checked already.
        vocab_size: Number of logits.
        device: Where logits are.

    Attributes:
        ids: [B, max_new_tokens] int64; what stands at or behind a response's length means nothing.
        lengths: [B] int64 number of tokens, the limit for a response that has not ended yet.
        ended: [B] bool, whether a stop token or stop string has been drawn.
    """

    def __init__(self, request: Request, vocab_size: int, device: torch.device) -> None:
        self.request, self.device = request, device
        sampling, count = request.sampling, len(request)
        counters = torch.tensor(list(request.counters), dtype=torch.int64, device=device)
        self._uniforms = uniform(
            request.seed, counters.unsqueeze(1), torch.arange(sampling.max_new_tokens, device=device)
        )
        never = request._never(vocab_size)
        self._stops = request._stops(vocab_size).to(device)
        self._never = None if never is None else never.to(device)
        self._too_early = self._stops if self._never is None else self._stops | self._never
        self.pad_id = pad_id(request.tokenizer)
        self.ids = torch.full((count, sampling.max_new_tokens), self.pad_id, device=device)
        self.rollout_logprobs, self.behaviour_logprobs = (
            torch.zeros(count, sampling.max_new_tokens, device=device) for _ in range(2)
        )
        self.lengths = torch.full((count,), sampling.max_new_tokens, device=device)
        self.ended = torch.zeros(count, dtype=torch.bool, device=device)
        self._seen = None
        if sampling.repetition_penalty != 1:
            self._seen = torch.zeros(count, vocab_size, dtype=torch.bool, device=device)
            for row, ids in enumerate(request.prompts.ids):
                self._seen[row, list(ids)] = True

    def draw(self, logits: Tensor, rows: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """Chooses one more token for some rows and notes it.

        Args:
            logits: [R, V] of the next token.
            rows: [R] int64, whose.
            at: [R] int64, how many tokens each has already.

        Returns:
            [R] int64 ids, and [R] bool whether the response is complete with it: it has ended, or is as long as may be.
        """
        sampling = self.request.sampling
        seen = None if self._seen is None else self._seen[rows]
        drawn = draw(logits, self._uniforms[rows, at], sampling, forbidden=self._forbidden(at), seen=seen)
        self.ids[rows, at] = drawn.ids
        self.rollout_logprobs[rows, at] = drawn.rollout_logprobs
        self.behaviour_logprobs[rows, at] = drawn.behaviour_logprobs
        if self._seen is not None:
            self._seen[rows, drawn.ids] = True
        ends = self._stops[drawn.ids]
        if sampling.stop_strings:
            ends = ends | self._spelled(rows, at)
        ended = self.ended[rows]
        self.lengths[rows] = torch.where(ends & ~ended, at + 1, self.lengths[rows])
        self.ended[rows] = ended = ended | ends
        return drawn.ids, ended | (at + 1 >= sampling.max_new_tokens)

    def _forbidden(self, at: Tensor) -> Tensor | None:
        """[V] or [R, V] bool, what must not be drawn."""
        least = self.request.sampling.min_new_tokens
        if least == 0:
            return self._never
        early = at < least
        if early.all():
            return self._too_early
        if not early.any():
            return self._never
        later = torch.zeros_like(self._stops) if self._never is None else self._never
        return torch.where(early.unsqueeze(1), self._too_early, later)

    def _spelled(self, rows: Tensor, at: Tensor) -> Tensor:
        """[R] bool, whether the text of each row, up to the token just drawn, has come to hold a stop string."""
        strings, least = self.request.sampling.stop_strings, self.request.sampling.min_new_tokens
        # A character is at most four tokens; a few more, as some tokenizers change the beginning of what they decode.
        reach = 4 * max(map(len, strings)) + 4
        found = []
        for row, last in zip(rows.tolist(), at.tolist(), strict=True):
            text = self.request.decode(self.ids[row, max(0, last + 1 - reach) : last + 1].tolist())
            found.append(last + 1 >= least and any(string in text for string in strings))
        return torch.tensor(found, device=self.device)

    def rollout(self) -> Rollout:
        """What was drawn, T the longest response; each prompt is its own group.

        Raises:
            NonFiniteError: logits were not finite.
        """
        request = self.request
        width = int(self.lengths.max()) if len(request) else 0
        mask = torch.arange(width, device=self.device) < self.lengths.unsqueeze(1)
        ids = self.ids[:, :width].masked_fill(~mask, self.pad_id)
        rollout_logprobs, behaviour_logprobs = (
            column[:, :width].masked_fill(~mask, 0.0) for column in (self.rollout_logprobs, self.behaviour_logprobs)
        )
        finite = rollout_logprobs.isfinite().all(1)
        if not finite.all():
            row = int((~finite).nonzero()[0])
            raise NonFiniteError(
                f"logits of row {row}: not finite ({int((~finite).sum())} of {len(finite)} rows); the weights have "
                "diverged or overflow their dtype: check them, lower the learning rate or use bf16 instead of fp16."
            )
        prompt_ids, prompt_mask = left_padded(request.prompts.ids, self.pad_id, self.device)
        sequences = Sequences(
            torch.cat([prompt_ids, ids], dim=1), torch.cat([prompt_mask, mask], dim=1), prompt_width=prompt_ids.shape[1]
        )
        groups = torch.arange(len(request), device=self.device)
        texts = [self._text(row[:length]) for row, length in zip(ids.tolist(), self.lengths.tolist(), strict=True)]
        return Rollout(
            request.prompts, sequences, mask, rollout_logprobs, behaviour_logprobs, self.ended, groups, texts
        )

    def _text(self, ids: list[int]) -> str:
        """Without the stop token, or from the stop string on."""
        if ids and ids[-1] in self.request.stop_ids:
            ids = ids[:-1]
        text = self.request.decode(ids)
        for string in self.request.sampling.stop_strings:
            text = text.partition(string)[0]
        return text


def left_padded(rows: Sequence[Sequence[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids and mask, [B, P] each; P ≥ 1 even without rows."""
    width = max((len(row) for row in rows), default=1)
    ids = torch.tensor([[pad_id] * (width - len(row)) + list(row) for row in rows], dtype=torch.int64)
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    mask = torch.arange(width) >= width - lengths.unsqueeze(1)
    return ids.view(len(rows), width).to(device), mask.to(device)
