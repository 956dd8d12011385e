"""Figures per token."""

import math

import pytest
from run_folders import sampled as write_rollout, stage

from rlhf.report.runs import StageRecord
from rlhf.report.tokens import of_word, sampled, scales


@pytest.fixture
def ppo(tmp_path):
    return StageRecord("ppo", stage(tmp_path / "ppo", []), {})


def test_layers_by_hand(ppo):
    columns = {"old_logprobs": [-1.0, -1.5], "ref_logprobs": [-2.0, -1.5], "rollout_logprobs": [-1.25, -1.5]}
    write_rollout(ppo.directory, 1, texts=["a", ""], advantages=[2.0, -1.0], values=[0.5, math.nan], **columns)
    (row,) = sampled(ppo)
    assert row.tokens == ["a", ""] and row.iteration == 1 and row.score == 1.0 and row.paid == {"score": 2.0}
    assert row.layers["advantage"] == [2.0, -1.0]
    assert row.layers["change"] == [1.0, 0.0] and row.layers["gap"] == [0.25, 0.0]
    assert row.layers["kl"] == [pytest.approx(math.exp(-1) - 1 + 1), 0.0]  # k3 of a log-ratio of −1
    assert row.layers["value"] == [0.5, None]  # what is no number has no colour
    limits = {scale["key"]: scale["limit"] for scale in scales([row])}
    assert limits["advantage"] == 2.0 and limits["reward"] == 1.0  # all rewards are 0: any limit does


def test_a_stage_without_reference_or_critic_has_fewer_layers(ppo):
    write_rollout(ppo.directory, 1, texts=["a"])
    path = ppo.directory / "rollouts" / "iteration_000001.jsonl"
    path.write_text(path.read_text().replace("ref_logprobs", "other"))
    (row,) = sampled(ppo)
    assert list(row.layers) == ["advantage", "reward", "logprob", "gap"]


def test_best_and_worst_of_first_middle_and_last(ppo):
    for iteration in range(1, 6):
        for score in (0.0, 3.0, -2.0):
            write_rollout(ppo.directory, iteration, texts=["x"], score=score + iteration)
    assert [(row.iteration, row.score) for row in sampled(ppo)] == [(1, 4), (1, -1), (3, 6), (3, 1), (5, 8), (5, 3)]


def test_rollouts_of_an_older_run_show_ids(ppo):
    write_rollout(ppo.directory, 1, texts=["a", "b"], token_texts=None)
    path = ppo.directory / "rollouts" / "iteration_000001.jsonl"
    path.write_text(path.read_text().replace("raw_score", "other"))
    assert sampled(ppo)[0].tokens == ["‹0›", "‹1›"] and sampled(ppo)[0].paid == {}


def test_the_parts_of_what_was_paid(ppo):
    write_rollout(ppo.directory, 1, texts=["a"], **{"reward/rm": 3.0, "reward/length": -1.0})
    assert sampled(ppo)[0].paid == {"score": 2.0, "rm": 3.0, "length": -1.0}


def test_a_log_ratio_beyond_all_numbers(ppo):
    write_rollout(ppo.directory, 1, texts=["a"], old_logprobs=[-9000.0], ref_logprobs=[0.0])
    assert sampled(ppo)[0].layers["kl"][0] > 1e300


@pytest.mark.parametrize(("clip", "counted"), [(1.5, 1.5), (5.0, 4.0), (None, 4.0)])
def test_of_a_score_no_more_counts_than_its_bound(tmp_path, clip, counted):
    settings = {"class_path": "rlhf.PPO", "init_args": {"score_clip": clip}}
    bounded = StageRecord("ppo", stage(tmp_path / "ppo", []), settings)
    write_rollout(bounded.directory, 1, texts=["a"], score=4.0)
    assert (sampled(bounded)[0].score, sampled(bounded)[0].counted) == (4.0, counted)


def test_tokens_of_a_word_and_of_its_parts():
    tokens = ["The", " c", "at", " and", " the", "", " other", " ", "th", "e", "!"]
    assert of_word(tokens, "word", "the") == {0, 4, 8, 9} and of_word(tokens, "commonest", "x") == {0, 4, 8, 9}
    assert of_word(tokens, "word", "!") == {10} and of_word(tokens, "length", "") == set()
