"""What flows between the parts: which field, its shape, who writes it, who reads it.

Shape letters: B rows, S columns of a whole sequence, P columns of the prompt, T = S − P columns of the response.
Every sequence is laid out ``left pads | prompt | response | right pads``; response token t stands in column P + t, and
index t means that token in every ``[B, T]`` field.

One on-policy step fills, in this order, a :class:`Rollout` (sampler), a :class:`Scored` (reward models, critic,
reference) and a :class:`Batch` (what the update reads). Offline algorithms start from :class:`Labelled` or
:class:`Comparisons` or :class:`Unpaired`, which the collators of ``rlhf.data`` write.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from typing_extensions import Self

from rlhf.tally import Tally as Tally

Aggregation = Literal["token", "sequence", "constant"]
Form = Literal["prompt", "demonstration", "comparison", "unpaired", "text"]
Phase = Literal["sft", "reward", "ppo"]


class Message(NamedTuple):
    """What one side says in a conversation.

    Attributes:
        role: ``user``, ``assistant``, ``system`` …
        content: The text.
    """

    role: str
    content: str


Conversation = tuple[Message, ...]


class Turn(NamedTuple):
    """An assistant turn of a conversation as token ids.

    Attributes:
        context: All that stands between the turn before and this one.
        response: What the assistant says, end id included; empty where it is still to be said.
    """

    context: list[int]
    response: list[int]


def joined(turns: Iterable[Turn]) -> list[int]:
    """All ids of a conversation's turns."""
    return [i for turn in turns for i in turn.context + turn.response]


@dataclass(frozen=True)
class Sequences:
    """Token sequences as a model reads them.

    Attributes:
        ids: [B, S] int64 token ids, pads included.
        attention_mask: [B, S] bool, True on real tokens.
        prompt_width: P ≥ 1; the response starts in this column. Offline batches use 1: every later token can be a
            target.
        segments: [B, S] int64, one number per packed example, or None when a row holds one example. Tokens attend
            only within their segment, and positions restart at each.
    """

    ids: Tensor
    attention_mask: Tensor
    prompt_width: int
    segments: Tensor | None = None

    def __len__(self) -> int:
        return self.ids.shape[0]

    @property
    def response_width(self) -> int:
        """T."""
        return self.ids.shape[1] - self.prompt_width

    @property
    def response_ids(self) -> Tensor:
        """[B, T]."""
        return self.ids[:, self.prompt_width :]

    @property
    def position_ids(self) -> Tensor:
        """[B, S] int64: 0, 1, 2 … over the real tokens of each row (or segment), whatever the padding; 0 on pads."""
        real = self.attention_mask.long()
        positions = real.cumsum(1) - real
        if self.segments is not None:
            starts = torch.ones_like(self.segments, dtype=torch.bool)
            starts[:, 1:] = self.segments[:, 1:] != self.segments[:, :-1]
            positions = positions - torch.where(starts, positions, 0).cummax(1).values
        return positions * real

    def last_index(self) -> Tensor:
        """[B] column of the last real token of each row: where a sequence is scored."""
        columns = torch.arange(self.ids.shape[1], device=self.ids.device)
        return torch.where(self.attention_mask, columns, -1).max(1).values

    def select(self, rows: Tensor) -> Sequences:
        """The given rows, without the columns that are padding in all of them (prompt width ≥ 1 is kept)."""
        mask = self.attention_mask[rows]
        real = mask.any(0).nonzero().flatten()
        first = int(real[0]) if len(real) else 0
        left = min(first, self.prompt_width - 1)
        right = max(int(real[-1]) + 1 if len(real) else 0, self.prompt_width)
        segments = None if self.segments is None else self.segments[rows, left:right]
        return Sequences(self.ids[rows, left:right], mask[:, left:right], self.prompt_width - left, segments)


@dataclass(frozen=True)
class Prompts:
    """Prompts about to be answered: written by the data loader, read by the sampler and the reward models.

    Attributes:
        ids: Token ids of each prompt, without pads.
        text: The prompt as the source had it, before the template: what a reward function is given.
        source: Name of the data source of each prompt, for metrics.
        columns: Further columns of the source, a list with one entry per prompt each.
    """

    ids: Sequence[Sequence[int]]
    text: Sequence[str]
    source: Sequence[str]
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)

    def select(self, rows: Sequence[int]) -> Prompts:
        """The given rows, in the given order, repeats allowed."""

        def pick(values: Sequence[Any]) -> list[Any]:
            return [values[row] for row in rows]

        columns = {name: pick(values) for name, values in self.columns.items()}
        return Prompts(pick(self.ids), pick(self.text), pick(self.source), columns)

    def repeat(self, times: int) -> Prompts:
        """Each prompt ``times`` times in a row: a group of responses per prompt."""
        return self.select([row for row in range(len(self)) for _ in range(times)])


