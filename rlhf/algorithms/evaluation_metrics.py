"""What can be measured at every evaluation, besides scores, KL and lengths."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from rlhf.algorithms.functional import evaluation as functional
from rlhf.data.collate import collate_labelled
from rlhf.data.dataset import Data
from rlhf.engines.inference.sampling import Sampling
from rlhf.errors import UserError, require
from rlhf.interfaces import Evaluated, EvaluationMetric, LiveMetric, MetricSetup, Policy, RewardModel, Scorer
from rlhf.models.tokenizer import pad_id
from rlhf.types import Labelled, Tally

# ----------------------------------------------------------------------------------------------- against another policy


@dataclass(frozen=True, kw_only=True)
class WinRate(EvaluationMetric):
    """How often the response is scored above another policy's to the same prompt; a tie is half a win.

    rate = 1/P Σ (1[s > o] + ½ · 1[s = o]) over the held-out prompts; ``error`` its standard error over them, ``ties``
    the share of equal scores. Both draw by the same random numbers, so a policy that has not moved from ``against`` is
    at one half. The other's responses are drawn once, before the first evaluation.
    Source: arXiv:2203.02155, figure 1.

    Args:
        against: The other policy, such as ``Pretrained`` with the path "@sft".
        judge: Scores both; null is the stage's own reward model.
    """

    against: Policy
    judge: RewardModel | None = None

    @property
    def figures(self) -> tuple[str, ...]:
        return ("", "error", "ties")

    def build(self, setup: MetricSetup) -> LiveMetric:
        judge = setup.judge(self.judge)
        return _LiveWinRate(judge, setup.scores(judge, setup.answers_of(self.against)))


class _LiveWinRate(LiveMetric):
    def __init__(self, judge: Scorer, opponent: Tensor) -> None:
        self.judge = judge
        self.opponent = opponent

    def __call__(self, evaluated: Evaluated) -> dict[str, float]:
        scores = evaluated.scores(self.judge)[:, 0]
        found = functional.win_rate(scores, self.opponent.to(scores))
        return dict(zip(("", "error", "ties"), map(float, found), strict=True))


# ------------------------------------------------------------------------------------- several responses to each prompt


def _check_k(k: Sequence[int], samples: int) -> None:
    """Refuses numbers of tries that cannot be chosen from so many samples."""
    require(at_least=1, samples=samples)
    if not k:
        raise UserError("k is []; name at least one number of tries, such as [1]")
    for number in k:
        if not 1 <= number <= samples:
            raise UserError(
                f"k is {list(k)}, but {number} of {samples} samples cannot be chosen; give numbers from 1 to samples, "
                "or raise samples"
            )
    if len(set(k)) < len(k):
        raise UserError(f"k is {list(k)}; give each number once")


def _check_drawn(samples: int, own: Sampling | None, evaluation: Sampling) -> list[str]:
    """Greedy responses to a prompt are all the same."""
    if samples == 1 or not (own or evaluation).greedy:
        return []
    return [
        f"samples: is {samples}, but the evaluation samples greedily, so they are all the same; give the metric a "
        "sampling of its own, or set samples to 1"
    ]


@dataclass(frozen=True, kw_only=True)
class _AtK(EvaluationMetric):
    """A figure of k of a prompt's responses, estimated from n of them for each k; the mean over prompts.

    Args:
        k: Numbers of tries, each at most ``samples``; the figures are called by them.
        samples: n, responses drawn for each prompt; the first is the evaluation's own where ``sampling`` is null.
        sampling: How they are drawn; null as the evaluation does.
    """

    judge: RewardModel | None
    k: list[int] = field(default_factory=lambda: [1, 8])
    samples: int = 8
    sampling: Sampling | None = None

    def __post_init__(self) -> None:
        _check_k(self.k, self.samples)

    @property
    def figures(self) -> tuple[str, ...]:
        return tuple(map(str, self.k))

    def check(self, sampling: Sampling) -> list[str]:
        return _check_drawn(self.samples, self.sampling, sampling)

    @abstractmethod
    def of(self, scores: Tensor, *, k: int) -> Tensor:
        """The figure of each prompt, [P], from the judge's scores [P, n]."""

    def build(self, setup: MetricSetup) -> LiveMetric:
        return _LiveAtK(self, setup.judge(self.judge))


class _LiveAtK(LiveMetric):
    def __init__(self, settings: _AtK, judge: Scorer) -> None:
        self.settings, self.judge = settings, judge

    def __call__(self, evaluated: Evaluated) -> dict[str, float]:
        settings = self.settings
        scores = evaluated.scores(self.judge, settings.samples, settings.sampling)
        return {str(k): float(settings.of(scores, k=k).mean()) for k in settings.k}


