"""Components that break one contract each, and one that breaks none: what ``rlhf.testing`` has to catch.

Their names begin with an underscore so that no registry lists them: other tests run in the same process.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from rlhf.algorithms.averaging import _LiveMean
from rlhf.algorithms.functional import losses
from rlhf.algorithms.functional.advantages import returns
from rlhf.algorithms.kl import Adaptive, Fixed, _AdaptiveCoefficient, _FixedCoefficient
from rlhf.data.templates import Plain
from rlhf.interfaces import (
    AdvantageEstimator,
    Blender,
    LiveAverage,
    Optimizer,
    PolicyLoss,
    RewardModel,
    RolloutFilter,
    SamplerCorrection,
    Schedule,
    Scorer,
    Source,
    ValueHead,
    WeightAverage,
)
from rlhf.types import Advantages, Aggregation, Batch, Scored, Scores

component = dataclass(frozen=True, kw_only=True)
_COUNT = itertools.count()


def rows():
    """What a ``Generator`` yields."""
    return ({"prompt": f"p{n}", "response": "r"} for n in range(20))


def lengths(prompts, responses):
    """Characters of each response."""
    return [float(len(response)) for response in responses]


def step_lengths(prompts, steps):
    """Characters of each step."""
    return [[float(len(step)) for step in response] for response in steps]


class _Estimator(AdvantageEstimator):
    """Returns without a baseline."""

    def __call__(self, scored: Scored) -> Advantages:
        return Advantages(self.estimate(scored), None)

    def estimate(self, scored: Scored) -> torch.Tensor:
        return returns(scored.rewards, scored.mask, gamma=1.0)


@component
class _Good(_Estimator):
    """Clipped returns.

    Args:
        limit: Bound of an advantage.
    """

    limit: float = 3.0

    def estimate(self, scored: Scored) -> torch.Tensor:
        return super().estimate(scored).clamp(-self.limit, self.limit)


# ------------------------------------------------------------------------------------------------- any component


class _Undecorated(_Estimator):
    """No dataclass."""


@dataclass(kw_only=True)
class _Changeable(_Estimator):
    """Not frozen."""


@dataclass(frozen=True)
class _Positional(_Estimator):
    """Settings by position.

    Args:
        limit: A bound.
    """

    limit: float = 3.0


@component
class _Undocumented(_Estimator):
    """A setting that nobody explains."""

    limit: float = 3.0


@component
class _OverDocumented(_Estimator):
    """A setting that is not there.

    Args:
        limit: A bound.
    """


@component
class _Drawn(_Estimator):
    """Another default each time.

    Args:
        limit: A bound.
    """

    limit: int = field(default_factory=_COUNT.__next__)


class _Address:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Address)

    __hash__ = None


@component
class _Addressed(_Estimator):
    """A setting whose text is an address in memory.

    Args:
        limit: A bound.
    """

    limit: Any = field(default_factory=_Address)


@component
class _Unpicklable(_Estimator):
    """Holds a function that no file can hold."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "function", lambda: 0)


@component
class _Doubling(_Estimator):
    """What is printed of it makes another one.

    Args:
        limit: A bound.
    """

    limit: float = 3.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "limit", 2 * self.limit)


# ---------------------------------------------------------------------------------------------------- estimators


@component
class _OverPads(_Estimator):
    """Takes the mean over pads too."""

    def estimate(self, scored: Scored) -> torch.Tensor:
        return (super().estimate(scored) - scored.rewards.mean()).masked_fill(~scored.mask, 0.0)


@component
class _ByWidth(_Estimator):
    """Divides by the width of the batch."""

    def estimate(self, scored: Scored) -> torch.Tensor:
        return super().estimate(scored) / scored.mask.shape[1]


@component
class _FirstRow(_Estimator):
    """Takes the first response for the baseline."""

    def estimate(self, scored: Scored) -> torch.Tensor:
        return (super().estimate(scored) - scored.scores[0]).masked_fill(~scored.mask, 0.0)


@component
class _Unmasked(_Estimator):
    """Gives pads an advantage."""

    def estimate(self, scored: Scored) -> torch.Tensor:
        return super().estimate(scored) - 0.5


@component
class _Writing(_Estimator):
    """Centres the rewards in place."""

    def estimate(self, scored: Scored) -> torch.Tensor:
        scored.rewards.sub_(1.0)
        return super().estimate(scored)


@component
class _WritingOnPads(_Estimator):
    """Clears pads in place."""

    def estimate(self, scored: Scored) -> torch.Tensor:
        scored.rewards.masked_fill_(~scored.mask, 0.0)
        return super().estimate(scored)


