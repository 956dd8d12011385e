"""Proximal policy optimisation for language models, by parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from rlhf.algorithms.advantages import GAE
from rlhf.algorithms.base import check_batch, check_positive
from rlhf.algorithms.constraints import Constraint
from rlhf.algorithms.critics import OwnTrunk
from rlhf.algorithms.evaluation import Evaluation
from rlhf.algorithms.functional import kl as kl_functions, losses
from rlhf.algorithms.functional.rewards import shape_rewards
from rlhf.algorithms.kl import KL
from rlhf.algorithms.normalization import ScoreNormalization
from rlhf.algorithms.objectives import Entropy, Imitation, Mixture
from rlhf.algorithms.optimizers import AdamW
from rlhf.algorithms.policy_losses import Clip
from rlhf.algorithms.schedules import Constant
from rlhf.algorithms.selection import Last
from rlhf.data import fingerprint
from rlhf.data.dataset import Data
from rlhf.data.stored_rollouts import StoredRollouts
from rlhf.engines.inference.sampling import Sampling
from rlhf.engines.local import Local
from rlhf.errors import UserError, require
from rlhf.interfaces import (
    AdvantageEstimator,
    Critic,
    Engine,
    NeedsInputs,
    OnlineAlgorithm,
    Optimizer,
    Policy,
    PolicyLoss,
    RewardModel,
    RolloutFilter,
    SamplerCorrection,
    Schedule,
    Selection,
    WeightAverage,
)
from rlhf.types import Advantages, Aggregation, Batch, LossTerm, Outputs, Phase, Scored, Tally


@dataclass(frozen=True, kw_only=True)
class PPO(OnlineAlgorithm, NeedsInputs):
    """Proximal policy optimisation from a reward model, with the options of InstructGPT.

    maximise  E_t[min(r_t A_t, clip(r_t, 1 − ε, 1 + ε) A_t)],  reward of token t = score at the last token − β KL_t,
    + coef · log-likelihood of plain text (``mixture``).   Source: arXiv:1707.06347, eq. 7; arXiv:2203.02155, eq. 2.

    Args:
        policy: The model to train.
        reward: What a response is worth.
        data: Prompts.
        sampling: How responses are drawn. Its temperature divides the logits in every log-probability.
        reference: The frozen model the KL is measured against; null is a copy of the policy's start.
        reference_average: A reference that follows the policy, as this average of its weights, in the place of a
            frozen one; null for none.
        critic: Where values come from; not built when ``advantage`` needs no critic.
        advantage: Advantage estimator.
        policy_loss: The surrogate.
        correction: Weights of the tokens where the sampler's probabilities are not the trainer's; null for none.
        kl: The KL penalty; null for none (and no reference).
        mixture: Pretraining mixture; null for none.
        entropy: Entropy bonus; null for none.
        imitation: Likelihood of the iteration's own good responses; null for none.
        constraints: Costs by name that are to stay under a limit, each with a Lagrange multiplier.
        averaging: Average of the policy's weights, saved beside it as ``ema``; null for none.
        iterations: Rollout-and-update rounds.
        batch_size: Responses per iteration over all processes, before the filter.
        samples_per_prompt: Responses drawn for each prompt: the group.
        filter: Which of the responses are learnt from; null for all.
        mini_batch_size: Responses per optimiser step over all processes.
        epochs: Passes over each iteration's responses.
        score_normalization: Shift and scale of the scores; null for none.
        score_clip: Bound of the (normalised) score; the KL part is not clipped. Null for none.
        missing_end_penalty: Taken off the score of a response that was cut by the length limit.
        target_kl: Stop an iteration's update when the mean KL from the old policy, per token, exceeds this; null never.
        rescore: Recompute the old log-probabilities with the trainer; false takes the sampler's.
        optimizer: Of the policy.
        schedule: Of the policy's learning rate.
        max_grad_norm: Gradients are scaled down to this global norm; null leaves them.
        evaluation: Sampling on held-out prompts.
        select: Which weights become the stage's model: the last, their average, or those at the best evaluation.
        save_every: Iterations between checkpoints; 0 none.
        save_rollouts: Responses of each iteration written to ``rollouts/``; ``all`` of them can be replayed.
        replay: Folder ``rollouts/`` of a run with ``save_rollouts: all``: iterations learn from what is stored there,
            in the place of sampling. Evaluations still sample.
        engine: Where and how the models run.
    """

    phase: ClassVar[Phase] = "ppo"

    policy: Policy
    reward: RewardModel
    data: Data
    sampling: Sampling = Sampling()
    reference: Policy | None = None
    reference_average: WeightAverage | None = None
    critic: Critic | None = OwnTrunk()
    advantage: AdvantageEstimator = GAE()
    policy_loss: PolicyLoss = Clip()
    correction: SamplerCorrection | None = None
    kl: KL | None = KL()
    mixture: Mixture | None = None
    entropy: Entropy | None = None
    imitation: Imitation | None = None
    constraints: dict[str, Constraint] = field(default_factory=dict)
    averaging: WeightAverage | None = None
    iterations: int = 100
    batch_size: int = 64
    samples_per_prompt: int = 1
    filter: RolloutFilter | None = None
    mini_batch_size: int = 16
    epochs: int = 1
    score_normalization: ScoreNormalization | None = None
    score_clip: float | None = 5.0
    missing_end_penalty: float = 0.0
    target_kl: float | None = None
    rescore: bool = True
    optimizer: Optimizer = AdamW()
    schedule: Schedule = Constant()
    max_grad_norm: float | None = 1.0
    evaluation: Evaluation = Evaluation()
    select: Selection = Last()
    save_every: int = 0
    save_rollouts: int | Literal["all"] = 8
    replay: str | None = None
    engine: Engine = Local()

    def __post_init__(self) -> None:
        require(at_least=0, save_every=self.save_every)
        require(at_least=0, save_rollouts=None if self.save_rollouts == "all" else self.save_rollouts)
        require(at_least=0, missing_end_penalty=self.missing_end_penalty)
        require(above=0, max_grad_norm=self.max_grad_norm, target_kl=self.target_kl, score_clip=self.score_clip)

    def check_inputs(self) -> None:
        if self.replay is not None:
            StoredRollouts.check(self.replay, self.iterations, self.batch_size)

    def fingerprint(self) -> str | None:
        if self.replay is None:
            return None
        return fingerprint.of_files(sorted(Path(self.replay).expanduser().glob("*.jsonl")))

    def check(self) -> list[str]:
        problems = check_positive(
            iterations=self.iterations,
            batch_size=self.batch_size,
            samples_per_prompt=self.samples_per_prompt,
            mini_batch_size=self.mini_batch_size,
            epochs=self.epochs,
        )
        if problems:
            return problems
        if rest := self.batch_size % self.samples_per_prompt:
            problems.append(
                f"batch_size: {self.batch_size} % {self.samples_per_prompt} = {rest}, not 0; "
                "make batch_size a multiple of samples_per_prompt"
            )
        elif rest := self.learnt % self.mini_batch_size:
            kept = "" if self.filter is None else f"filter keeps {self.learnt} of {self.batch_size} responses, and "
            of = "batch_size" if self.filter is None else "them"
            problems.append(
                f"batch_size: {kept}{self.learnt} % {self.mini_batch_size} = {rest}, not 0; "
                f"make {of} a multiple of mini_batch_size"
            )
        problems += check_batch(self.mini_batch_size, self.engine, name="mini_batch_size")
        if self.mixture is not None and self.mixture.batch_size is not None:
            problems += check_batch(self.mixture.batch_size, self.engine, name="mixture.batch_size")
        if self.critic is not None and self.critic.warmup_iterations >= self.iterations:
            problems.append(
                f"iterations: is {self.iterations}, but the critic warms up for {self.critic.warmup_iterations}, so "
                "the policy would never learn; raise iterations, or lower critic.warmup_iterations"
            )
        return problems + self._check_parts()

    def _check_parts(self) -> list[str]:
        """Problems of parts that do not go together."""
        problems, estimator = [], type(self.advantage).__name__
        if self.advantage.needs_critic and self.critic is None:
            problems.append(f"critic: is null, but {estimator} needs values; set a critic, or another advantage")
        if self.advantage.needs_groups and self.samples_per_prompt < 2:
            problems.append(
                f"samples_per_prompt: is {self.samples_per_prompt}, but {estimator} compares the responses of a prompt "
                "with each other; set at least 2"
            )
        if self.sampling.greedy and (self.advantage.needs_groups or self.advantage.needs_greedy):
            problems.append(
                f"sampling.greedy: is true, so {estimator} would compare equal responses, and all advantages be 0; set "
                "it to false"
            )
        if getattr(self.policy_loss, "aggregation", None) not in get_args(Aggregation):
            name, known = type(self.policy_loss).__name__, ", ".join(get_args(Aggregation))
            problems.append(f"policy_loss: {name} has no aggregation; give it a field of that name, one of {known}")
        if self.filter is not None and (reason := self.filter.check(self.samples_per_prompt)):
            name = type(self.filter).__name__
            problems.append(f"samples_per_prompt: is {self.samples_per_prompt}, and for {name} {reason}")
        if self.filter is not None and self.replay is not None:
            problems.append("filter: what is replayed has been filtered when it was stored; set filter to null")
        if not self.rescore:
            for setting, asks in (("advantage", self.advantage.needs_collision), ("correction", self.correction)):
                if asks:
                    name = type(getattr(self, setting)).__name__
                    problems.append(f"rescore: is false, but {name} reads what only the trainer knows; set it to true")
        if self.kl is not None and (reason := self.kl.controller.check(responses=self.learnt)):
            problems.append(f"kl.controller.{reason}")
        for setting in ("averaging", "reference_average"):
            average: WeightAverage | None = getattr(self, setting)
            if average is not None and (reason := average.check(steps=self.policy_steps)):
                problems.append(f"{setting}.{reason}")
        if self.reference is not None and self.reference_average is not None:
            problems.append("reference: a frozen model, and reference_average follows the policy; set one to null")
        if self.kl is None and (self.reference is not None or self.reference_average is not None):
            name = "reference" if self.reference is not None else "reference_average"
            problems.append(f"{name}: is given, but kl is null, so that nothing reads it; set kl, or {name} to null")
        return problems + self._check_evaluation()

    def _check_evaluation(self) -> list[str]:
        found = self.evaluation.check(self.data, self.sampling)
        return found + self.evaluation.check_selection(
            self.select, averaged=self.averaging is not None, kl=self.kl is not None, mixture=self.mixture is not None
        )

    def check_positions(self, positions: int, longest: int = 1) -> list[str]:
        """As everywhere; ``longest`` is the longest prompt's length where the data are known."""
        problems = []
        for name, sampling in {"sampling": self.sampling, **self.evaluation.samplings()}.items():
            if longest + sampling.max_new_tokens > positions:
                prompt = "a prompt" if longest == 1 else f"the longest prompt, of {longest} tokens,"
                problems.append(
                    f"{name}.max_new_tokens: is {sampling.max_new_tokens}, but the model has {positions} positions "
                    f"(max_position_embeddings), {prompt} included; lower it, or data.max_prompt_tokens"
                )
        return problems

    def outputs(self) -> tuple[str, ...]:
        return ("model", "ema") if self.averaging is not None else ("model",)

    @property
    def used_critic(self) -> Critic | None:
        """The critic, where the advantage estimator reads one."""
        return self.critic if self.advantage.needs_critic else None

    @property
    def prompts(self) -> int:
        """Prompts per iteration: one per group."""
        return self.batch_size // self.samples_per_prompt

    @property
    def learnt(self) -> int:
        """Responses that an iteration learns from: those that a filter keeps."""
        return self.batch_size if self.filter is None else self.filter.kept(self.batch_size, self.samples_per_prompt)

    @property
    def exact_in_loss(self) -> bool:
        """Whether the loss has the KL of whole distributions."""
        return self.kl is not None and self.kl.estimator == "exact" and self.kl.where == "loss"

    @property
    def exact_in_reward(self) -> bool:
        """Whether each token is charged for the KL of whole distributions."""
        return self.kl is not None and self.kl.estimator == "exact" and self.kl.where == "reward"

    @property
    def policy_steps(self) -> int:
        """Optimiser steps of the policy in a run without early stops."""
        learning = self.iterations - (0 if self.used_critic is None else self.used_critic.warmup_iterations)
        return learning * self.epochs * -(-self.learnt // self.mini_batch_size)

    @property
    def want(self) -> tuple[str, ...]:
        """The fields of :class:`Outputs` that :meth:`loss` reads."""
        entropy = ("entropy",) if self.entropy is not None else ()
        values = ("values",) if self.used_critic is not None and self.used_critic.shared else ()
        return ("logprobs", *entropy, *values, *(("distribution",) if self.exact_in_loss else ()))

    def rewards(
        self,
        scores: Tensor,
        old_logprobs: Tensor,
        ref_logprobs: Tensor | None,
        mask: Tensor,
        *,
        kl_coef: float,
        divergence: Tensor | None = None,
    ) -> Tensor:
        clip = self.score_clip
        if self.kl is None or self.kl.where == "loss" or ref_logprobs is None:
            return shape_rewards(scores, old_logprobs, old_logprobs, mask, kl_coef=0.0, score_clip=clip)
        how, coef = self.kl.estimator, kl_coef
        return shape_rewards(
            scores, old_logprobs, ref_logprobs, mask, kl_coef=coef, kl=how, score_clip=clip, divergence=divergence
        )

    def advantages(self, scored: Scored) -> Advantages:
        found, name = self.advantage(scored), type(self.advantage).__name__
        if not isinstance(found, Advantages):
            raise UserError(
                f"advantage: {name} answers a {type(found).__name__}, not Advantages(advantages, returns); mend it, "
                "and try rlhf.testing.check_component"
            )
        if found.advantages.shape != scored.mask.shape:
            raise UserError(
                f"advantage: {name} answers advantages {list(found.advantages.shape)} for tokens "
                f"{list(scored.mask.shape)}; mend it, and try rlhf.testing.check_component"
            )
        return found

    def loss(self, outputs: Outputs, batch: Batch, *, kl_coef: float) -> tuple[list[LossTerm], Tally]:
        assert outputs.logprobs is not None
        logprobs, mask = outputs.logprobs, batch.mask
        surrogate = self.policy_loss(logprobs, batch)
        tally = self._update_metrics(logprobs.detach(), batch)
        if self.correction is not None:
            weights = self.correction(batch)
            surrogate = surrogate * weights
            tally.mean("policy/correction", weights, mask)
        terms = [LossTerm("policy", surrogate, mask, mode=self.policy_loss.aggregation)]
        if self.kl is not None and self.kl.where == "loss":
            terms.append(LossTerm("kl", self.kl.penalty(outputs, batch), mask, coef=kl_coef))
        terms += [part.term(outputs, batch) for part in (self.entropy, self.imitation) if part is not None]
        if outputs.values is not None:
            value_terms, value_tally = self.value_loss(outputs, batch)
            terms += value_terms
            tally.merge(value_tally)
        return terms, tally

    def _update_metrics(self, logprobs: Tensor, batch: Batch) -> Tally:
        """How far the policy has moved from the one that sampled."""
        mask, tally = batch.mask, Tally()
        ratio = (logprobs - batch.old_logprobs).masked_fill(~mask, 0.0).exp()
        if mask.any():
            tally.max("policy/ratio_max", float(ratio[mask].max()))
        # A token is clipped where the surrogate has lost its gradient: found by asking the loss itself.
        probe = logprobs.clone().requires_grad_()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(self.policy_loss(probe, batch).sum(), probe)
        tally.mean("policy/clip_fraction", (slope == 0) & (batch.advantages != 0), mask)
        tally.mean("policy/approx_kl", kl_functions.k3(batch.old_logprobs, logprobs, mask=mask), mask)
        return tally

    def value_loss(self, outputs: Outputs, batch: Batch) -> tuple[list[LossTerm], Tally]:
        critic = self.used_critic
        assert critic is not None and outputs.values is not None
        assert batch.values is not None and batch.returns is not None
        values = losses.clipped_value(outputs.values, batch.values, batch.returns, batch.mask, clip=critic.clip)
        return [LossTerm("value", values, batch.mask, coef=critic.coef)], Tally()

    def denominators(self, batch: Batch) -> dict[str, float]:
        tokens = float(batch.mask.sum())
        policy = {
            "token": tokens,
            "sequence": float(batch.mask.any(1).sum()),
            "constant": float(len(batch) * self.sampling.max_new_tokens),
        }[self.policy_loss.aggregation]
        found = {"policy": policy, "value": tokens, "kl": tokens, "entropy": tokens}
        if self.imitation is not None:
            found["imitation"] = max(float(self.imitation.mask(batch).sum()), 1.0)
        return found
