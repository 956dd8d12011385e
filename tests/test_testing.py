"""The contract tests for authors of components: ours pass them, and what breaks a contract is caught and told."""

import faulty
import pytest

import rlhf
from rlhf import (
    GAE,
    Budget,
    Chat,
    CosineDecay,
    Curriculum,
    Ensemble,
    Files,
    FunctionReward,
    Generator,
    Hub,
    LengthPenalty,
    Lesson,
    Linear,
    MessageTrees,
    OverlongPenalty,
    Plain,
    RatedTexts,
    ReasoningGym,
    ReasoningGymReward,
    RegexReward,
    RemoteReward,
    RoundRobin,
    ScalarReward,
    Schedule,
    StepFunctionReward,
    StepScalarReward,
    Temperature,
    World,
    interfaces,
)
from rlhf.errors import UserError
from rlhf.registry import REGISTRIES, import_path, load_components
from rlhf.testing import BrokenContract, check_component
from rlhf.testing.kinds import CHECKS

load_components()

NUMBERS = RegexReward(pattern="[0-9]")
COMBINED = {"numbers": NUMBERS, "length": FunctionReward(function="faulty.lengths")}
SETTINGS = {
    Curriculum: {"lessons": [Lesson(weights={"a": 1.0}, until=0.5), Lesson(weights={"a": 1.0, "b": 1.0})]},
    Ensemble: {"models": COMBINED},
    FunctionReward: {"function": "faulty.lengths"},
    Generator: {"function": "faulty.rows"},
    LengthPenalty: {"target": 3, "per_token": 0.5},
    OverlongPenalty: {"max_tokens": 6, "buffer": 4},
    RegexReward: {"pattern": "[0-9]"},
    StepFunctionReward: {"function": "faulty.step_lengths"},
    Temperature: {"temperature": 2.0},
    World: {"form": "comparisons", "rows": 50},
    rlhf.data.Weighted: {"weights": {"a": 1.0, "b": 2.0}},
    rlhf.models.Weighted: {"models": COMBINED, "weights": {"numbers": 1.0, "length": 0.5}},
}
"""Of those that cannot be made without."""
LEFT_OUT = {
    Files: "reads a file: see test_sources",
    Hub: "reads from the network: see test_sources",
    MessageTrees: "reads from another source: see test_trees",
    RatedTexts: "reads a file: see test_rated",
    ReasoningGym: "needs a package that the tests do without: see test_reasoning",
    ReasoningGymReward: "the same",
    RemoteReward: "asks a server: see test_remote",
    ScalarReward: "runs a trained model: see test_scalar",
    StepScalarReward: "the same: see test_process",
}
OURS = {
    cls
    for registry in REGISTRIES.values()
    if registry.base in CHECKS
    for cls in registry
    if cls.__module__.startswith("rlhf.")
}
"""The components of the kinds that have contracts of their own."""


@pytest.mark.parametrize("cls", sorted(OURS - set(LEFT_OUT), key=import_path), ids=import_path)
def test_our_components_keep_their_contracts(cls):
    check_component(cls, **SETTINGS.get(cls, {}))


def test_nothing_has_settings_or_is_left_out_that_is_not_there():
    assert {*LEFT_OUT, *SETTINGS} <= OURS and len(OURS) > 40


def test_other_settings_are_checked_too():
    check_component(GAE, gamma=0.9, lam=0.5, whiten=False)
    check_component(Plain, prompt_format="Q: {prompt}\nA:", response_format=" {response}.", targets="last")
    check_component(Chat, system="Be brief.", targets="last")
    check_component(RoundRobin, stop="all")
    check_component(Linear, init="zero", bias=False)
    check_component(Schedule, coef=0.3, shape=CosineDecay(warmup=2, floor=0.1))
    check_component(Budget, budget=1e-3, horizon=100)


@pytest.mark.parametrize(("cls", "message"), faulty.CAUGHT, ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_contract_is_told_with_its_numbers(cls, message):
    with pytest.raises(BrokenContract, match=f"(?s)^{cls.__name__}: {message}"):
        check_component(cls)


def test_every_kind_with_a_contract_has_a_faulty_component():
    assert {base for base in CHECKS if any(issubclass(cls, base) for cls, _ in faulty.CAUGHT)} == set(CHECKS)


def test_a_good_component_of_ones_own_passes():
    check_component(faulty._Good, limit=2.5)


def test_what_is_no_component_is_refused():
    with pytest.raises(UserError, match="dict is no component"):
        check_component(dict)
    with pytest.raises(BrokenContract, match="it is abstract: define __call__"):
        check_component(interfaces.PolicyLoss)


def test_settings_that_are_refused_stay_refused():
    with pytest.raises(UserError, match="lam is 2"):
        check_component(GAE, lam=2.0)


def test_an_object_is_no_class():
    with pytest.raises(UserError, match="give the class, and its settings by name"):
        check_component(GAE())  # pyright: ignore[reportArgumentType]
