"""The source and the reward over the package reasoning-gym; most of it needs the package."""

import json
import sys

import pytest

from rlhf.data.reasoning import ReasoningGym
from rlhf.errors import UserError
from rlhf.models.rewards import ReasoningGymReward


@pytest.mark.parametrize("use", [
    lambda: ReasoningGym(task="chain_sum").load(), lambda: ReasoningGym(task="chain_sum").check_inputs(),
    lambda: ReasoningGymReward().check_inputs(),
])  # fmt: skip
def test_without_the_package_there_is_a_hint(monkeypatch, use):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(UserError, match=r"reasoning-gym is not installed .*; pip install 'rlhf\[reasoning-gym\]'"):
        use()


def test_the_size_is_checked():
    with pytest.raises(ValueError, match="size is 0"):
        ReasoningGym(task="chain_sum", size=0)


@pytest.fixture
def package():
    return pytest.importorskip("reasoning_gym")


def test_rows_are_the_tasks_own(package):
    source = ReasoningGym(task="chain_sum", size=5, seed=3, config={"max_terms": 3})
    rows = source.load().to_list()
    made = package.create_dataset("chain_sum", size=5, seed=3, max_terms=3)
    assert [row["prompt"] for row in rows] == [made[n]["question"] for n in range(5)]
    assert [row["response"] for row in rows] == [row["answer"] for row in rows] == [made[n]["answer"] for n in range(5)]
    place = {"task": "chain_sum", "config": {"max_terms": 3}, "size": 5, "seed": 3, "index": 4}
    assert json.loads(rows[4]["entry"]) == place
    assert rows != ReasoningGym(task="chain_sum", size=5, seed=4, config={"max_terms": 3}).load().to_list()
    assert source.fingerprint().startswith(repr(source)) and source.remark() == ""


@pytest.mark.parametrize(("settings", "message"), [
    ({"task": "chain_summ"}, "task: reasoning-gym has no chain_summ; did you mean chain_sum"),
    ({"task": "chain_sum", "config": {"min_terms": -1}}, r"config: chain_sum refuses \{'min_terms': -1\} \(min_terms"),
    ({"task": "chain_sum", "config": {"termss": 1}}, r"config: chain_sum refuses .* unexpected keyword argument"),
])  # fmt: skip
def test_what_the_package_refuses_is_told_before_anything_runs(package, settings, message):
    with pytest.raises(UserError, match=message):
        ReasoningGym(**settings).check_inputs()


def test_both_keep_their_contracts(package):
    from rlhf.testing import check_component

    check_component(ReasoningGym, task="chain_sum", size=20)
