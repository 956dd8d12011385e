"""The moving average of the weights."""

import pytest
import torch

from rlhf.algorithms.averaging import EMA


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
