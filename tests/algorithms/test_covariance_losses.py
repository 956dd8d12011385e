"""Clip-Cov and KL-Cov: which tokens are chosen, and what is done with them."""

import dataclasses

import pytest
import torch
from torch import Tensor

from rlhf.algorithms.covariance_losses import ClipCov, KLCov, token_order
from rlhf.algorithms.policy_losses import Clip
from rlhf.types import Batch, Sequences


def batch(old, advantages, ids=None, mask=None) -> Batch:
    old, advantages = torch.tensor(old), torch.tensor(advantages)
    rows, width = old.shape
    ids = torch.arange(rows * (width + 1)).view(rows, width + 1) if ids is None else ids
    return Batch(
        sequences=Sequences(ids, torch.ones_like(ids, dtype=torch.bool), 1),
        mask=torch.ones_like(old, dtype=torch.bool) if mask is None else mask,
        rollout_logprobs=torch.full_like(old, float("nan")),
        old_logprobs=old,
        ref_logprobs=None,
        advantages=advantages,
        returns=None,
        values=None,
    )


# means −3 and 1: covariances 2, 0, 0 | 0, 4, −6
ROWS = batch([[-1.0, -3.0, -3.0], [-2.0, -4.0, -5.0]], [[2.0, 0.0, 1.0], [1.0, -3.0, 5.0]])
LOGPROBS = ROWS.old_logprobs + torch.tensor([[0.1, 0.0, 0.5], [0.1, -0.1, 0.1]])


def marked(batch: Batch) -> list[list[int]]:
    assert batch.selected is not None
    return batch.selected.int().tolist()


def test_kl_cov_penalises_the_highest_covariances():
    assert marked(KLCov().prepare(ROWS)) == [[0, 0, 0], [0, 1, 0]]  # at least one
    prepared = KLCov(fraction=0.4, coef=2.0).prepare(ROWS)  # ⌊0.4 · 6⌋ = 2
    assert marked(prepared) == [[1, 0, 0], [0, 1, 0]]
    loss = KLCov(fraction=0.4, coef=2.0)(LOGPROBS, prepared)
    # −2 e^0.1 + 2 · 0.1, 0, −e^0.5 (no clip) | −e^0.1, 3 e^−0.1 + 2 · 0.1, −5 e^0.1
    expected = [[-2.010342, 0.0, -1.648721], [-1.105171, 2.914512, -5.525855]]
    torch.testing.assert_close(loss, torch.tensor(expected), atol=1e-5, rtol=0)


def test_clip_cov_leaves_out_some_between_its_bounds():
    everything = ClipCov(fraction=1.0, cov_low=1.0, cov_high=5.0).prepare(ROWS)
    assert marked(everything) == [[1, 0, 0], [0, 1, 0]]
    assert marked(ClipCov(fraction=1.0, cov_low=1.0, cov_high=3.0).prepare(ROWS)) == [[1, 0, 0], [0, 0, 0]]
    loss = ClipCov(fraction=1.0)(LOGPROBS, everything)
    expected = Clip()(LOGPROBS, ROWS)
    expected[0, 0] = expected[1, 1] = 0.0
    assert torch.equal(loss, expected)


def test_the_gradient_of_what_is_left_out_is_cut():
    logprobs = LOGPROBS.clone().requires_grad_()
    loss = ClipCov(fraction=1.0)
    loss(logprobs, loss.prepare(ROWS)).sum().backward()
    assert logprobs.grad is not None
    # token 2 of row 1 has no advantage, token 3 is clipped
    assert (logprobs.grad == 0).int().tolist() == [[1, 1, 1], [0, 1, 0]]


def large(seed: int = 0) -> Batch:
    g = torch.Generator().manual_seed(seed)
    old, advantages = torch.randn(2, 20, 50, generator=g)
    ids = torch.randint(0, 1000, (20, 51), generator=g)
    return batch(old.tolist(), advantages.tolist(), ids)


def chosen(loss: ClipCov, given: Batch) -> Tensor:
    selected = loss.prepare(given).selected
    assert selected is not None
    return selected


def test_the_draw_depends_on_the_seed_and_on_the_texts():
    loss = ClipCov(fraction=0.02, cov_low=0.1, cov_high=9.0)
    first = chosen(loss, large())
    assert first.sum() == 20 and torch.equal(chosen(loss, large()), first)
    assert not torch.equal(chosen(dataclasses.replace(loss, seed=1), large()), first)
    others = large()
    others = dataclasses.replace(others, sequences=dataclasses.replace(others.sequences, ids=others.sequences.ids + 1))
    assert not torch.equal(chosen(loss, others), first)


def test_the_draw_is_blind_to_the_last_digits():
    """Another engine's log-probabilities differ in them, and must not make another run of it."""
    loss, rows = ClipCov(fraction=0.02, cov_low=0.1, cov_high=9.0), large()
    near = dataclasses.replace(rows, old_logprobs=rows.old_logprobs * (1 + 3e-7))
    assert torch.equal(chosen(loss, near), chosen(loss, rows))


def test_the_draw_is_even():
    counts = torch.zeros(20, 50)
    for seed in range(200):
        loss = ClipCov(fraction=0.1, cov_low=-99.0, cov_high=99.0, seed=seed)
        counts += chosen(loss, large())
    # 100 of 1000 tokens in each of 200 draws: 20 times each, ± 4.24
    assert counts.mean() == 20 and 3.9 < counts.std() < 4.6


def test_the_order_is_that_of_the_rows_content():
    ids = torch.tensor([[0, 5, 6, 7], [0, 5, 6, 8], [4, 5, 6, 7]])
    real = torch.tensor([[False, True, True, True]] * 2 + [[True] * 4])
    plain = token_order(Sequences(ids[:1, 1:], real[:1, 1:], 1), seed=3)
    found = token_order(Sequences(ids, real, 2), seed=3)
    assert found.shape == (3, 2) and torch.equal(found[:1], plain)  # the pad on the left is not seen
    assert found.unique().numel() == 6


@pytest.mark.parametrize("loss", [ClipCov(), KLCov()])
def test_unprepared_batches_are_refused(loss):
    with pytest.raises(ValueError, match=f"{type(loss).__name__} chooses .* call its prepare first"):
        loss(LOGPROBS, ROWS)


@pytest.mark.parametrize(
    ("loss", "settings", "text"),
    [
        (ClipCov, {"fraction": 0.0}, r"fraction is 0\.0"),
        (ClipCov, {"cov_low": 5.0}, r"cov_low is 5\.0; must be below cov_high"),
        (ClipCov, {"low": 1.0}, r"low is 1\.0"),
        (KLCov, {"fraction": 1.1}, r"fraction is 1\.1"),
        (KLCov, {"coef": -1.0}, r"coef is -1\.0"),
    ],
)
def test_settings_are_checked(loss, settings, text):
    with pytest.raises(ValueError, match=text):
        loss(**settings)
