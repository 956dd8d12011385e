"""What every policy loss, sampler correction and advantage estimator holds to, found in the registries.

Kinds B and C of the public bug reports: padding, row order, the cut into micro-batches, one-token rows, groups without
a difference. A component is tested by being there; ``VARIANTS`` adds settings that take another way through the code.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rlhf.algorithms.advantages import GAE, GroupNorm, Returns
from rlhf.algorithms.corrections import MaskedIS, TruncatedIS
from rlhf.algorithms.covariance_losses import ClipCov, KLCov
from rlhf.algorithms.functional.masking import aggregate
from rlhf.algorithms.policy_losses import Clip, DetachedClip, KLPenalty, SequenceClip
from rlhf.interfaces import AdvantageEstimator, PolicyLoss, SamplerCorrection
from rlhf.registry import Registry, load_components
from rlhf.types import Batch, Scored, Sequences

NAN = float("nan")
LENGTHS = [4, 1, 6, 3, 2, 5, 1, 4]
PROMPTS = [2, 3, 1, 3, 2, 1, 3, 2]
GROUPS = [5, 5, 5, 9, 9, 2, 2, 2]

VARIANTS: list[Any] = [
    Clip(aggregation="sequence"),
    Clip(aggregation="constant"),
    SequenceClip(low=0.1, high=0.1, aggregation="token"),
    DetachedClip(low=0.2, high=None),
    KLPenalty(coef=0.1),
    ClipCov(fraction=0.2, cov_low=-1.0, cov_high=1.0),
    KLCov(fraction=0.3, coef=0.5, aggregation="constant"),
    TruncatedIS(cap=1.1, level="sequence"),
    MaskedIS(low=0.9, high=1.1, level="sequence"),
    GAE(critic_lam=1.0, length_alpha=0.5, whiten=False),
    GAE(gamma=0.9, lam=0.8),
    Returns(gamma=0.9, whiten=False),
    GroupNorm(scale="batch"),
    GroupNorm(scale="none", whiten=True),
]


def components(base: type) -> list[Any]:
    load_components()
    ours = [cls() for cls in Registry(base) if cls.__module__.startswith("rlhf.")]
    return [*ours, *(variant for variant in VARIANTS if isinstance(variant, base))]


LOSSES = pytest.mark.parametrize("loss", components(PolicyLoss), ids=repr)
CORRECTIONS = pytest.mark.parametrize("correction", components(SamplerCorrection), ids=repr)
ESTIMATORS = pytest.mark.parametrize("estimator", components(AdvantageEstimator), ids=repr)
GROUPED = pytest.mark.parametrize(
    "estimator", [part for part in components(AdvantageEstimator) if part.needs_groups], ids=repr
)


def test_the_parts_of_the_house_are_among_them():
    names = {type(part).__name__ for base in (PolicyLoss, AdvantageEstimator) for part in components(base)}
    assert names >= {"Clip", "ClipCov", "GAE", "OptimalTokenBaseline"}


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def real(lengths: list[int], width: int) -> Tensor:
    return torch.arange(width)[None, :] < torch.tensor(lengths)[:, None]


def laid_out(left: int, right: int, fill: float, lengths: list[int] | None = None) -> Batch:
    """Eight rows of different lengths, with so many further columns of padding and this in every padded slot."""
    lengths = LENGTHS if lengths is None else lengths
    prompt, width = max(PROMPTS) + left, max(LENGTHS) + right
    mask, words = real(lengths, width), random(8, 3 + 6, seed=9)
    ids = torch.zeros(8, prompt + width, dtype=torch.long)
    attention = torch.zeros_like(ids, dtype=torch.bool)
    for row, (before, length) in enumerate(zip(PROMPTS, lengths, strict=True)):
        here = slice(prompt - before, prompt + length)
        ids[row, here] = (words[row, : before + length] * 100).long().abs() + 1
        attention[row, here] = True

    def padded(values: Tensor) -> Tensor:
        wide = torch.nn.functional.pad(values, (0, width - values.shape[1]), value=fill)
        return wide.masked_fill(~mask, fill)

    old = -random(8, 6, seed=1).abs() - 0.1
    return Batch(
        sequences=Sequences(ids, attention, prompt),
        mask=mask,
        rollout_logprobs=padded(old + 0.1 * random(8, 6, seed=2)),
        old_logprobs=padded(old),
        ref_logprobs=padded(old - 0.2),
        advantages=padded(random(8, 1, seed=3).expand(8, 6)),
        returns=padded(random(8, 6, seed=4)),
        values=padded(random(8, 6, seed=5)),
    )


def moved(batch: Batch, by: float = 0.3) -> Tensor:
    """Log-probabilities of a policy that has learned something since."""
    step = by * random(8, 6, seed=7)
    return batch.old_logprobs.detach() + torch.nn.functional.pad(step, (0, batch.mask.shape[1] - 6))


def value_and_slope(loss: PolicyLoss, logprobs: Tensor, batch: Batch, denominator: float) -> tuple[Tensor, Tensor]:
    """[B, T] loss, and the gradient of what is made of it."""
    logprobs = logprobs.clone().requires_grad_()
    values = loss(logprobs, batch)
    aggregate(values, batch.mask, mode=loss.aggregation, denominator=denominator).backward()
    assert logprobs.grad is not None
    return values.detach(), logprobs.grad


def denominator(loss: PolicyLoss, batch: Batch) -> float:
    return {"token": float(batch.mask.sum()), "sequence": float(len(batch)), "constant": len(batch) * 10.0}[
        loss.aggregation
    ]


# ---------------------------------------------------------------------------------------------------------- losses


@LOSSES
def test_padding_is_not_seen_by_a_loss(loss):  # cases A1, B1, C1
    plain, wide = (loss.prepare(laid_out(*pads)) for pads in ((0, 0, 0.0), (2, 3, NAN)))
    count = denominator(loss, plain)
    value, slope = value_and_slope(loss, moved(plain), plain, count)
    padded, padded_slope = value_and_slope(loss, moved(wide), wide, count)
    assert value.dtype == torch.float64
    torch.testing.assert_close(padded[:, :6], value, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(padded_slope[:, :6], slope, rtol=1e-12, atol=1e-12)
    assert (padded[~wide.mask] == 0).all() and (padded_slope[~wide.mask] == 0).all()
    assert slope[plain.mask].isfinite().all() and (slope != 0).any()


@LOSSES
@pytest.mark.parametrize("seed", [0, 1])
def test_the_order_of_the_rows_is_not_seen_by_a_loss(loss, seed):  # case B8
    whole = laid_out(0, 0, 0.0)
    order = torch.randperm(8, generator=torch.Generator().manual_seed(seed))
    prepared, shuffled = loss.prepare(whole), loss.prepare(whole.select(order))
    count = denominator(loss, whole)
    expected = value_and_slope(loss, moved(whole), prepared, count)
    found = value_and_slope(loss, moved(whole)[order], shuffled, count)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other[order], rtol=1e-12, atol=1e-12)


@LOSSES
@pytest.mark.parametrize("size", [1, 2, 4])
def test_micro_batches_add_up(loss, size):  # case C1
    whole = loss.prepare(laid_out(0, 0, 0.0))
    count, logprobs = denominator(loss, whole), moved(whole)
    _, expected = value_and_slope(loss, logprobs, whole, count)
    parts = logprobs.clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for start, part in zip(range(0, 8, size), whole.split(size), strict=True):
        here = parts[start : start + size, : part.mask.shape[1]]
        total = total + aggregate(loss(here, part), part.mask, mode=loss.aggregation, denominator=count)
    total.backward()
    assert parts.grad is not None
    torch.testing.assert_close(parts.grad, expected, rtol=1e-12, atol=1e-12)


@LOSSES
def test_at_the_old_policy_every_loss_has_the_policy_gradient(loss):
    batch = loss.prepare(laid_out(0, 0, 0.0))
    count = denominator(loss, batch)
    _, slope = value_and_slope(loss, batch.old_logprobs, batch, count)
    share = 1 / batch.mask.double().sum(1, keepdim=True) if loss.aggregation == "sequence" else 1.0
    expected = -(batch.advantages * share / count).masked_fill(~batch.mask, 0.0)
    if isinstance(loss, ClipCov):
        assert batch.selected is not None
        expected = expected.masked_fill(batch.selected, 0.0)
    torch.testing.assert_close(slope, expected, rtol=1e-12, atol=1e-12)


@LOSSES
def test_without_advantage_nothing_is_learned(loss):  # case B8: a constant group
    batch = dataclasses.replace(laid_out(0, 0, 0.0), advantages=torch.zeros(8, 6, dtype=torch.float64))
    batch = loss.prepare(batch)
    _, slope = value_and_slope(loss, batch.old_logprobs, batch, denominator(loss, batch))
    assert (slope == 0).all()


@LOSSES
def test_rows_of_one_token_and_of_none(loss):  # case B2
    batch = loss.prepare(laid_out(0, 0, NAN, lengths=[1, 1, 1, 0, 1, 1, 0, 1]))
    value, slope = value_and_slope(loss, moved(batch), batch, 6.0)
    assert value.isfinite().all() and slope.isfinite().all()
    assert (value[[3, 6]] == 0).all() and (slope[[3, 6]] == 0).all()
    nothing = loss.prepare(laid_out(0, 0, NAN, lengths=[0] * 8))
    value, slope = value_and_slope(loss, moved(nothing), nothing, 1.0)
    assert (value == 0).all() and (slope == 0).all()


@LOSSES
def test_ratios_beyond_all_bounds_stay_finite(loss):
    batch = loss.prepare(laid_out(0, 0, 0.0))
    likely, unlikely = batch.old_logprobs.float(), batch.old_logprobs.float() - 1e4
    for old, new in ((likely, unlikely), (unlikely, likely)):
        single = dataclasses.replace(batch, old_logprobs=old, advantages=batch.advantages.float())
        value, slope = value_and_slope(loss, new, single, 1.0)
        assert value.isfinite().all() and slope.isfinite().all()


@LOSSES
def test_a_loss_does_not_write_to_its_batch(loss):
    batch = laid_out(0, 0, 0.0)
    prepared, logprobs = loss.prepare(batch), moved(batch)
    copies = _copies(batch)
    before = logprobs.clone()
    loss(logprobs, prepared)
    assert torch.equal(logprobs, before) and batch.selected is None
    assert all(torch.equal(getattr(batch, name), copy) for name, copy in copies.items())


def _copies(thing: Any) -> dict[str, Tensor]:
    fields = {f.name: getattr(thing, f.name) for f in dataclasses.fields(thing)}
    return {name: value.clone() for name, value in fields.items() if isinstance(value, Tensor)}


# ----------------------------------------------------------------------------------------------------- corrections


@CORRECTIONS
def test_corrections_see_neither_padding_nor_the_order_of_rows(correction):
    plain, wide = laid_out(0, 0, 0.0), laid_out(2, 3, NAN)
    weights = correction(plain)
    padded = correction(wide)
    torch.testing.assert_close(padded[:, :6], weights, rtol=1e-12, atol=0)
    assert (padded[~wide.mask] == 0).all() and not weights.requires_grad
    order = torch.tensor([3, 1, 7, 0, 2, 6, 5, 4])
    torch.testing.assert_close(correction(plain.select(order)), weights[order], rtol=1e-12, atol=0)


@CORRECTIONS
def test_a_sampler_that_agrees_is_not_corrected(correction):
    batch = laid_out(0, 0, 0.0)
    batch = dataclasses.replace(batch, rollout_logprobs=batch.old_logprobs)
    assert torch.equal(correction(batch), batch.mask.double())


# ------------------------------------------------------------------------------------------------------ estimators


def scored(right: int = 0, fill: float = 0.0, lengths: list[int] | None = None) -> Scored:
    lengths = LENGTHS if lengths is None else lengths
    width = 6 + right
    mask = real(lengths, width)

    def padded(values: Tensor) -> Tensor:
        return torch.nn.functional.pad(values, (0, right), value=fill).masked_fill(~mask, fill)

    old = -random(8, 6, seed=1).abs() - 0.1
    return Scored(
        rewards=padded(random(8, 6, seed=3)),
        scores=random(8, seed=10),
        values=padded(random(8, 6, seed=4)),
        bootstrap=random(8, seed=5),
        mask=mask,
        groups=torch.tensor(GROUPS),
        greedy=random(3, seed=6)[torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])],
        old_logprobs=padded(old),
        collision=padded(old.exp().square() + 0.1 * random(8, 6, seed=8).abs()),
    )


def of_rows(whole: Scored, rows: Tensor) -> Scored:
    return Scored(**{f.name: getattr(whole, f.name)[rows] for f in dataclasses.fields(whole)})


def estimate(estimator: AdvantageEstimator, given: Scored) -> list[Tensor]:
    answer = estimator(given)
    assert (answer.returns is not None) == estimator.needs_critic
    return [answer.advantages] if answer.returns is None else [*answer]


def same(found: list[Tensor], expected: list[Tensor], change: Callable[[Tensor], Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, change(other), rtol=1e-10, atol=1e-12)


@ESTIMATORS
def test_padding_is_not_seen_by_an_estimator(estimator):  # cases B1, B2
    wide = scored(right=3, fill=NAN)
    found = estimate(estimator, wide)
    assert all((x[~wide.mask] == 0).all() for x in found)
    same([x[:, :6] for x in found], estimate(estimator, scored()), lambda x: x)


@ESTIMATORS
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_order_of_the_rows_is_not_seen_by_an_estimator(estimator, seed):  # case B8
    order = torch.randperm(8, generator=torch.Generator().manual_seed(seed))
    same(estimate(estimator, of_rows(scored(), order)), estimate(estimator, scored()), lambda x: x[order])


@ESTIMATORS
def test_the_numbers_of_the_groups_are_names(estimator):  # case B8
    renamed = dataclasses.replace(scored(), groups=7 - 3 * torch.tensor(GROUPS))
    same(estimate(estimator, renamed), estimate(estimator, scored()), lambda x: x)


@GROUPED
def test_what_a_group_has_in_common_is_no_news(estimator):  # case B8
    given = scored()
    last = torch.tensor(LENGTHS)[:, None] - 1 == torch.arange(6)[None, :]
    offset = torch.tensor(GROUPS, dtype=torch.float64)[:, None] * last
    better = dataclasses.replace(given, rewards=given.rewards + offset)
    if getattr(estimator, "scale", None) == "batch":  # the deviation over all groups has changed
        assert torch.equal(estimator(better).advantages.sign(), estimator(given).advantages.sign())
    else:
        same(estimate(estimator, better), estimate(estimator, given), lambda x: x)


@GROUPED
def test_groups_without_a_difference_teach_exactly_nothing(estimator):  # cases B8, B9
    last = torch.tensor(LENGTHS)[:, None] - 1 == torch.arange(6)[None, :]
    rewards = (0.1 * torch.tensor(GROUPS)[:, None] * last).float()  # 0.1 · 9 thrice has a mean that is not 0.1 · 9
    constant = dataclasses.replace(scored(), rewards=rewards)
    singletons = dataclasses.replace(scored(), groups=torch.arange(8))
    for given in (constant, singletons):
        assert (estimator(given).advantages == 0).all()


@ESTIMATORS
def test_responses_of_one_token_and_of_none(estimator):  # case B2
    for lengths in ([1] * 8, [1, 1, 0, 1, 1, 0, 1, 1], [0] * 7 + [1], [0] * 8):
        given = scored(fill=NAN, lengths=lengths)
        for x in estimate(estimator, given):
            assert x.isfinite().all() and (x[~given.mask] == 0).all()


@ESTIMATORS
def test_an_estimator_does_not_write_to_what_it_reads(estimator):
    given = scored()
    copies = _copies(given)
    estimator(given)
    assert all(torch.equal(getattr(given, name), copy) for name, copy in copies.items())


@ESTIMATORS
def test_what_an_estimator_needs_it_asks_for(estimator):
    needs = [("needs_critic", "values"), ("needs_greedy", "greedy"), ("needs_collision", "collision")]
    for flag, name in needs:
        without = dataclasses.replace(scored(), **{name: None})
        if getattr(estimator, flag):
            with pytest.raises(ValueError, match=type(estimator).__name__):
                estimator(without)
        else:
            estimator(without)