@component
class _NoEpsilon(_Estimator):
    """Divides by a deviation that may be 0."""

    def estimate(self, scored: Scored) -> torch.Tensor:
        found = super().estimate(scored)
        return (found / scored.scores.std()).masked_fill(~scored.mask, 0.0)


@component
class _PerResponse(_Estimator):
    """One advantage per response."""

    def estimate(self, scored: Scored) -> torch.Tensor:
        return scored.scores


@component
class _Undeclared(_Estimator):
    """Reads values without saying so."""

    def estimate(self, scored: Scored) -> torch.Tensor:
        return super().estimate(scored) - scored.values


@component
class _Targets(_Estimator):
    """Gives a critic's targets that nobody asked for."""

    def __call__(self, scored: Scored) -> Advantages:
        found = self.estimate(scored)
        return Advantages(found, found)


# --------------------------------------------------------------------------------------------------------- losses


class _Loss(PolicyLoss):
    """The clipped surrogate."""

    aggregation: Aggregation = "token"

    def __call__(self, logprobs: torch.Tensor, batch: Batch) -> torch.Tensor:
        return losses.clipped_surrogate(logprobs, batch.old_logprobs, batch.advantages, batch.mask)


@component
class _LossOfPads(_Loss):
    """Multiplies by the mask: NaN stays NaN."""

    def __call__(self, logprobs: torch.Tensor, batch: Batch) -> torch.Tensor:
        return -(logprobs - batch.old_logprobs).exp() * batch.advantages * batch.mask


@component
class _GradientOfPads(_Loss):
    """Masks the value and not what it is made of: 0 · NaN comes back in the gradient."""

    def __call__(self, logprobs: torch.Tensor, batch: Batch) -> torch.Tensor:
        surrogate = -(logprobs - batch.old_logprobs).exp() * batch.advantages.masked_fill(~batch.mask, 0.0)
        return torch.where(batch.mask, surrogate, 0.0)


@component
class _Whitening(_Loss):
    """Whitens the advantages of whatever micro-batch it is given."""

    def __call__(self, logprobs: torch.Tensor, batch: Batch) -> torch.Tensor:
        found = super().__call__(logprobs, batch)
        return (found - found.sum() / batch.mask.sum()).masked_fill(~batch.mask, 0.0)


@component
class _LossByRow(_Loss):
    """Weighs rows by their place."""

    def __call__(self, logprobs: torch.Tensor, batch: Batch) -> torch.Tensor:
        return super().__call__(logprobs, batch) * torch.arange(len(batch))[:, None]


@component
class _WritingLoss(_Loss):
    """Clips the advantages in place."""

    def __call__(self, logprobs: torch.Tensor, batch: Batch) -> torch.Tensor:
        batch.advantages.clamp_(-0.5, 0.5)
        return super().__call__(logprobs, batch)


@component
class _DetachedLoss(_Loss):
    """Has no gradient."""

    def __call__(self, logprobs: torch.Tensor, batch: Batch) -> torch.Tensor:
        return super().__call__(logprobs.detach(), batch)


@component
class _FlatLoss(_Loss):
    """Has a gradient of 0."""

    def __call__(self, logprobs: torch.Tensor, batch: Batch) -> torch.Tensor:
        return super().__call__(logprobs * 0 + batch.old_logprobs, batch)


@component
class _UnknownAggregation(_Loss):
    """Is reduced in a way that nobody knows.

    Args:
        aggregation: How it is reduced.
    """

    aggregation: str = "mean"


@component
class _ScalarLoss(_Loss):
    """Reduces by itself."""

    def __call__(self, logprobs: torch.Tensor, batch: Batch) -> torch.Tensor:
        return super().__call__(logprobs, batch).mean()


@component
class _Attached(SamplerCorrection):
    """Weights with a gradient."""

    def __call__(self, batch: Batch) -> torch.Tensor:
        ratio = (batch.old_logprobs - batch.rollout_logprobs).masked_fill(~batch.mask, 0.0).exp()
        return ratio.masked_fill(~batch.mask, 0.0)


