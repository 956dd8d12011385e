"""Contracts of the parts of a policy update: advantage estimators, policy losses, corrections, filters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor

from rlhf.interfaces import AdvantageEstimator, PolicyLoss, RolloutFilter, SamplerCorrection
from rlhf.testing import samples
from rlhf.testing.contract import Contract
from rlhf.types import Advantages, Aggregation, Batch, Scored

_ORDER = torch.tensor([5, 2, 7, 0, 3, 6, 1, 4])


def check_estimator(contract: Contract, estimator: AdvantageEstimator) -> None:
    """See :func:`rlhf.testing.check_component`."""

    def estimate(scored: Scored) -> Advantages:
        found = contract.answered(
            lambda: estimator(scored), "it must answer from what its needs_… ask for (the others are None)"
        )
        contract.holds(isinstance(found, Advantages), f"it answers a {type(found).__name__}, not Advantages")
        contract.shaped(found.advantages, tuple(scored.mask.shape), "advantages")
        if estimator.needs_critic:
            contract.shaped(found.returns, tuple(scored.mask.shape), "returns (it needs a critic)")
        else:
            contract.holds(found.returns is None, "returns must be None where no critic is needed")
        return found

    given = samples.scored(estimator)
    mask = given.mask
    with contract.untouched(scored=given):
        plain = estimate(given)
    contract.finite(plain.advantages, "advantages")
    contract.zero(plain.advantages, mask, "the advantage of")
    for filling in (samples.NAN, float("inf"), -7.0):
        filled = samples.dirty(given, filling)
        with contract.untouched(scored=filled):
            found = estimate(filled)
        _alike(contract, found, plain, mask, f"what pads hold ({filling:g}) must change nothing")
        contract.zero(found.advantages, mask, f"with {filling:g} there, the advantage of")
    wide = samples.widened(given)
    found, width = estimate(wide), mask.shape[1]
    cut = Advantages(found.advantages[:, :width], None if found.returns is None else found.returns[:, :width])
    _alike(contract, cut, plain, mask, "padding must change nothing, but with 3 more columns of NaN")
    contract.zero(found.advantages, wide.mask, "in the padding, the advantage of")
    moved = estimate(samples.reordered(given, _ORDER))
    expected = Advantages(plain.advantages[_ORDER], None if plain.returns is None else plain.returns[_ORDER])
    _alike(contract, moved, expected, mask[_ORDER], f"the order of rows must change nothing, but as {_ORDER.tolist()}")
    for what, degenerate in {
        "responses of one token": samples.single_tokens(given),
        "groups whose responses are all worth the same": samples.constant(given),
        "responses of one token all worth the same": samples.single_tokens(samples.constant(given)),
    }.items():
        contract.finite(estimate(degenerate).advantages, f"with {what}, the advantage of")


def _alike(contract: Contract, found: Advantages, expected: Advantages, mask: Tensor, what: str) -> None:
    contract.same(found.advantages.where(mask, 0), expected.advantages.where(mask, 0), f"{what}, the advantage")
    if found.returns is not None and expected.returns is not None:
        contract.same(found.returns.where(mask, 0), expected.returns.where(mask, 0), f"{what}, the return")


def _check_per_token(contract: Contract, call: Callable[[Tensor, Batch], Tensor], name: str) -> None:
    """What a number per token of a batch keeps to.

    Args:
        contract: Of the component.
        call: Its numbers [B, T] for log-probabilities and a whole batch.
        name: What the numbers are.
    """
    given = samples.batch()
    mask, width = given.mask, given.mask.shape[1]
    logprobs = given.old_logprobs + 0.1 * given.values  # pyright: ignore[reportOperatorIssue]

    def of(logprobs: Tensor, batch: Batch) -> Tensor:
        found = contract.answered(lambda: call(logprobs, batch), f"it must answer a {name} per token")
        return contract.shaped(found, tuple(batch.mask.shape), f"the {name}")

    with contract.untouched(logprobs=logprobs, batch=given):
        plain = of(logprobs, given).detach()
    contract.finite(plain, f"the {name} of")
    contract.zero(plain, mask, f"the {name} of")
    for filling in (samples.NAN, float("inf"), -7.0):
        filled, theirs = samples.dirty(given, filling), logprobs.masked_fill(~mask, filling)
        with contract.untouched(logprobs=theirs, batch=filled):
            found = of(theirs, filled).detach()
        contract.zero(found, mask, f"with {filling:g} there, the {name} of")
        contract.same(found, plain, f"what pads hold ({filling:g}) must change nothing, the {name}")
    wide = samples.widened(given)
    found = of(torch.nn.functional.pad(logprobs, (0, 3), value=samples.NAN), wide).detach()
    contract.same(found[:, :width], plain, f"padding must change nothing, but with 3 more columns of NaN, the {name}")
    contract.zero(found, wide.mask, f"in the padding, the {name} of")
    moved = of(logprobs[_ORDER], given.select(_ORDER)).detach()
    contract.same(moved, plain[_ORDER], f"the order of rows must change nothing, but as {_ORDER.tolist()}, the {name}")
    single = given.select(torch.arange(len(mask)))
    alone = replace(single, mask=mask & (torch.arange(width) == 0), advantages=torch.zeros(mask.shape))
    contract.finite(of(logprobs, alone), f"with one token a response and advantages of 0, the {name} of")


def _check_cut(contract: Contract, call: Any, logprobs: Tensor, whole: Batch, plain: Tensor) -> None:
    for rows in (torch.arange(0, 3), torch.arange(3, 8), torch.tensor([1])):
        part = whole.select(rows)
        width = part.mask.shape[1]
        found = call(logprobs[rows, :width], part).detach()
        contract.same(
            found,
            plain[rows, :width],
            f"the cut into micro-batches must change nothing, but rows {rows.tolist()} alone",
        )


def check_policy_loss(contract: Contract, loss: PolicyLoss) -> None:
    """See :func:`rlhf.testing.check_component`."""
    known = get_args(Aggregation)
    found = getattr(loss, "aggregation", None)
    contract.holds(found in known, f"aggregation is {found!r}; must be one of {', '.join(known)}")

    def prepared(logprobs: Tensor, batch: Batch) -> Tensor:
        return loss(logprobs, loss.prepare(batch))

    _check_per_token(contract, prepared, "loss")
    whole = loss.prepare(samples.batch())
    mask, old = whole.mask, whole.old_logprobs
    near = old + 0.1 * whole.values  # pyright: ignore[reportOperatorIssue]
    _check_cut(contract, loss, near, whole, loss(near, whole).detach())
    gradients = []
    for batch, filling in ((whole, 0.0), (samples.dirty(whole), samples.NAN), (samples.dirty(whole), float("inf"))):
        logprobs = old.masked_fill(~mask, filling).requires_grad_()
        values = loss(logprobs, batch)
        contract.holds(values.requires_grad, "gradient: the loss does not depend on logprobs; nothing would be learned")
        (gradient,) = torch.autograd.grad(values.sum(), logprobs, allow_unused=True)
        contract.holds(gradient is not None, "gradient: the loss does not depend on logprobs; nothing would be learned")
        contract.zero(gradient, mask, f"with {filling:g} there, the gradient of")
        contract.finite(gradient, "the gradient of")
        gradients.append(gradient)
    contract.holds(bool(gradients[0].any()), "gradient: it is 0 everywhere at the old policy; nothing would be learned")
    for gradient in gradients[1:]:
        contract.same(gradient, gradients[0], "what pads hold must change nothing, the gradient")


def check_correction(contract: Contract, correction: SamplerCorrection) -> None:
    """See :func:`rlhf.testing.check_component`."""
    _check_per_token(contract, lambda _, batch: correction(batch), "weight")
    batch = samples.batch()
    batch = replace(batch, old_logprobs=batch.old_logprobs.clone().requires_grad_())
    contract.holds(not correction(batch).requires_grad, "gradient: a weight is a constant; detach it")


def check_filter(contract: Contract, chosen: RolloutFilter) -> None:
    """See :func:`rlhf.testing.check_component`."""
    torch.manual_seed(0)
    scores, groups = torch.randn(8), torch.arange(8) // samples.GROUP
    with contract.untouched(scores=scores, groups=groups):
        kept = chosen(scores, groups)
    contract.holds(kept.dtype == torch.bool and kept.shape == scores.shape, f"it must answer 8 bools, not {kept}")
    order = torch.tensor([4, 5, 6, 7, 0, 1, 2, 3])
    contract.same(
        chosen(scores[order], groups[order]).float(), kept[order].float(), "the order of groups must not count"
    )
    contract.holds(chosen.attempts() >= 1, f"attempts() is {chosen.attempts()}; must be at least 1")
    number = chosen.kept(8, samples.GROUP)
    contract.holds(1 <= number <= 8, f"kept(8, 4) is {number}; of 8 responses between 1 and 8 can be kept")
