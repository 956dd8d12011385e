"""The moving average of the weights."""

import pytest
import torch

from rlhf.algorithms.averaging import EMA, SWA, Polyak


def test_closed_form_after_n_updates():
    weights = [torch.tensor([0.0, 4.0]), torch.tensor([[1.0]])]
    live = EMA(decay=0.9).build(weights)
    target = [torch.tensor([1.0, 2.0]), torch.tensor([[1.0]])]
    for _ in range(5):
        live.update(target)
    # 1 − 0.9⁵ of the way from the start to the target
    torch.testing.assert_close(live.shards[0], torch.tensor([0.40951, 4 - 2 * 0.40951]))
    torch.testing.assert_close(live.shards[1], torch.tensor([[1.0]]))
    assert weights[0].tolist() == [0.0, 4.0]  # the start was copied


def test_warmup_forgets_the_start_sooner():
    settings = EMA(decay=0.5, warmup=True)
    assert [settings.decay_at(n) for n in (0, 1, 8, 9)] == [0.1, pytest.approx(2 / 11), 0.5, 0.5]
    assert EMA(decay=0.5).decay_at(0) == 0.5
    live = settings.build([torch.tensor([0.0])])
    live.update([torch.tensor([1.0])])  # 0.9 of the way
    assert live.shards[0].item() == pytest.approx(0.9)


def test_state_continues_exactly():
    settings = EMA(decay=0.99, warmup=True)
    targets = [[torch.tensor([float(n), -1.0])] for n in range(6)]
    live = settings.build(targets[0])
    for target in targets[:3]:
        live.update(target)
    resumed = settings.build([torch.tensor([7.0, 7.0])])
    resumed.load_state_dict({"updates": 3, "shards": [shard.clone() for shard in live.state_dict()["shards"]]})
    for target in targets[3:]:
        live.update(target)
        resumed.update(target)
    assert torch.equal(live.shards[0], resumed.shards[0])


def test_it_moves_in_fp32_whatever_the_weights():
    live = EMA(decay=0.992).build([torch.ones(1, dtype=torch.bfloat16)])
    live.update([torch.full((1,), 1.125, dtype=torch.bfloat16)])
    assert live.shards[0].dtype == torch.float32
    assert live.shards[0].item() == pytest.approx(1.001, abs=1e-6)  # lost in bf16, whose step is 0.0078


def test_decay_is_checked():
    with pytest.raises(ValueError, match=r"decay is 1\.1"):
        EMA(decay=1.1)


def after(live, weights):
    """The average after each of some steps, whose only weight is given."""
    seen = []
    for weight in weights:
        live.update([torch.tensor([float(weight)])])
        seen.append(live.shards[0].item())
    return seen


def test_swa_by_hand():
    # start 0 counts itself (10): (10 + 4) / 2, (10 + 4 + 1) / 3, (10 + 4 + 1 + 5) / 4
    assert after(SWA().build([torch.tensor([10.0])]), [4, 1, 5]) == [7.0, 5.0, 5.0]
    # steps 2, 4, 6 count: until then the last weights; (7 + 1) / 2 from step 4 on, (7 + 1 + 4) / 3 at step 6
    live = SWA(start=2, every=2).build([torch.tensor([10.0])])
    assert after(live, [3, 7, 100, 1, 100, 4]) == [3.0, 7.0, 7.0, 4.0, 4.0, 4.0]
    # a run that ends before the start has its last weights
    assert after(SWA(start=9).build([torch.tensor([10.0])]), [3, 7]) == [3.0, 7.0]


def test_swa_is_the_mean_of_many():
    weights = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    live = SWA(start=50, every=5).build([weights[0]])
    for row in weights[1:]:
        live.update([row])
    torch.testing.assert_close(live.shards[0], weights[50::5].double().mean(0).float(), atol=1e-6, rtol=0)


def test_polyak_by_hand():
    # 0 → 0.25 · 8 = 2 → 2 + 0.25 · (4 − 2) = 2.5
    assert after(Polyak(tau=0.25).build([torch.tensor([0.0])]), [8, 4]) == [2.0, 2.5]
    # every second step, a hard copy: bit by bit the weights, not nearly so
    live = Polyak(tau=1.0, every=2).build([torch.tensor([1e-3])])
    copied = torch.tensor(0.1).item()
    assert after(live, [8, copied, 9]) == [pytest.approx(1e-3), copied, copied]


def test_polyak_at_every_step_is_an_ema():
    weights = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    polyak, ema = Polyak(tau=0.25).build([weights[0]]), EMA(decay=0.75).build([weights[0]])
    for row in weights[1:]:
        polyak.update([row])
        ema.update([row])
    assert torch.equal(polyak.shards[0], ema.shards[0])


@pytest.mark.parametrize("settings", [SWA(start=2, every=2), SWA(), Polyak(tau=0.3, every=3), EMA(decay=0.9)])
def test_averages_continue_exactly_and_part_by_part(settings):
    weights = torch.randn(12, 6, generator=torch.Generator().manual_seed(1))
    whole = settings.build([weights[0]])
    parts = settings.build([weights[0, :2], weights[0, 2:]])  # the shards of two ranks
    for row in weights[1:5]:
        whole.update([row])
        parts.update([row[:2], row[2:]])
    resumed = settings.build([torch.zeros(6)])
    state = whole.state_dict()
    resumed.load_state_dict({"updates": state["updates"], "shards": [torch.cat(parts.shards)]})
    for row in weights[5:]:
        for live in (whole, resumed):
            live.update([row])
        parts.update([row[:2], row[2:]])
    assert torch.equal(whole.shards[0], resumed.shards[0])
    assert torch.equal(whole.shards[0], torch.cat(parts.shards))


@pytest.mark.parametrize("make", [
    lambda: SWA(start=-1), lambda: SWA(every=0), lambda: Polyak(tau=0.0), lambda: Polyak(tau=1.5),
    lambda: Polyak(every=0),
])  # fmt: skip
def test_settings_of_swa_and_polyak_are_checked(make):
    with pytest.raises(ValueError, match=r"(start|every|tau) is .*; must be"):
        make()
