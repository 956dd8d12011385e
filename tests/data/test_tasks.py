"""Small tasks whose right answers are known, and their rewards."""

from dataclasses import make_dataclass, replace
from typing import Any, cast

import pytest

from rlhf.config import load
from rlhf.data.dataset import Data
from rlhf.data.tasks import (
    Arithmetic,
    IncreasingNumbers,
    ReverseText,
    increasing_share,
    reversed_exactly,
    reversed_share,
)
from rlhf.interfaces import RewardModel, Source
from rlhf.models.rewards import ArithmeticReward, ExactMatchReward, FunctionReward
from rlhf.testing.samples import rollout, tokenizer

TASKS = [ReverseText(), IncreasingNumbers(), Arithmetic(operators=("+", "-", "*"), terms=3, digits=3)]
REWARDS: dict[str, RewardModel] = {
    "ReverseText": FunctionReward(function="rlhf.data.tasks.reversed_share"),
    "IncreasingNumbers": FunctionReward(function="rlhf.data.tasks.increasing_share"),
    "Arithmetic": ArithmeticReward(),
}


def test_reversed_share_by_hand():
    # right; two of three letters; one letter behind the answer costs 1/4; the first is wrong; nothing; both right and
    # wrong letters behind; white space around it is nothing
    responses = ["cba", "cbx", "cbaa", "xba", "", "cb", " cba\n"]
    expected = [1.0, 2 / 3, 3 / 4, 0.0, 0.0, 2 / 3, 1.0]
    assert reversed_share([""] * 7, responses, ["cba"] * 7) == pytest.approx(expected)
    assert reversed_exactly([""] * 7, responses, ["cba"] * 7) == [1, 0, 0, 0, 0, 0, 1]


def test_increasing_share_by_hand():
    # 1<3, 3>2, 2<5: 2 of 3; equal neighbours do not increase; one number makes no pair; words are passed over
    responses = ["1 3 2 5", "4 4", "7", "", "from 3 to 12!", "-5 -3"]
    assert increasing_share([""] * 6, responses) == pytest.approx([2 / 3, 0, 0, 0, 1, 1])
    # behind a 2: 2>1, 1<3, 3>2, 2<5 are 2 of 4; 2<4, 4=4 1 of 2; 2<7 1 of 1
    assert increasing_share([""] * 3, responses[:3], start=[2, 2, 2]) == pytest.approx([2 / 4, 1 / 2, 1])
    # of five numbers that are asked for (four pairs, with the start five) what is missing does not increase
    assert increasing_share([""] * 3, responses[:3], numbers=[5, 5, 5]) == pytest.approx([2 / 4, 0, 0])
    assert increasing_share([""] * 3, responses[:3], [2, 2, 2], [5, 5, 5]) == pytest.approx([2 / 5, 1 / 5, 1 / 5])
    # more numbers than asked for: all pairs count
    assert increasing_share([""], ["1 2 3 1"], numbers=[2]) == pytest.approx([2 / 3])


def test_numbers_of_any_length_are_read():
    assert increasing_share([""], ["1" * 5000 + " " + "2" * 6000]) == [0.0]
    assert increasing_share([""], ["3 " + "1" * 5000]) == [1.0]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: type(task).__name__)
def test_demonstrations_are_right_and_mistakes_wrong(task):
    rows = task.load().to_list()
    assert len(rows) == 1000 and len({row["prompt"] for row in rows}) > 300
    assert rows == replace(task).load().to_list() != replace(task, seed=1).load().to_list()
    half = replace(task, mistakes=0.5).load().to_list()
    assert scored(task, rows) == [1.0] * len(rows)
    wrong = sum(score < 1 for score in scored(task, half))
    assert 420 < wrong < 560  # a few of the shuffled ones are right by chance
    assert [set(row) for row in half] == [set(row) for row in rows]


