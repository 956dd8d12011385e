"""What a stage will cost, with the arithmetic in comments; and what nobody can know."""

import json

import pytest
import tiny_runs

from rlhf.algorithms.advantages import GreedyBaseline
from rlhf.algorithms.filters import BestOfGroup, InformativeGroups
from rlhf.engines.zero import Zero
from rlhf.grid.plan import Made, Work, made_before, memory, seconds, told_bytes, told_work, work
from rlhf.interfaces import Algorithm
from rlhf.models.policy import Pretrained
from rlhf.stages.key import identity


def test_steps_and_tokens_of_an_on_policy_stage():
    # 3 iterations of 8 responses of up to 8 tokens; 2 passes over each iteration in mini-batches of 4
    assert work(tiny_runs.ppo(epochs=2)) == Work(3 * 2 * 2, 3 * 8 * 8, 3)
    # a greedy response to each of the 8 prompts besides
    assert work(tiny_runs.ppo(advantage=GreedyBaseline())).tokens == 3 * (8 + 8) * 8
    # the best of each group of 4 is kept: 2 of 8, a mini-batch of 2; drawn once
    assert work(tiny_runs.ppo(samples_per_prompt=4, filter=BestOfGroup(), mini_batch_size=2)) == Work(3, 3 * 8 * 8, 3)
    # drawn up to 5 times
    filtered = tiny_runs.ppo(samples_per_prompt=4, filter=InformativeGroups(max_attempts=5))
    assert work(filtered).tokens == 3 * 5 * 8 * 8
    assert work(tiny_runs.ppo(replay="somewhere")).tokens == 0


def test_a_stage_that_learns_from_data_has_as_many_steps_as_it_says():
    assert work(tiny_runs.sft(steps=7)) == Work(7, 0, 7)
    assert work(tiny_runs.sft(epochs=2)) == Work(None, 0, None)
    assert told_work(tiny_runs.sft(steps=7)) == "7 optimiser steps"
    assert told_work(tiny_runs.sft()) == "optimiser steps unknown (data not read)"
    assert told_work(tiny_runs.ppo()) == "6 optimiser steps, up to 192 sampled tokens"


def test_nothing_is_known_of_a_family_that_has_not_said():
    class Other(Algorithm):
        pass

    assert work(Other()) == Work(None, None, None)
    assert told_work(Other()) == "optimiser steps unknown (data not read), sampled tokens unknown"
    assert memory({"a": Other()}, "a") is None


def weights(algorithm):
    return sum(weight.numel() for weight in algorithm.policy.outline().parameters())


def test_memory_is_that_of_weights_gradients_and_optimiser():
    sft = tiny_runs.sft()
    # fp32: 4 bytes of weight, 4 of gradient, 8 of Adam
    assert memory({"sft": sft}, "sft") == 16 * weights(sft)
    # bf16: 2 of weight, 4 of master, 2 of gradient, 8 of Adam
    assert memory({"sft": tiny_runs.sft(engine=Zero(stage=0, precision="bf16"))}, "sft") == 16 * weights(sft)
    ppo = tiny_runs.ppo(policy=Pretrained(path="@sft"))
    # policy and critic are trained, the reference is read: the critic's trunk is the policy's without an output layer
    assert 16 * weights(sft) < memory({"sft": sft, "ppo": ppo}, "ppo") <= (16 + 16 + 4) * weights(sft)


def test_memory_of_a_model_that_is_not_there_is_unknown(tmp_path):
    assert memory({"a": tiny_runs.sft(policy=Pretrained(path=str(tmp_path / "nothing")))}, "a") is None
    assert told_bytes(None) == "memory unknown"
    assert told_bytes(475_000) == "at least 0.475 MB" and told_bytes(2_340_000_000) == "at least 2.3 GB"


def made(algorithm, took, steps, seed=1):
    return Made(identity(algorithm, seed=seed, threads=1), took, steps)


def test_time_is_told_by_the_stages_that_are_most_like_it():
    earlier = [
        made(tiny_runs.sft(steps=10), 5.0, 10),
        made(tiny_runs.sft(steps=10), 7.0, 10, seed=2),
        made(tiny_runs.sft(steps=10, batch_size=8), 50.0, 10),
        made(tiny_runs.ppo(), 500.0, 10),
    ]
    # 20 steps at (5 + 7) / 2 for 10
    assert seconds(tiny_runs.sft(steps=20), earlier) == 12.0
    assert seconds(tiny_runs.sft(steps=20, batch_size=8), earlier) == 100.0
    assert seconds(tiny_runs.reward_modelling(steps=20), earlier) is None


def test_time_by_epochs_is_told_only_where_the_data_are_the_same():
    earlier = [made(tiny_runs.sft(epochs=2), 5.0, 10)]
    assert seconds(tiny_runs.sft(epochs=2), earlier) == 5.0
    assert seconds(tiny_runs.sft(epochs=2, max_grad_norm=2.0), earlier) == 5.0
    for other in ({"epochs": 3}, {"epochs": 2, "data": tiny_runs.data("demonstration", 30)}):
        assert seconds(tiny_runs.sft(**other), earlier) is None


def test_finished_stages_are_found_where_they_are_kept_and_in_runs(tmp_path):
    def leave(folder, record, done, lines=()):
        folder.mkdir(parents=True)
        (folder / "stage.json").write_text(json.dumps(record))
        (folder / "done.json").write_text(json.dumps(done))
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    settings = {"class_path": "x"}
    leave(tmp_path / ".stages" / "sft-12", {"settings": settings}, {"figures": {"step": 4}, "seconds": 3.0})
    leave(tmp_path / "a" / "sft", {"settings": settings, "taken_from": "x"}, {"figures": {"step": 4}, "seconds": 3.0})
    # it was continued: the last part took 1 s, all of its steps 2 + 3
    timed = [{"time/train": 2.0}, {"time/train": 3.0, "eval/loss": None}]
    leave(tmp_path / "b" / "sft", {"settings": settings}, {"figures": {"step": 5}, "seconds": 1.0}, timed)
    leave(tmp_path / "c" / "sft", {}, {"figures": {"step": 5}, "seconds": 1.0})  # of another version
    found = list(made_before([tmp_path / ".stages", tmp_path], "sft"))
    assert found == [Made(settings, 3.0, 4), Made(settings, 5.0, 5)]
    assert list(made_before([tmp_path], "ppo")) == []


@pytest.mark.parametrize("steps", [0, None])
def test_a_stage_without_steps_tells_no_time(steps):
    assert seconds(tiny_runs.sft(steps=3), [made(tiny_runs.sft(steps=3), 5.0, steps or 0)]) is None
