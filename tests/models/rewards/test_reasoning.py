"""The judges of reasoning-gym as a reward; needs the package."""

import json
from typing import Any, cast

import pytest
from tiny_models import ForwardEngine, rollout

from rlhf.data.reasoning import ReasoningGym
from rlhf.errors import UserError
from rlhf.models.rewards import ReasoningGymReward

ENTRY = json.dumps({"task": "chain_sum", "config": {}, "size": 2, "seed": 0, "index": 0})


def scores(reward: ReasoningGymReward, texts: list[str], entries: list[str]):
    return reward.build(ForwardEngine(), cast(Any, None))(rollout(texts, columns={reward.column: entries}))


@pytest.fixture
def package():
    return pytest.importorskip("reasoning_gym")


def test_answers_are_judged_by_the_task_they_come_from(package):
    sums = ReasoningGym(task="chain_sum", size=3, seed=1).load().to_list()
    words = ReasoningGym(task="letter_counting", size=3, seed=1).load().to_list()
    rows = [sums[1], words[2], sums[2], sums[0]]
    texts = [f" {rows[0]['answer']}\n", rows[1]["answer"], "no number", ""]
    found = scores(ReasoningGymReward(), texts, [row["entry"] for row in rows])
    assert found.total.tolist() == [1.0, 1.0, 0.0, 0.0]
    assert found.parts["unjudged"].tolist() == [0.0] * 4


def test_the_answer_can_be_taken_out_of_the_response(package):
    row = ReasoningGym(task="chain_sum", size=1, seed=1).load()[0]
    reward = ReasoningGymReward(extract=r"(?s)<answer>\s*(.*?)\s*</answer>")
    texts = [f"so <answer>0</answer> <answer> {row['answer']} </answer>", row["answer"]]
    assert scores(reward, texts, [row["entry"]] * 2).total.tolist() == [1.0, 0.0]
    with pytest.raises(ValueError, match=r"extract: .* is no regular expression"):
        ReasoningGymReward(extract="(")


def test_a_judge_that_fails_is_counted(package, monkeypatch):
    from reasoning_gym.arithmetic.chain_sum import ChainSumDataset

    def judge(self, answer, entry):
        return 1 / len(answer)

    monkeypatch.setattr(ChainSumDataset, "score_answer", judge)
    found = scores(ReasoningGymReward(), ["1234", ""], [ENTRY] * 2)
    assert found.total.tolist() == [0.25, 0.0] and found.parts["unjudged"].tolist() == [0.0, 1.0]


def test_a_judge_that_runs_responses_is_refused_unless_that_is_wanted(package, tmp_path):
    source = ReasoningGym(task="binary_matrix", size=1)
    row, mark = source.load()[0], tmp_path / "mark"
    assert source.remark() == "its judge evaluates responses as Python code"
    text = f"[open({str(mark)!r}, 'w')]"
    with pytest.raises(UserError, match="the judge of binary_matrix may evaluate what the model writes as Python"):
        scores(ReasoningGymReward(), [text], [row["entry"]])
    assert not mark.exists()
    assert scores(ReasoningGymReward(run_responses=True), [row["answer"]], [row["entry"]]).total.tolist() == [1.0]


def test_rows_of_another_source_are_refused(package):
    for entry in ("12", "{}", "no", cast(Any, None)):
        with pytest.raises(UserError, match=r"column: entry of a row is .*, no entry of reasoning-gym"):
            scores(ReasoningGymReward(), ["1"], [entry])


def test_the_column_must_be_there():
    with pytest.raises(UserError, match="the source gym has no column entry"):
        ReasoningGymReward().check_columns({"gym": {"answer"}})
