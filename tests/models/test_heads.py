import pytest
import torch

from rlhf.models.heads import MLP, Linear


def test_linear_is_a_weighted_sum():
    head = Linear().build(2)
    head.load_state_dict({"layers.0.weight": torch.tensor([[2.0, -1.0]]), "layers.0.bias": torch.tensor([0.5])})
    # 2·1 − 3 + 0.5 = −0.5;  2·0 − 4 + 0.5 = −3.5
    assert head(torch.tensor([[[1.0, 3.0], [0.0, 4.0]]])).tolist() == [[-0.5, -3.5]]


def test_mlp_applies_its_activation_between_layers_only():
    head = MLP(hidden=1, activation="relu").build(1)
    weights = {"layers.0.weight": [[1.0]], "layers.0.bias": [0.0], "layers.1.weight": [[-2.0]], "layers.1.bias": [1.0]}
    head.load_state_dict({name: torch.tensor(value) for name, value in weights.items()})
    # relu(−3) = 0 -> 1;  relu(2) = 2 -> −2·2 + 1 = −3
    assert head(torch.tensor([[-3.0], [2.0]])).tolist() == [1.0, -3.0]


@pytest.mark.parametrize(("head", "shapes"), [
    (MLP(), [(8, 8), (1, 8)]), (MLP(hidden=3, layers=2), [(3, 8), (3, 3), (1, 3)]), (Linear(bias=False), [(1, 8)]),
])  # fmt: skip
def test_layer_shapes(head, shapes):
    assert [tuple(p.shape) for p in head.build(8).parameters() if p.ndim == 2] == shapes


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "tanh"])
def test_every_activation_runs(activation):
    assert MLP(activation=activation).build(4)(torch.ones(2, 4)).shape == (2,)


def test_initial_weights_have_the_stated_deviation():  # case D5
    torch.manual_seed(0)
    weight = Linear().build(4095).layers[0].weight  # 1 / √4096 = 0.015625
    assert weight.std().item() == pytest.approx(0.015625, rel=0.05)
    assert Linear(init_std=0.3).build(4095).layers[0].weight.std().item() == pytest.approx(0.3, rel=0.05)
    assert MLP(hidden=63).build(1023).layers[0].weight.std().item() == pytest.approx(1 / 32, rel=0.05)


def test_zero_init_answers_zero_and_can_learn():
    head = Linear(init="zero").build(4)
    value = head(torch.ones(3, 4))
    assert value.tolist() == [0.0, 0.0, 0.0]
    value.sum().backward()
    assert head.layers[0].weight.grad.tolist() == [[3.0] * 4]


def test_bf16_hidden_states_give_fp32_scores_that_bf16_would_tie():  # case D6
    head = Linear(bias=False).build(2)
    head.load_state_dict({"layers.0.weight": torch.tensor([[10.0, 1.0]])})
    hidden = torch.tensor([[1.0, 0.03125], [1.0, 0.0078125]], dtype=torch.bfloat16)
    # 10.03125 and 10.0078125 exactly; in bf16, whose steps are 1/16 there, both are 10.0
    for autocast in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            scores = head(hidden)
        assert scores.dtype == torch.float32
        assert scores.tolist() == [10.03125, 10.0078125]
    assert head.bfloat16()(hidden).tolist() == [10.03125, 10.0078125]  # weights in bf16, multiplied in fp32
    assert torch.tensor([10.03125, 10.0078125], dtype=torch.bfloat16).tolist() == [10.0, 10.0]


@pytest.mark.parametrize(("make", "message"), [
    (lambda: Linear(init_std=0.0), "init_std: 0.0 is not positive"), (lambda: MLP(hidden=0), "hidden: 0"),
    (lambda: Linear(init_std=1.0, init="zero"), "no effect"), (lambda: MLP(layers=0), "layers: 0"),
])  # fmt: skip
def test_impossible_settings_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
