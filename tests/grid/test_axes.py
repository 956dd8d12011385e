"""Choices by name: how they are spelt, meant in YAML, and refused."""

import pytest

from rlhf.grid.axes import Axis, check_axes, holds, named, read_axes, spelt, wanted
from rlhf.grid.settings import Grid

ON_OFF = Axis("clip", {"on": {"a": 1}, "off": {}})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.05, "0.05"),
        (1e-5, "1e-5"),
        (1.5e20, "1.5e20"),
        (2, "2"),
        (True, "true"),
        (None, "null"),
        ("GAE", "GAE"),
        ([1], None),
        ({}, None),
    ],
)
def test_a_value_is_spelt_as_in_yaml(value, text):
    assert spelt(value) == text


def test_an_axis_called_by_a_path_lists_or_names_its_values():
    problems = []
    axes = read_axes({"s.lr": [0.1, None], "s.adv": {"gae": "GAE", "rloo": {"class_path": "RLOO"}}}, problems)
    assert problems == []
    assert axes[0].choices == {"0.1": {"s.lr": 0.1}, "null": {"s.lr": None}}
    assert axes[1].choices == {"gae": {"s.adv": "GAE"}, "rloo": {"s.adv": {"class_path": "RLOO"}}}
    assert axes[0].first == "0.1"


def test_what_yaml_takes_for_a_truth_value_is_the_choice_of_that_name():
    assert named(ON_OFF, True) == "on" and named(ON_OFF, False) == "off"
    assert named(Axis("a", {"no": {}, "true": {}}), False) == "no" and named(Axis("a", {"true": {}}), True) == "true"
    assert named(Axis("a", {"1e-5": {}, "3": {}}), 1e-5) == "1e-5" and named(Axis("a", {"3": {}}), 3) == "3"
    assert named(Axis("a", {"True": {}, "False": {}}), False) == "False"  # true: and false: as keys
    assert named(ON_OFF, "maybe") is None and named(ON_OFF, [1]) is None
    assert wanted(ON_OFF, [False, "on"]) == ["off", "on"]


def test_a_condition_holds_where_every_axis_it_names_has_one_of_its_choices():
    axes = {"clip": ON_OFF, "b": Axis("b", {"1": {}, "2": {}, "3": {}})}
    assert holds({"clip": True, "b": [1, 2]}, {"clip": "on", "b": "2"}, axes)
    assert not holds({"clip": True, "b": [1, 2]}, {"clip": "on", "b": "3"}, axes)
    assert not holds({"clip": True}, {"b": "1"}, axes)  # an axis that sets nothing here has no choice


def problems(**settings):
    axes = {"clip": {"on": {"stages.x.a": 1}, "off": {}}, "size": {"small": {}, "large": {}, "huge": {}}}
    return check_axes(Grid(**{"name": "g", "base": "b.yaml", "axes": axes, **settings}))


def test_what_is_right_has_no_problem():
    assert problems() == []
    assert problems(only_if={"clip": {"size": ["small", "large"]}}, exclude=[{"clip": False, "size": "huge"}]) == []
    assert problems(variants={"long": {"stages.x.a": 2}}, baseline="long") == []


@pytest.mark.parametrize(
    ("settings", "texts"),
    [
        ({"axes": {"a": {}}}, ["axes.a: has no choices; give two or more, or leave the axis out"]),
        ({"axes": {"a": {"x": 3}}}, ["axes.a.x: is 3; a choice is the settings that it sets, such as"]),
        ({"axes": {"a": [1]}}, ["axes.a: is a list, so its name must be the path of the setting whose values"]),
        ({"axes": {"s.a": [1, 1, [2]]}}, ["axes.s.a: 1 is given twice", "axes.s.a: [2] has no short name"]),
        (
            {"only_if": {"clp": {"size": "smal"}}},
            [
                "only_if.clp: no axis is called 'clp'. Did you mean clip? Axes: clip, size",
                "only_if.clp.size: size has no choice 'smal'. Did you mean small? Choices: small, large, huge",
            ],
        ),
        ({"only_if": {"clip": {"clip": True}}}, ["only_if.clip: depends on itself; name other axes"]),
        (
            {"only_if": {"clip": {"size": "small"}, "size": {"clip": True}}},
            ["only_if: clip → size → clip: each depends on the next; let one of them stand free"],
        ),
        ({"only_if": {"clip": {}}}, ["only_if.clip: is empty; give a choice for each of some axes"]),
        ({"exclude": [{"clip": []}]}, ["exclude.0.clip: is []; give one of on, off"]),
        ({"exclude": [{"clip": "maybe"}]}, ["exclude.0.clip: clip has no choice 'maybe'. Choices: on, off"]),
        ({"baseline": {"clip": [True]}}, ["baseline.clip: is [True]; give one of on, off"]),
        ({"baseline": "long"}, ["baseline: no variant is called 'long'. Give the name of one, or a choice"]),
        ({"variants": {"long": {}}}, ["variants.long: sets nothing, and would be the baseline again; leave it out"]),
        ({"zip": [["clip"]]}, ["zip.0: is ['clip']; a group has at least two axes, or is left out"]),
        (
            {"zip": [["clip", "size"]]},
            ["zip.0: clip has 2, size has 3; axes that move together need as many choices as each other"],
        ),
        ({"axes": {"e": {"": {"stages.x.a": 7}, "b": {}}}}, ["axes.e: a choice has no name; name it"]),
        ({"axes": {"": {"a": {}, "b": {}}}}, ["axes: one has no name; name it"]),
        (
            {"zip": [["clip", "sze"], ["clip", "size"]]},
            ["zip.0: no axis is called 'sze'. Did you mean size?", "zip.1: clip has 2", "zip: 'clip' is named twice"],
        ),
    ],
)
def test_what_is_wrong_is_told_with_place_value_and_remedy(settings, texts):
    found = problems(**settings)
    assert len(found) == len(texts)
    for problem, text in zip(found, texts, strict=True):
        assert problem.startswith(text)
