"""The KL penalty: its coefficient over time, and its form as a loss."""

import pytest
import torch

from rlhf.algorithms.kl import KL, Adaptive, Fixed


def test_adaptive_coefficient_and_its_state():  # case F3
    settings = Adaptive(coef=0.2, target=6.0, horizon=10_000, clip=0.2)
    live = settings.build(iterations=1)
    live.update(12, 256)  # 0.2 · (1 + 0.2 · 256 / 10 000)
    assert live.coef == pytest.approx(0.201024, abs=1e-6)
    live.update(12, 256)
    assert live.coef == pytest.approx(0.202053, abs=1e-6)
    resumed = settings.build(iterations=1)
    resumed.load_state_dict(live.state_dict())
    for controller in (live, resumed):
        controller.update(3, 256)
        assert controller.coef == pytest.approx(0.201019, abs=1e-6)


def test_fixed_coefficient_stays():
    live = Fixed(coef=0.3).build(iterations=1)
    live.update(100, 1000)
    assert live.coef == 0.3
    other = Fixed(coef=0.1).build(iterations=1)
    other.load_state_dict(live.state_dict())
    assert other.coef == 0.3


def test_adaptive_settings_are_checked():
    with pytest.raises(ValueError, match="target is 0"):
        Adaptive(target=0)


def test_k1_is_no_loss():  # case B6
    with pytest.raises(ValueError, match=r"k1.*expectation zero; set estimator k2"):
        KL(estimator="k1", where="loss")
    assert KL(estimator="k1").where == "reward"


MASK = torch.tensor([[True, True, False]])
LOGPROBS = torch.tensor([[-1.0, -2.0, 9.0]])
OLD = torch.tensor([[-1.5, -2.0, float("nan")]])
REF = torch.tensor([[-1.2, -2.5, 3.0]])


def test_penalty_by_hand():
    # log-ratios to the reference 0.2 and 0.5; k2 = ½ x², times the importance ratio e^0.5 and 1
    k2 = KL(estimator="k2", where="loss").estimated(LOGPROBS, OLD, REF, MASK)
    torch.testing.assert_close(k2, torch.tensor([[0.02 * 1.6487213, 0.125, 0.0]]))
    # k3 = e^−x − 1 + x, without a ratio
    k3 = KL(estimator="k3", where="loss").estimated(LOGPROBS, OLD, REF, MASK)
    torch.testing.assert_close(k3, torch.tensor([[0.0187308, 0.1065307, 0.0]]))


def test_the_ratio_has_no_gradient_and_masked_slots_none():
    logprobs = LOGPROBS.clone().requires_grad_()
    KL(estimator="k2", where="loss").estimated(logprobs, OLD, REF, MASK).sum().backward()
    # d/dx of ½ (x − ref)² is x − ref, times the constant ratio
    torch.testing.assert_close(logprobs.grad, torch.tensor([[0.2 * 1.6487213, 0.5, 0.0]]))


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_the_loss_pulls_towards_the_reference(estimator):  # case B6: the sign
    logits = torch.tensor([1.0, 0.0, -1.0], requires_grad=True)
    reference = torch.tensor([0.0, 0.5, 0.0]).log_softmax(-1)

    def divergence():
        logp = logits.detach().log_softmax(-1)
        return float((logp.exp() * (logp - reference)).sum())

    before = divergence()
    logp = logits.log_softmax(-1)[None]
    mask = torch.ones(1, 3, dtype=torch.bool)
    terms = KL(estimator=estimator, where="loss").estimated(logp, logp.detach(), reference[None], mask)
    (terms * logp.detach().exp()).sum().backward()  # all actions, by their probability
    with torch.no_grad():
        logits -= 0.1 * logits.grad
    assert divergence() < before