@dataclass(frozen=True)
class Rollout:
    """Sampled responses: written by an engine's ``generate``, never decoded and re-encoded afterwards.

    Attributes:
        prompts: B prompts (already repeated for groups).
        sequences: Prompt and response ids.
        mask: [B, T] bool, True for a token the policy chose, the end token included.
        rollout_logprobs: [B, T] log-probability of each token under the sampler's full tempered softmax.
        behaviour_logprobs: [B, T] the same after top-k and top-p: the distribution that was really drawn from.
        ended: [B] bool, True where the policy drew a stop token; False where the length limit cut the response.
        groups: [B] int64, equal for responses to the same prompt of this rollout.
        text: Decoded responses without the stop token, for reward functions and people.
    """

    prompts: Prompts
    sequences: Sequences
    mask: Tensor
    rollout_logprobs: Tensor
    behaviour_logprobs: Tensor
    ended: Tensor
    groups: Tensor
    text: Sequence[str]

    def __len__(self) -> int:
        return len(self.sequences)

    def select(self, rows: Tensor) -> Rollout:
        """The given rows, without the columns that are padding in all of them."""
        sequences = self.sequences.select(rows)
        numbers: list[int] = rows.tolist()
        names = ("mask", "rollout_logprobs", "behaviour_logprobs", "ended", "groups")
        picked = {name: _select_columns(getattr(self, name), rows, sequences.response_width) for name in names}
        text = [self.text[row] for row in numbers]
        return Rollout(prompts=self.prompts.select(numbers), sequences=sequences, text=text, **picked)


@dataclass(frozen=True)
class Scores:
    """What a reward model says of a rollout.

    Attributes:
        total: [B] a score per response, or [B, T] one per token.
        parts: Named components of the total, each [B], for metrics.
    """

    total: Tensor
    parts: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Scored:
    """A rollout with everything an advantage estimator may read.

    Attributes:
        rewards: [B, T] reward of token t: the score on the last real token plus the KL penalty per token.
        scores: [B] score of the whole response, after normalisation and missing-end penalty, before clipping.
        values: [B, T] critic's value of the state *before* token t; None without a critic.
        bootstrap: [B] value after the last token where a response was cut, 0 where it ended; None without a critic.
        mask: [B, T] bool.
        groups: [B] int64.
        greedy: [B] score of the greedy response to the same prompt; None unless the estimator ``needs_greedy``.
        old_logprobs: [B, T] the trainer's log-probabilities before the update; None where nobody wrote them.
        collision: [B, T] Σ_v π(v)² of the distribution each token was drawn from; None unless the estimator
            ``needs_collision``.
    """

    rewards: Tensor
    scores: Tensor
    values: Tensor | None
    bootstrap: Tensor | None
    mask: Tensor
    groups: Tensor
    greedy: Tensor | None = None
    old_logprobs: Tensor | None = None
    collision: Tensor | None = None


class Advantages(NamedTuple):
    """What an advantage estimator answers.

    Attributes:
        advantages: [B, T], 0 on masked slots.
        returns: [B, T] regression target of the critic; None from estimators that need no critic.
    """

    advantages: Tensor
    returns: Tensor | None


def _select_columns(value: Any, rows: Tensor, width: int) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value[rows] if value.ndim == 1 else value[rows, :width]