@dataclass(frozen=True, kw_only=True)
class PassAtK(_AtK):
    """Probability that one of k responses to a prompt is correct, without bias, from n samples; mean over prompts.

    pass@k = E[1 − C(n − c, k) / C(n, k)],   c of n with score ≥ threshold.   Source: arXiv:2107.03374, eq. 1.

    Args:
        judge: Says what is correct.
        threshold: Least score of a correct response.
    """

    judge: RewardModel
    threshold: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if math.isnan(self.threshold):
            raise UserError("threshold is nan; give the least score of a correct response")

    def of(self, scores: Tensor, *, k: int) -> Tensor:
        return functional.pass_at_k(scores >= self.threshold, k=k)


@dataclass(frozen=True, kw_only=True)
class BestAtK(_AtK):
    """Score of the best of k responses to a prompt, without bias, from n samples; mean over prompts.

    best@k = E[Σ_i s_(i) C(i − 1, k − 1) / C(n, k)],   s_(1) ≤ … ≤ s_(n) the scores of a prompt's samples: the mean,
    over all choices of k of the n, of the largest. best@1 is the mean score.
    Source: arXiv:2107.03374, eq. 1, whose mean over subsets is taken of scores here.

    Args:
        judge: Scores the responses; null is the stage's own reward model.
        k: How many to choose from, each at most ``samples``; the figures are called by them.
    """

    judge: RewardModel | None = None

    def of(self, scores: Tensor, *, k: int) -> Tensor:
        return functional.best_at_k(scores, k=k)


# -------------------------------------------------------------------------------------------------- words, and the rest


@dataclass(frozen=True, kw_only=True)
class Distinct(EvaluationMetric, LiveMetric):
    """Different n-grams of tokens over all n-grams of the responses to the held-out prompts.

    distinct-n = |set of n-grams| / |n-grams|.   Source: arXiv:1510.03055, section 5.

    Args:
        n: Lengths of the n-grams; the figures are called by them.
    """

    n: list[int] = field(default_factory=lambda: [1, 2, 3])

    def __post_init__(self) -> None:
        if not self.n or min(self.n) < 1 or len(set(self.n)) < len(self.n):
            raise UserError(f"n is {self.n}; give lengths of at least 1, each once, such as [1, 2, 3]")

    @property
    def figures(self) -> tuple[str, ...]:
        return tuple(map(str, self.n))

    def build(self, setup: MetricSetup) -> LiveMetric:
        return self

    def __call__(self, evaluated: Evaluated) -> dict[str, float]:
        (rollout,) = evaluated.samples()
        ids = rollout.sequences.response_ids
        return {str(n): float(functional.distinct_n(ids, rollout.mask, n=n)) for n in self.n}


@dataclass(frozen=True, kw_only=True)
class Perplexity(EvaluationMetric):
    """Perplexity of held-out plain text: what the training costs elsewhere, the alignment tax.

    exp(−1/N Σ log π(x_t | x_<t)) over all N tokens of the texts but their first, at temperature 1.
    Source: the tax is named in arXiv:2203.02155, section 1.

    Args:
        data: The texts: the rows that it holds out, or its ``eval_sources``.
        texts: How many at most; null is all of them.
    """

    data: Data
    texts: int | None = 64

    def __post_init__(self) -> None:
        require(at_least=1, texts=self.texts)

    @property
    def figures(self) -> tuple[str, ...]:
        return ("",)

    def check(self, sampling: Sampling) -> list[str]:
        if self.data.holds_out:
            return []
        return ["data: holds out no text; raise eval_rows or eval_fraction, whichever is set, or give eval_sources"]

    def build(self, setup: MetricSetup) -> LiveMetric:
        prepared = self.data.prepare(setup.tokenizer, form="text", phase="ppo", cache_dir=setup.cache_dir)
        examples = list(itertools.islice(prepared.heldout, self.texts))
        if not examples:
            raise UserError("data: no text is held out; raise eval_rows or eval_fraction, or give eval_sources")
        longest = max(len(example.ids) for example in examples)
        if setup.positions is not None and longest > setup.positions:
            raise UserError(
                f"data.max_tokens: a text has {longest} tokens, but the model has {setup.positions} positions "
                "(max_position_embeddings); lower it to that, which cuts texts into pieces"
            )
        batch = collate_labelled(examples, pad_id=pad_id(setup.tokenizer))
        return _LivePerplexity(batch, setup.engine.rows_at_once)


class _LivePerplexity(LiveMetric):
    def __init__(self, batch: Labelled, rows_at_once: int) -> None:
        self.batch, self.rows_at_once = batch, rows_at_once

    def __call__(self, evaluated: Evaluated) -> dict[str, float]:
        tally, batches = Tally(), list(self.batch.split(self.rows_at_once))
        for batch, output in zip(batches, evaluated.policy.evaluate(batches, want=("logprobs",)), strict=True):
            assert output.logprobs is not None
            tally.mean("loss", -output.logprobs, batch.mask)
        loss = tally.compute()["loss"]
        return {"": math.exp(loss) if loss < 709 else math.inf}  # beyond, math.exp raises
