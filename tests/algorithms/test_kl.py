"""The KL penalty: its coefficient over time, and its form as a loss."""

import pytest
import torch

from rlhf.algorithms.kl import KL, Adaptive, Budget, Fixed, Schedule
from rlhf.algorithms.schedules import CosineDecay, LinearDecay


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


def run(live, observed, samples=100):
    """The coefficient before each observation, and after the last."""
    seen = [live.coef]
    for one in observed:
        live.update(one, samples)
        seen.append(live.coef)
    return seen


def test_schedule_follows_its_shape_whatever_is_observed():
    live = Schedule(coef=0.4, shape=LinearDecay(floor=0.5)).build(iterations=4)
    # 0.4 · (1, 0.875, 0.75, 0.625), then the floor for whoever goes on
    assert run(live, [100.0, 0.0, -1.0, 3.0, 3.0]) == pytest.approx([0.4, 0.35, 0.3, 0.25, 0.2, 0.2])
    rising = Schedule(coef=0.4, shape=LinearDecay(warmup=2)).build(iterations=4)
    assert run(rising, [1.0] * 3) == pytest.approx([0.0, 0.2, 0.4, 0.2])
    # ½ (1 + cos(π / 2)) = ½ in the middle
    assert run(Schedule(coef=1.0, shape=CosineDecay()).build(iterations=2), [0.0]) == pytest.approx([1.0, 0.5])


def test_budget_by_hand():
    live = Budget(coef=0.2, budget=8.0, horizon=1000, clip=0.2).build(iterations=4)
    # targets 2, 4, 6, 8. KL 0: −100 %, counts −20 %, · (1 − 0.2 · 0.1) = 0.98; KL 4.4: +10 %, · 1.01;
    # KL 6: exact; KL 16: +100 %, counts +20 %, · 1.02
    expected = [0.2, 0.196, 0.19796, 0.19796, 0.2019192]
    assert run(live, [0.0, 4.4, 6.0, 16.0]) == pytest.approx(expected, abs=1e-9)
    # behind the last iteration the target stays at 8
    assert run(live, [8.0]) == pytest.approx([0.2019192, 0.2019192], abs=1e-9)


def test_budget_allows_early_what_a_fixed_target_allows_at_once():
    budget, fixed = Budget(coef=0.2, budget=8.0), Adaptive(coef=0.2, target=8.0)
    early, later = (controller.build(iterations=4) for controller in (budget, fixed))
    # 4 nats after the first of 4 iterations is twice what is due by then, and half of what is allowed in the end
    assert run(early, [4.0])[1] > 0.2 > run(later, [4.0])[1]


@pytest.mark.parametrize("settings", [Schedule(shape=CosineDecay(warmup=1)), Budget(horizon=500)])
def test_state_in_the_middle_continues_exactly(settings):
    observed = [0.5, 3.0, 9.0, 30.0]
    live = settings.build(iterations=8)
    run(live, observed)
    state = dict(live.state_dict())
    resumed = settings.build(iterations=8)
    resumed.load_state_dict(state)
    assert resumed.coef == live.coef
    later = [8.0, 1.0, 0.0]
    assert run(live, later) == run(resumed, later)
    anew = run(settings.build(iterations=8), later)  # so the state is what makes it go on
    assert anew[1:] != run(resumed, later)[1:]


@pytest.mark.parametrize("make", [
    lambda: Schedule(coef=-0.1), lambda: Budget(budget=0.0), lambda: Budget(horizon=0), lambda: Budget(clip=0.0),
    lambda: Budget(coef=-1.0),
])  # fmt: skip
def test_settings_of_schedule_and_budget_are_checked(make):
    with pytest.raises(ValueError, match=r"(coef|budget|horizon|clip) is .*; must be"):
        make()


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