def scored(task: Source, rows: list[dict[str, Any]]) -> list[float]:
    columns = {name: [row[name] for row in rows] for name in rows[0] if name not in ("prompt", "response")}
    found = rollout([row["response"] for row in rows], columns=columns)
    return REWARDS[type(task).__name__].build(cast(Any, None), tokenizer())(found).total.tolist()


def test_rows_by_hand():
    row = next(iter(ReverseText(letters="ab", length=3, rows=1).load()))
    assert row["prompt"][:-1] == row["answer"][::-1] == row["response"][::-1] and row["prompt"].endswith("=")
    lengths = {len(row["answer"]) for row in ReverseText(length=4, shortest=2, rows=200).load()}
    assert lengths == {2, 3, 4}
    for row in IncreasingNumbers(numbers=4, fewest=2, largest=20, rows=200).load():
        numbers = [int(text) for text in row["response"].split()]
        assert row["prompt"] == f"{len(numbers)} from {row['start']}:" and row["numbers"] == len(numbers)
        assert row["start"] < numbers[0] and numbers == sorted(set(numbers)) and numbers[-1] <= 20
    operators = set()
    for row in Arithmetic(digits=2, operators=("+", "-", "*"), terms=4, rows=200).load():
        assert eval(row["prompt"].rstrip("=")) == int(row["answer"])  # our own text, not a model's
        operators |= set(row["prompt"]) & set("+-*")
    assert operators == set("+-*")


@pytest.mark.parametrize("task", TASKS, ids=lambda task: type(task).__name__)
def test_training_and_held_out_prompts_are_disjoint(task):
    data = Data(sources={"task": task}, split=[2, 4, 4], eval_fraction=0.2)
    sft = data.prepare(tokenizer(), form="demonstration", phase="sft")
    ppo = data.prepare(tokenizer(), form="prompt", phase="ppo")
    parts = [{tuple(e.prompt_ids) for e in part} for part in (sft.train, sft.heldout)]
    parts += [{tuple(e.prompt_ids) for e in part} for part in (ppo.train, ppo.heldout)]
    assert all(parts) and all(not one & other for at, one in enumerate(parts) for other in parts[:at])
    assert sum(map(len, (sft.train, sft.heldout, ppo.train, ppo.heldout))) < 1000  # the rest is for reward modelling


def test_settings_are_read_from_yaml(tmp_path):
    holder = make_dataclass("Holder", [("source", Source)], frozen=True, kw_only=True)
    file = tmp_path / "a.yaml"
    file.write_text("source: {class_path: Arithmetic, init_args: {digits: 1, operators: ['+', '*'], terms: 3}}")
    assert load([file], root=holder).source == Arithmetic(digits=1, operators=("+", "*"), terms=3)
    file.write_text("source: {class_path: Arithmetic, init_args: {operators: ['/']}}")
    with pytest.raises(ValueError, match="operators"):
        load([file], root=holder)


def test_exact_match_serves_reversed_text_too():
    found = rollout(["cba", "CBA", "cb"], columns={"answer": ["cba"] * 3})
    assert ExactMatchReward().build(cast(Any, None), tokenizer())(found).total.tolist() == [1, 1, 0]


@pytest.mark.parametrize(("make", "message"), [
    (lambda: ReverseText(rows=0), "rows is 0"),
    (lambda: ReverseText(mistakes=1.5), "mistakes is 1.5"),
    (lambda: ReverseText(length=3, shortest=4), "shortest is 4; must be at least 1 and at most 3"),
    (lambda: ReverseText(letters="a="), "letters is 'a='"),
    (lambda: IncreasingNumbers(numbers=0), "numbers is 0"),
    (lambda: IncreasingNumbers(numbers=5, largest=9), "largest is 9; must be at least 10, twice numbers"),
    (lambda: Arithmetic(digits=0), "digits is 0"),
    (lambda: Arithmetic(terms=1), "terms is 1"),
    (lambda: Arithmetic(operators=()), "operators: none"),
])  # fmt: skip
def test_settings_are_checked(make, message):
    with pytest.raises(ValueError, match=message):
        make()
