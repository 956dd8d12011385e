"""Our losses and estimators against published implementations, on the same tensors: prints the table of docs/peers.md.

    pip install -c constraints.txt -e '.[peers]' && pip install --no-deps verl==0.9.1
    python benchmarks/peers.py

A loss is compared by its value and by its gradient with respect to the log-probabilities, an estimator by all it
answers on real tokens, both in double precision where the peer computes in it. Where a peer means something else, the
last column says what, and what is left once that is undone.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))  # its neighbours, wherever it is started from

import peer_code
import peer_runs as runs
from peer_code import HINT, VERSIONS, MissingPeer, actor_config
from peer_runs import GROUP, ROWS, Found, scored

from rlhf.algorithms import advantages as estimators, policy_losses as losses
from rlhf.algorithms.corrections import MaskedIS, TruncatedIS
from rlhf.algorithms.covariance_losses import ClipCov, KLCov
from rlhf.algorithms.functional import kl
from rlhf.interfaces import AdvantageEstimator, PolicyLoss, SamplerCorrection


@dataclass(frozen=True)
class Comparison:
    """One line of the table.

    Attributes:
        ours: The component or function.
        peer: Name of the distribution.
        theirs: What is called of it.
        run: Compares the two.
        why: Why they differ; "" where they do not.
    """

    ours: str
    peer: str
    theirs: str
    run: Callable[[], Found]
    why: str = ""

    def cells(self) -> tuple[str, str, str]:
        """The first three of its line."""
        return f"`{self.ours}`", f"{self.peer} {VERSIONS[self.peer]}", self.theirs


BESSEL = "its whitening takes the sample variance, ours the population's: a factor √((n − 1) / n) over n tokens"
COVARIANCES = (
    "it takes the covariances of the policy as it is trained, from each micro-batch; ours, those before the update, "
    "from the optimiser step. Undone: a policy for which the two are the same"
)
_GROUPS = {"index": np.arange(ROWS) // GROUP}
_P, _E = losses, estimators


def _trl(ours: PolicyLoss, theirs: str, **settings: Any) -> Comparison:
    return Comparison(_shown(ours), "trl", f"GRPOTrainer, {theirs}", lambda: runs.trl(ours, **settings))


def _verl(ours: PolicyLoss, name: str, mode: str, **settings: Any) -> Comparison:
    run = lambda: runs.verl_loss(ours, name, mode, actor_config(**settings))  # noqa: E731
    return Comparison(_shown(ours), "verl", f"compute_policy_loss_{name}, {mode}", run)


def _covariance(ours: PolicyLoss, name: str, **settings: float) -> Comparison:
    run = lambda: runs.verl_covariance(ours, name, **settings)  # noqa: E731
    return Comparison(_shown(ours), "verl", f"compute_policy_loss_{name}", run, COVARIANCES)


def _estimate(ours: AdvantageEstimator, name: str, *, whitened: bool = False, **settings: Any) -> Comparison:
    run = lambda: runs.verl_estimate(ours, name, whitened=whitened, **settings)  # noqa: E731
    return Comparison(_shown(ours), "verl", f"compute_{name}", run, BESSEL if whitened else "")


def _weights(ours: SamplerCorrection, level: str, threshold: float | str) -> Comparison:
    theirs = f"compute_rollout_correction_weights, {level}, {threshold}"
    return Comparison(_shown(ours), "verl", theirs, lambda: runs.verl_weights(ours, level, threshold))


def _shown(component: Any) -> str:
    """As in Python, with the settings that are not the defaults."""
    settings = {f.name: getattr(component, f.name) for f in dataclasses.fields(component) if _chosen(component, f)}
    return f"{type(component).__name__}({', '.join(f'{name}={value!r}' for name, value in settings.items())})"


def _chosen(component: Any, field: dataclasses.Field[Any]) -> bool:
    return getattr(component, field.name) != field.default


COMPARISONS = [
    _trl(_P.Clip(), "bnpo", loss_type="bnpo"),
    _trl(_P.Clip(aggregation="sequence"), "grpo"),
    Comparison("Clip(aggregation='sequence') + 0.04 k3", "trl", "GRPOTrainer, grpo, beta 0.04", runs.trl_with_kl),
    _trl(_P.Clip(high=0.28), "dapo", loss_type="dapo", epsilon_high=0.28),
    _trl(_P.Clip(aggregation="constant"), "dr_grpo", loss_type="dr_grpo"),
    _trl(_P.DualClip(dual=1.5), "bnpo, delta 1.5", loss_type="bnpo", delta=1.5),
    _trl(
        _P.SequenceClip(low=0.05, high=0.1),
        "grpo, sequence",
        importance_sampling_level="sequence",
        epsilon_low=0.05,
        epsilon_high=0.1,
    ),
    _trl(_P.DetachedClip(high=0.5), "cispo", loss_type="cispo", epsilon_high=1.5),
    Comparison(
        "GeometricMean()",
        "trl",
        "experimental GMPOTrainer",
        lambda: runs.trl(_P.GeometricMean(), "experimental.gmpo.GMPOTrainer", epsilon_low=0.4, epsilon_high=0.4),
    ),
    Comparison(
        "PolicyGradient(aggregation='constant')",
        "trl",
        "RLOOTrainer, gradient",
        runs.trl_rloo,
        "it clips the ratio of the whole response, which is the product of its tokens'; ours has no ratio. Undone: the "
        "first step, where all ratios are 1",
    ),
    _verl(_P.DualClip(dual=1.5), "vanilla", "token-mean", dual=1.5),
    _verl(_P.SequenceClip(low=0.05, high=0.1), "gspo", "seq-mean-token-mean", low=0.05, high=0.1),
    _verl(_P.DetachedClip(low=0.2, high=0.28), "cispo", "token-mean", high=0.28),
    _verl(_P.GeometricMean(), "geo_mean", "seq-mean-token-mean", low=0.4, high=0.4),
    _verl(_P.PolicyGradient(), "gpg", "token-mean"),
    _covariance(ClipCov(fraction=1.0, cov_low=0.2), "clip_cov", clip_cov_ratio=1.0, clip_cov_lb=0.2),
    _covariance(KLCov(fraction=0.1, coef=0.5), "kl_cov", kl_cov_ratio=0.1, ppo_kl_coef=0.5),
    Comparison("losses.clipped_value", "verl", "compute_value_loss", runs.verl_value),
    *(
        Comparison(f"kl.{name}", "verl", f"kl_penalty, {name}", lambda name=name: runs.verl_kl(name))
        for name in kl.ESTIMATORS
    ),
    Comparison(
        "GAE(gamma=0.99, lam=0.9, whiten=False)", "stable-baselines3", "RolloutBuffer (single precision)", runs.sb3
    ),
    _estimate(
        _E.GAE(gamma=0.99, lam=0.9), "gae_advantage_return", whitened=True, values=scored().values, gamma=0.99, lam=0.9
    ),
    _estimate(_E.GroupNorm(eps=1e-6), "grpo_outcome_advantage", **_GROUPS),
    _estimate(_E.GroupNorm(scale="none"), "grpo_outcome_advantage", norm_adv_by_std_in_grpo=False, **_GROUPS),
    _estimate(_E.LeaveOneOut(), "rloo_outcome_advantage", **_GROUPS),
    _estimate(
        _E.Returns(), "reinforce_plus_plus_outcome_advantage", whitened=True, config=peer_code.ActorConfig(gamma=1.0)
    ),
    _estimate(
        _E.GroupNorm(scale="none", whiten=True),
        "reinforce_plus_plus_baseline_outcome_advantage",
        whitened=True,
        **_GROUPS,
    ),
    _estimate(_E.GreedyBaseline(), "remax_outcome_advantage", reward_baselines=scored().greedy),
    Comparison(
        "OptimalTokenBaseline()",
        "verl",
        "compute_optimal_token_baseline_advantage, handle_zero_tail off",
        lambda: runs.verl_token_baseline(zero_tail=False),
    ),
    Comparison(
        "OptimalTokenBaseline()",
        "verl",
        "compute_optimal_token_baseline_advantage",
        lambda: runs.verl_token_baseline(zero_tail=True),
        "by default it has no baseline where the longest response is alone, ours no advantage. Undone: elsewhere",
    ),
    _weights(TruncatedIS(), "token", 2.0),
    _weights(TruncatedIS(level="sequence"), "sequence", 2.0),
    _weights(MaskedIS(low=0.8, high=1.25), "token", "0.8_1.25"),
    _weights(MaskedIS(low=0.5, high=2.0, level="sequence"), "sequence", "0.5_2.0"),
]


def table() -> list[str]:
    """Markdown, a line a comparison."""
    lines = [
        "| ours | implementation | what is called | largest difference | why it differs, and what is left without it |",
        "|---|---|---|---|---|",
    ]
    for comparison in COMPARISONS:
        try:
            found = comparison.run()
        except MissingPeer:
            lines.append(f"| {' | '.join((*comparison.cells(), 'not installed', comparison.why))} |")
            continue
        rest = "" if found.remainder is None else f"{comparison.why}: {_digits(found.remainder)}"
        lines.append(f"| {' | '.join((*comparison.cells(), _digits(found.difference), rest))} |")
    return lines


def _digits(difference: float) -> str:
    """0 for what is exactly equal, else one digit and its power of ten."""
    return "0" if difference == 0 else f"{difference:.0e}"


if __name__ == "__main__":
    lines = table()
    print("\n".join(lines))
    if any("| not installed |" in line for line in lines):
        print(f"What is not installed was not compared: {HINT}", file=sys.stderr)