@dataclass(frozen=True)
class Selectable:
    """A micro-batch: sequences plus ``[B]`` and ``[B, T]`` tensors that are cut together.

    Attributes:
        sequences: B rows.
        mask: [B, T] bool, True on the response tokens that matter: nothing is computed for the others.
        sources: Which of ``source_names`` a row [B], or a token [B, T], comes from; None where nobody asks.
        source_names: Names of the data sources in the batch.
    """

    unit: ClassVar[int] = 1
    """Rows that belong together: batches are cut at multiples of it."""

    sequences: Sequences
    mask: Tensor
    sources: Tensor | None = field(default=None, kw_only=True)
    source_names: tuple[str, ...] = field(default=(), kw_only=True)

    def __len__(self) -> int:
        return len(self.sequences)

    def select(self, rows: Tensor) -> Self:
        """The given rows with common padding removed from every field."""
        sequences = self.sequences.select(rows)
        others: dict[str, Any] = {
            f.name: _select_columns(getattr(self, f.name), rows, sequences.response_width)
            for f in dataclasses.fields(self)
            if f.name != "sequences"
        }
        return type(self)(sequences=sequences, **others)

    def split(self, size: int) -> Iterator[Self]:
        """Micro-batches of at most ``size`` rows (at least one unit), in order."""
        step = max(size // self.unit, 1) * self.unit
        for start in range(0, len(self), step):
            yield self.select(torch.arange(start, min(start + step, len(self))))


@dataclass(frozen=True)
class Labelled(Selectable):
    """Sequences with the tokens to be learned: SFT and the pretraining mixture.

    ``mask`` is True on the tokens that enter the loss.
    """


@dataclass(frozen=True)
class Comparisons(Selectable):
    """Chosen and rejected responses to the same prompts, in one batch of 2·B rows.

    Row 2i is the chosen, row 2i + 1 the rejected response of pair i, so that a cut at even rows never parts a pair.

    Attributes:
        margin: [2B] margin of the pair the row belongs to, 0 where none is known.
        weight: [2B] weight of the pair (all pairs of one prompt together weigh 1).
    """

    unit: ClassVar[int] = 2

    margin: Tensor
    weight: Tensor


@dataclass(frozen=True)
class Unpaired(Selectable):
    """Single responses, each judged good or bad by itself.

    ``mask`` is True on the response tokens.

    Attributes:
        label: [B] bool, True for a good response.
    """

    label: Tensor


@dataclass(frozen=True)
class Batch(Selectable):
    """What a policy update reads. Names of log-probabilities are the same everywhere.

    Attributes:
        rollout_logprobs: [B, T] the sampler's.
        old_logprobs: [B, T] the trainer's, before the update.
        ref_logprobs: [B, T] the frozen reference's; None where no KL is asked for.
        advantages: [B, T].
        returns: [B, T] the critic's target; None without a critic.
        values: [B, T] the critic's values before the update; None without a critic.
        scores: [B] score of the whole response, as in :class:`Scored`.
        selected: [B, T] bool, tokens that a policy loss treats otherwise; written by its ``prepare``.
        ref_distribution: [B, T, V] log-probabilities of all tokens under the reference; None unless the KL is exact.
    """

    rollout_logprobs: Tensor
    old_logprobs: Tensor
    ref_logprobs: Tensor | None
    advantages: Tensor
    returns: Tensor | None
    values: Tensor | None
    scores: Tensor | None = None
    selected: Tensor | None = None
    ref_distribution: Tensor | None = None


@dataclass(frozen=True)
class Experience:
    """One iteration's rollout with its scores and the batch made of it.

    Attributes:
        rollout: What was sampled.
        raw: What the reward model said of it, before normalisation and penalties.
        scored: Rewards, values and scores.
        batch: What the update reads.
        metrics: Figures of the iteration so far (scores, KL, lengths).
    """

    rollout: Rollout
    raw: Scores
    scored: Scored
    batch: Batch
    metrics: Tally


@dataclass(frozen=True)
class Outputs:
    """What a model answers at response positions. Fields not asked for are None.

    Attributes:
        logprobs: [B, T] log-probability of each response token, at the temperature asked for.
        entropy: [B, T] entropy in nats of the distribution each token was drawn from.
        collision: [B, T] Σ_v π(v)², the probability that two draws from that distribution agree.
        distribution: [B, T, V] log-probabilities of all tokens: memory for the whole vocabulary, for an exact KL only.
        values: [B, T] value of the state before token t.
        scores: [B] the head read at the last real token: a reward model's score, or a critic's value after the end.
    """

    logprobs: Tensor | None = None
    entropy: Tensor | None = None
    collision: Tensor | None = None
    distribution: Tensor | None = None
    values: Tensor | None = None
    scores: Tensor | None = None


@dataclass(frozen=True)
class LossTerm:
    """One term of a loss, not yet reduced: the engine divides it by the step's global denominator.

    Attributes:
        name: Key of its denominator, and of its metric ``loss/<name>``.
        values: [B, T] or [B], to be minimised.
        mask: Bool, same shape.
        mode: How it is aggregated, see ``functional.masking.aggregate``.
        coef: Weight in the total.
    """

    name: str
    values: Tensor
    mask: Tensor
    mode: Aggregation = "token"
    coef: float = 1.0


class Stateful(Protocol):
    """A live object whose state a checkpoint keeps."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...
