"""The maths of the algorithms: tensors in, tensors out, nothing of the framework imported.

Rules that hold in every module:

* a masked slot gives exactly 0 in the value and in the gradient, whatever it holds (NaN and inf included);
* shapes must agree exactly, a `ValueError` names the ones that do not: nothing broadcasts in silence;
* results are float32 (float64 where an input is float64), computed in that precision whatever comes in;
* arguments are never written to, statistics are two-pass, hyper-parameters are keyword-only.

Shape letters: B batch, T response tokens, V vocabulary; P prompts with n responses each.
"""

from rlhf.algorithms.functional import (
    advantages,
    baselines,
    corrections,
    evaluation,
    kl,
    logprobs,
    losses,
    masking,
    policy_losses,
    rewards,
    selection,
    statistics,
)

__all__ = [
    "advantages",
    "baselines",
    "corrections",
    "evaluation",
    "kl",
    "logprobs",
    "losses",
    "masking",
    "policy_losses",
    "rewards",
    "selection",
    "statistics",
]
