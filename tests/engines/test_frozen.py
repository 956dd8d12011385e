"""Frozen weights: kept once where asked for, recognised by their content, left out of a checkpoint."""

import pytest
import torch
from torch import nn

from rlhf.engines.frozen import digests, fingerprint, kept_once, load_trained_state, share, trained_state
from rlhf.errors import UserError


class Model(nn.Module):
    """A frozen layer, two norms that are equal at their start, a trained layer, a buffer."""

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layer = nn.Linear(3, 4, dtype=dtype).requires_grad_(False)
        self.norms = nn.ModuleList([nn.LayerNorm(4) for _ in range(2)]).requires_grad_(False)
        self.trained = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(()))


def pointers(model: nn.Module) -> dict[str, int]:
    return {name: parameter.data_ptr() for name, parameter in model.named_parameters()}


def taken(*models: nn.Module) -> list[dict[str, int]]:
    for model in models:
        share(model, digests(model))
    return [pointers(model) for model in models]


def test_equal_weights_of_several_models_are_kept_once():
    models = Model(), Model(), Model(seed=1), Model(dtype=torch.bfloat16)
    before = [{name: tensor.clone() for name, tensor in model.state_dict().items()} for model in models]
    with kept_once():
        first, same, other, half = taken(*models)
    assert {name for name in first if first[name] == same[name]} == set(digests(models[0]))
    norms = {name for name in first if name.startswith("norms")}
    assert {name for name in first if first[name] == other[name]} == norms  # equal in any model at its start
    assert len({first[name] for name in norms}) == 4  # but apart within one, as savers expect of untied weights
    assert first["layer.weight"] != half["layer.weight"]
    for model, state in zip(models, before, strict=True):
        assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    outside, again = taken(Model(), Model())
    assert not set(outside.values()) & (set(again.values()) | set(first.values()))


def test_a_fingerprint_is_that_of_the_frozen_content():
    def found(model):
        return fingerprint(digests(model))

    model = Model()
    assert found(model) == found(Model()) and len({found(model), found(Model(seed=1))}) == 2
    assert found(Model(dtype=torch.bfloat16)) != found(model)
    with torch.no_grad():
        model.trained.weight.add_(1)
        assert found(model) == found(Model())
        model.layer.bias[0] += 1e-7
    assert found(model) != found(Model())
    assert found(Model().requires_grad_(True)) == fingerprint({})


def test_a_state_holds_what_is_trained_and_buffers():
    model, again = Model(), Model()
    with torch.no_grad():
        model.trained.weight.add_(1)
        model.mean.fill_(3)
    state = trained_state(model)
    assert set(state) == {"trained.weight", "trained.bias", "mean"}
    load_trained_state(again, state)
    assert torch.equal(again.trained.weight, model.trained.weight) and again.mean == 3
    with pytest.raises(UserError, match=r"checkpoint: trained\.bias \(1 such weights\) is trained here or there only"):
        load_trained_state(again, {name: tensor for name, tensor in state.items() if name != "trained.bias"})
    with pytest.raises(UserError, match="checkpoint: more"):
        load_trained_state(again, {**state, "more": torch.zeros(1)})


def test_both_names_of_a_tied_trained_weight_are_kept_and_of_a_frozen_one_neither():
    model = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False)})
    model["b"].weight = model["a"].weight
    assert set(trained_state(model)) == {"a.weight", "b.weight"}
    assert trained_state(model.requires_grad_(False)) == {}
