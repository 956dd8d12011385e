"""What the metrics of an evaluation ask for: judges, another policy's responses, and several of the policy's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from rlhf.algorithms.functional.rewards import per_response
from rlhf.engines.inference.sampling import Sampling
from rlhf.interfaces import Evaluated, LiveEngine, MetricSetup, Policy, RewardModel, Scorer
from rlhf.loops.figures import check_scores
from rlhf.models.modules import PolicyModel
from rlhf.models.tokenizer import check_same_vocabulary
from rlhf.types import Prompts, Rollout

if TYPE_CHECKING:
    from rlhf.loops.online import OnlineTrainer

STRIDE = 1 << 32
"""Response j to prompt i is number j · STRIDE + i: another number of prompts, or of responses, redraws none of them."""


class HeldOut(MetricSetup):
    """The held-out prompts of a trainer, and how they are answered and judged.

    Args:
        trainer: Of an on-policy stage.
        prompts: Its held-out prompts.
    """

    def __init__(self, trainer: OnlineTrainer, prompts: Prompts) -> None:
        algorithm = trainer.algorithm
        self.trainer, self.prompts = trainer, prompts
        self.engine, self.tokenizer = algorithm.engine, trainer.tokenizer
        config = cast(PolicyModel, trainer.policy.model).lm.config.get_text_config()
        self.positions = getattr(config, "max_position_embeddings", None)
        self.cache_dir = trainer.context.cache_dir
        self.judges: list[tuple[RewardModel, Scorer]] = []

    @property
    def sampling(self) -> Sampling:
        """How the evaluation draws responses."""
        algorithm = self.trainer.algorithm
        return algorithm.evaluation.sampling or algorithm.sampling

    @property
    def seed(self) -> int:
        """Of the random numbers of every evaluation."""
        return self.trainer.context.seed_for("evaluation")

    def judge(self, reward: RewardModel | None) -> Scorer:
        if reward is None or reward == self.trainer.algorithm.reward:
            return self.trainer.scorer
        for known, scorer in self.judges:
            if known == reward:
                return scorer
        scorer = reward.build(self.engine, self.tokenizer)
        self.judges.append((reward, scorer))
        return scorer

    def answers_of(self, policy: Policy) -> Rollout:
        trainer, sampling = self.trainer, self.sampling
        built = policy.build(lambda: (), seed=trainer.context.seed_for("opponent"))
        check_same_vocabulary("against: its model", built.tokenizer, self.tokenizer)
        return self.engine.build(PolicyModel(built.module)).generate(
            self.prompts,
            sampling,
            self.tokenizer,
            seed=self.seed,
            counters=range(len(self.prompts)),
            stop_ids=sampling.stop_ids(self.tokenizer, *trainer.algorithm.data.end_ids(self.tokenizer)),
        )

    def scores(self, judge: Scorer, rollout: Rollout) -> Tensor:
        found = judge(rollout)
        check_scores(rollout, found)
        return per_response(found.total, rollout.mask)


class Responses(Evaluated):
    """The policy's responses to the held-out prompts, and their scores, as far as somebody has asked for them.

    Args:
        setup: The prompts.
    """

    def __init__(self, setup: HeldOut) -> None:
        self.setup = setup
        self._drawn: dict[str, list[Rollout]] = {}
        # by the identity of the judge, which need not have a hash
        self._scored: dict[tuple[str, int], list[Tensor]] = {}

    @property
    def policy(self) -> LiveEngine:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.setup.trainer.policy

    def _key(self, sampling: Sampling | None) -> str:
        return repr(sampling or self.setup.sampling)

    def samples(self, count: int = 1, sampling: Sampling | None = None) -> list[Rollout]:
        setup = self.setup
        drawn = self._drawn.setdefault(self._key(sampling), [])
        if len(drawn) < count:
            with self.policy.inference_mode():
                for first in range(len(drawn) * STRIDE, count * STRIDE, STRIDE):
                    sample, how = setup.trainer.sample, sampling or setup.sampling
                    drawn.append(sample(setup.prompts, seed=setup.seed, first_counter=first, sampling=how))
        return drawn[:count]

    def scores(self, judge: Scorer, count: int = 1, sampling: Sampling | None = None) -> Tensor:
        scored = self._scored.setdefault((self._key(sampling), id(judge)), [])
        for rollout in self.samples(count, sampling)[len(scored) :]:
            scored.append(self.setup.scores(judge, rollout))
        return torch.stack(scored[:count], 1)

    def note(self, judge: Scorer, scores: Tensor) -> None:
        """Takes the [P] scores of the first responses from who has had them judged; a NaN is found when asked for."""
        scored = self._scored.setdefault((self._key(None), id(judge)), [])
        if not scored and bool(scores.isfinite().all()):
            scored.append(scores)