@component
class _Numbered(RolloutFilter):
    """Answers numbers of rows."""

    def __call__(self, scores: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
        return scores.argsort()[:4]


# ------------------------------------------------------------------------------------------- what is built


@component
class _Forgetful(Adaptive):
    """Loses its coefficient."""

    def build(self, *, iterations: int) -> Any:
        live = _AdaptiveCoefficient(self)
        live.load_state_dict = lambda state: None
        return live


class _LiveNegative(_FixedCoefficient):
    def update(self, observed: float, samples: int) -> None:
        self.coef += 0.1 * (observed - 1.0)


@component
class _Negative(Fixed):
    """Falls below 0."""

    def build(self, *, iterations: int) -> Any:
        return _LiveNegative(self.coef)


class _LiveUnbounded(_FixedCoefficient):
    def update(self, observed: float, samples: int) -> None:
        self.coef = self.coef / observed if observed else float("inf")


@component
class _Unbounded(Fixed):
    """Divides by what it observes."""

    def build(self, *, iterations: int) -> Any:
        return _LiveUnbounded(self.coef)


class _Sharing(_LiveMean):
    def __init__(self, settings: Any, master: Any) -> None:
        super().__init__(settings, master)
        self.shards = list(master)

    def update(self, master: Any) -> None:
        self.shards = list(master)


class _Counting(_LiveMean):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict({**state, "updates": 0})


class _Norming(_LiveMean):
    def update(self, master: Any) -> None:
        super().update([weight / weight.norm().clamp(min=1e-6) for weight in master])


class _Mean(WeightAverage):
    """The mean of all weights so far."""

    live: type[_LiveMean] = _LiveMean

    def share(self, step: int) -> float:
        return 1 / step

    def build(self, master: Any) -> LiveAverage:
        return self.live(self, master)


@component
class _SharingMean(_Mean):
    """Keeps the weights themselves."""

    live = _Sharing


@component
class _ForgetfulMean(_Mean):
    """Forgets how many updates there were."""

    live = _Counting


@component
class _NormingMean(_Mean):
    """Reads a norm off a shard, which is another for every engine."""

    live = _Norming


class _Half(_LiveMean):
    def __init__(self, settings: Any, master: Any) -> None:
        super().__init__(settings, master)
        self.shards = [shard.to(weight.dtype) for shard, weight in zip(self.shards, master, strict=True)]

    def update(self, master: Any) -> None:
        for shard, weight in zip(self.shards, master, strict=True):
            shard.lerp_(weight, 0.5)


@component
class _HalfMean(_Mean):
    """Averages in the weights' own precision."""

    live = _Half


@component
class _NoEnd(Schedule):
    """Divides by what is left."""

    def factor(self, step: int, total: int) -> float:
        return 1 / (total - step)


@component
class _BelowZero(Schedule):
    """Goes on falling."""

    def factor(self, step: int, total: int) -> float:
        return 1 - 2 * step / total


@component
class _Still(Optimizer):
    """Never moves a weight.

    Args:
        lr: Peak learning rate.
    """

    lr: float = 0.0

    def build(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([weight for _, weight in parameters], lr=self.lr)


@component
class _MatricesOnly(_Still):
    """Leaves out what has one dimension."""

    lr: float = 0.1

    def build(self, parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([weight for _, weight in parameters if weight.ndim > 1], lr=self.lr)


class _AmnesicSGD(torch.optim.SGD):
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "state": {}}


@component
class _Amnesic(_Still):
    """Does not save its momentum."""

    lr: float = 0.1

    def build(self, parameters: Any) -> torch.optim.Optimizer:
        return _AmnesicSGD([weight for _, weight in parameters], lr=self.lr, momentum=0.9)


class _Head(nn.Module):
    def __init__(self, width: int, *, squeeze: bool, fp32: bool, idle: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(width, 1)
        self.idle = nn.Linear(width, 1) if idle else None
        self.squeeze, self.fp32 = squeeze, fp32

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        found = self.layer(hidden.float())
        found = found if self.fp32 else found.to(hidden.dtype)
        return found.squeeze(-1) if self.squeeze else found


@component
class _Unsqueezed(ValueHead):
    """Keeps the last dimension."""

    def build(self, width: int) -> nn.Module:
        return _Head(width, squeeze=False, fp32=True, idle=False)


@component
class _HalfHead(ValueHead):
    """Answers in the trunk's precision."""

    def build(self, width: int) -> nn.Module:
        return _Head(width, squeeze=True, fp32=False, idle=False)


@component
class _IdleHead(ValueHead):
    """Has weights that nothing reaches."""

    def build(self, width: int) -> nn.Module:
        return _Head(width, squeeze=True, fp32=True, idle=True)


# ----------------------------------------------------------------------------------------------------------- data


@component
class _TwoEnds(Plain):
    """Ends a response twice."""

    def responses(self, texts: Any, tokenizer: Any) -> list[list[int]]:
        return [[*ids, ids[-1]] for ids in super().responses(texts, tokenizer)]


@component
class _OtherInTalk(Plain):
    """Writes a prompt otherwise where it stands in a conversation."""

    def turns(self, conversation: Any, tokenizer: Any) -> Any:
        changed = tuple(message._replace(content=message.content + " ") for message in conversation)
        return super().turns(changed, tokenizer)


@component
class _OtherInMany(Plain):
    """Strips texts only where there are many."""

    def prompts(self, texts: Any, tokenizer: Any) -> list[list[int]]:
        return super().prompts([text.upper() if len(texts) > 1 else text for text in texts], tokenizer)


@component
class _NotBare(Plain):
    """Loses a character of what was said."""

    def bare(self, text: str) -> str:
        return text[:-1]


class _Order(Blender):
    """Rows of source a, in an order of their own."""

    def epoch(self, sizes: Any, *, seed: int, epoch: int) -> np.ndarray:
        order = np.random.default_rng((seed, epoch)).permutation(sizes["a"])
        return np.stack([np.zeros_like(order), order], 1)


@component
class _Unseeded(_Order):
    """Draws by itself."""

    def epoch(self, sizes: Any, *, seed: int, epoch: int) -> np.ndarray:
        return super().epoch(sizes, seed=seed + next(_COUNT), epoch=epoch)


@component
class _OneOrder(_Order):
    """Is the same in every epoch."""

    def epoch(self, sizes: Any, *, seed: int, epoch: int) -> np.ndarray:
        return super().epoch(sizes, seed=seed, epoch=0)


@component
class _BehindTheEnd(_Order):
    """Counts rows from 1."""

    def epoch(self, sizes: Any, *, seed: int, epoch: int) -> np.ndarray:
        return super().epoch(sizes, seed=seed, epoch=epoch) + np.array([[0, 1]])


class _Made(Source):
    """Rows made on the spot."""

    def load(self) -> Any:
        import datasets

        return datasets.Dataset.from_list(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        return list(rows())


@component
class _Formless(_Made):
    """Has columns that nobody knows."""

    def rows(self) -> list[dict[str, Any]]:
        return [{"question": "q", "answer": "a"}]


@component
class _OtherRows(_Made):
    """Makes other rows each time."""

    def rows(self) -> list[dict[str, Any]]:
        return [{"text": f"t{next(_COUNT)}"}]


@component
class _Untold(_Made):
    """Has another fingerprint each time."""

    def fingerprint(self) -> str:
        return str(next(_COUNT))


class _Judge(RewardModel):
    """Scores by some numbers."""

    def build(self, engine: Any, tokenizer: Any) -> Scorer:
        judge = self

        class Live(Scorer):
            def __call__(self, rollout: Any) -> Scores:
                return Scores(judge.score(rollout))

        return Live()

    def score(self, rollout: Any) -> torch.Tensor:
        return torch.tensor([float(len(text)) for text in rollout.text])


@component
class _Ranking(_Judge):
    """Compares the responses with each other."""

    def score(self, rollout: Any) -> torch.Tensor:
        return super().score(rollout) - super().score(rollout).mean()


@component
class _Widening(_Judge):
    """Counts pads."""

    def score(self, rollout: Any) -> torch.Tensor:
        return super().score(rollout) + rollout.mask.shape[1] * 0 + (~rollout.mask).sum(1)


@component
class _Undefined(_Judge):
    """Has no score for a short response."""

    def score(self, rollout: Any) -> torch.Tensor:
        return (super().score(rollout) - 1.5).log()


@component
class _OneScore(_Judge):
    """One score for all."""

    def score(self, rollout: Any) -> torch.Tensor:
        return super().score(rollout).mean()


@component
class _Moody(_Judge):
    """Judges otherwise when it is asked again."""

    def score(self, rollout: Any) -> torch.Tensor:
        return super().score(rollout) + next(_COUNT)


CAUGHT: list[tuple[type, str]] = [
    (_Undecorated, "it is no dataclass"),
    (_Changeable, "its settings can be changed; make the dataclass frozen"),
    (_Positional, "limit can be given by position; make the dataclass kw_only"),
    (_Undocumented, "not documented: limit"),
    (_OverDocumented, "documented, but no setting: limit"),
    (_Drawn, r"two of the same settings are not equal: _Drawn\(limit="),
    (_Addressed, r"two of the same settings read differently: .*object at 0x"),
    (_Unpicklable, "it must be possible to pickle it, but it raised"),
    (_Doubling, r"printed by --print_config and read again it is _Doubling\(limit=12.0\), not _Doubling\(limit=6.0\)"),
    (_OverPads, r"what pads hold \(nan\) must change nothing, the advantage: row 0, token 0 is nan, not"),
    (_ByWidth, r"padding must change nothing, but with 3 more columns of NaN, the advantage: row 0, token 0 is"),
    (_FirstRow, r"the order of rows must change nothing, but as \[5, 2, 7.*\], the advantage: row"),
    (_Unmasked, r"masked slots: the advantage of row 1, token 1 is -0.5, not exactly 0 \(20 of 48 numbers are wrong\)"),
    (_Writing, r"arguments are not written to, but 48 of 48 numbers of scored.rewards changed"),
    (_NoEpsilon, r"with groups whose responses are all worth the same, the advantage of row 0, token 0 is inf, not"),
    (_PerResponse, r"shape: advantages must be a tensor \[8, 6\] of floats, it is \[8\]"),
    (_Undeclared, r"it must answer from what its needs_… ask for .* it raised TypeError"),
    (_Targets, "returns must be None where no critic is needed"),
    (_LossOfPads, r"masked slots: with nan there, the loss of row 1, token 1 is nan, not exactly 0"),
    (_GradientOfPads, r"masked slots: with nan there, the gradient of row 1, token 1 is nan, not exactly 0"),
    (_Whitening, r"the cut into micro-batches must change nothing, but rows \[0, 1, 2\] alone: row 0, token 0 is"),
    (_LossByRow, r"the order of rows must change nothing, but as \[5, 2, 7"),
    (_WritingOnPads, r"arguments are not written to, but .* numbers of scored.rewards changed"),
    (_WritingLoss, r"arguments are not written to, but .* numbers of batch.advantages changed"),
    (_DetachedLoss, "gradient: the loss does not depend on logprobs"),
    (_FlatLoss, "gradient: it is 0 everywhere"),
    (_UnknownAggregation, "aggregation is 'mean'; must be one of token, sequence, constant"),
    (_ScalarLoss, r"shape: the loss must be a tensor \[8, 6\] of floats, it is \[\] torch.float32"),
    (_Attached, "gradient: a weight is a constant; detach it"),
    (_Numbered, "it must answer 8 bools"),
    (_Forgetful, r"state: continued from its state, coef goes \[0.1, .*\], not \["),
    (_Negative, r"coef is -0.05 after KLs of \[0.0\]; must be finite and not negative"),
    (_Unbounded, r"coef is inf after KLs of \[0.0\]; must be finite"),
    (_SharingMean, "its shards must be copies, but writing to the weights afterwards moves them: number 0 is 99, not"),
    (_ForgetfulMean, "state: continued from its state, the average: number 0 is"),
    (_NormingMean, "weights parted otherwise must give the same, the average of the whole: number 0 is"),
    (_HalfMean, "its shards must be fp32, they are torch.bfloat16"),
    (_NoEnd, "it must have a factor at step 1 of 1, but it raised ZeroDivisionError"),
    (_BelowZero, "the factor at step 1 of 1 is -1; must be finite and not negative"),
    (_Still, r"a step does not move embedding.weight \(lr 0\)"),
    (_MatricesOnly, "block.bias is in 0 groups, not in one"),
    (_Amnesic, "state: continued from its state, embedding.weight goes elsewhere"),
    (_Unsqueezed, r"shape: the value of .* must be a tensor \[2, 3\] of floats, it is \[2, 3, 1\]"),
    (_HalfHead, "values of torch.bfloat16 hidden states must be fp32, they are torch.bfloat16"),
    (_IdleHead, "gradient: none reaches idle.weight"),
    (_TwoEnds, r"the response 'What is new\?' must end in exactly one 1, it has 2"),
    (_OtherInTalk, r"the prompt 'What is new\?' is \[.*\] alone, and \[.*\] as the only message"),
    (_OtherInMany, r"prompts differs from prompt of 'What is new\?'"),
    (_NotBare, r"bare: the response 'What is new\?' comes back as 'What is new'"),
    (_Unseeded, "the same seed and epoch give two orders"),
    (_OneOrder, "epochs 0 and 1 have the same order"),
    (_BehindTheEnd, r"1 draws are out of range, such as \[\[0, 7\]\] of"),
    (_Formless, "columns: of question, answer no form is made"),
    (_OtherRows, r"loaded twice, its rows differ: row \[0\] of 1 and 1"),
    (_Untold, "its fingerprint is another each time"),
    (_Ranking, "what stands beside a response must change nothing, but '12' alone: number 0 is 0, not"),
    (_Widening, "padding must change nothing, but with 2 more columns the score: number 0 is"),
    (_Undefined, "the score of number 2 is nan, not finite"),
    (_OneScore, r"shape: the score must be a tensor \[4\] of floats, it is \[\]"),
    (_Moody, "asked twice, the score: number 0 is"),
]
"""Each with what its message begins with."""
