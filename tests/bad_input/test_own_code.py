"""Functions and classes of one's own that are not there, answer nonsense, or raise: told by their own lines."""

import pytest
from yaml_stages import ppo, refused, sft

from rlhf.errors import UserCodeError


@pytest.mark.parametrize("where", ["reward", "evaluation"])
@pytest.mark.parametrize(
    ("reward", "told"),
    [
        ({"class_path": "ArithmeticReward"}, "column: the source rows has no column answer; columns there: response"),
        (
            {"class_path": "FunctionReward", "init_args": {"function": "bad_code.wants_gold"}},
            "function: bad_code.wants_gold needs gold, which is neither in arguments nor a column of the data",
        ),
    ],
)
def test_columns_that_a_reward_needs_are_known_before_a_prompt_is_answered(run, monkeypatch, where, reward, told):
    monkeypatch.setattr("rlhf.loops.online.OnlineTrainer.sample", lambda *_, **__: pytest.fail("sampled"))
    both = {"class_path": "rlhf.models.rewards.Weighted", "init_args": {"models": {"a": reward}, "weights": {"a": 1}}}
    stage = ppo(reward=both) if where == "reward" else ppo(evaluation={"every": 1, "rewards": {"gold": reward}})
    place = "reward: models.a" if where == "reward" else "evaluation.rewards.gold"
    refused(run(stage), 1, f"stage s0: {place}: {told}")


@pytest.mark.parametrize(
    ("function", "parts"),
    [
        (
            "bad_code.nans",
            ["stage s0: function: bad_code.nans answered nan, no finite number, for '", "such as 0"],
        ),
        ("bad_code.one", ["stage s0: function: bad_code.one answered 1 scores for 4 responses"]),
        ("bad_code.nowhere", ["stages.s0.reward: function: bad_code.nowhere cannot be imported"]),
        (
            "bad_code.ROWS",
            ["stages.s0.reward: function: bad_code.ROWS is [", "give something that can be called"],
        ),
    ],
)
def test_reward_functions(run, here, function, parts):
    refused(run(ppo(reward=function)), 2 if parts[0].startswith("stages.") else 1, *parts)
    assert not (here / "runs/toy/s0/model").exists() and not (here / "runs/toy/s0/done.json").exists()


def test_what_a_reward_function_raises_is_told_by_its_own_lines(run, monkeypatch):
    answer = run(ppo(reward="bad_code.raising"))
    told = "stage s0: function: bad_code.raising, given 4 responses, raised KeyError: 'gold'"
    refused(answer, 1, told, "bad_code.py, line", 'in raising: raise KeyError("gold")')
    assert len(answer[1].splitlines()) == 3
    monkeypatch.setenv("RLHF_TRACEBACK", "1")
    with pytest.raises(UserCodeError, match="raising"):
        run(ppo(reward="bad_code.raising"))


def test_a_reward_function_that_asks_the_program_to_end(run, here):
    answer = run(ppo(reward="bad_code.leaving"))
    refused(answer, 1, "stage s0: function: bad_code.leaving, given 4 responses, raised SystemExit: 0 (it asked")
    assert not (here / "runs/toy/s0/done.json").exists()


def test_functions_that_cannot_be_imported_for_what_they_hold(run, here, monkeypatch):
    monkeypatch.syspath_prepend(str(here))
    (here / "torn_rewards.py").write_text("def score(prompts, responses)\n    return 1\n")
    parts = ["stages.s0.reward: function: torn_rewards.score cannot be imported: importing torn_rewards raised Syntax"]
    refused(run(ppo(reward="torn_rewards.score")), 2, *parts, "torn_rewards.py, line 1: def score(prompts, responses)")


@pytest.mark.parametrize(("function", "raised"), [("torn_rows", "KeyError: 'x'"), ("leaving_rows", "SystemExit: 0")])
def test_what_a_source_of_ones_own_raises_names_it_and_the_stage(run, here, function, raised):
    source = {"class_path": "Generator", "init_args": {"function": f"bad_code.{function}"}}
    answer = run(sft(limits={"sources": {"mine": source}}))
    refused(answer, 1, f"stage s0: data.sources.mine: function: bad_code.{function} raised {raised}", "line ")
    assert not (here / "runs/toy/s0").exists()


def test_what_a_class_of_ones_own_raises_is_told_by_its_own_lines(run):
    stage = {**sft(), "class_path": "bad_code.Unfinished"}
    told = "stage s0: code of your own raised NotImplementedError: not yet"
    refused(run(stage), 1, told, 'in loss: raise NotImplementedError("not yet")', "RLHF_TRACEBACK=1 shows")
