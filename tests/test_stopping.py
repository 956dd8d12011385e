"""Ctrl-C and SIGTERM in a run of three stages: what is left continues to the same numbers."""

import dataclasses
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny_runs

from rlhf.algorithms.averaging import EMA
from rlhf.errors import UserError
from rlhf.experiment import Experiment
from rlhf.interruption import Stopped
from rlhf.models.policy import Pretrained
from rlhf.models.rewards import ScalarReward

STAGES = ("sft", "reward", "ppo")


def pipeline(directory: Path, *sinks: tiny_runs.SignalAt) -> Experiment:
    """Supervised fine-tuning, reward modelling and PPO of four steps each; no checkpoint is asked for."""
    stages = {
        "sft": tiny_runs.sft(policy=tiny_runs.policy(dropout=0.1), steps=4, eval_every=2),
        "reward": tiny_runs.reward_modelling(model=Pretrained(path="@sft", dropout=0.1), steps=4),
        "ppo": tiny_runs.ppo(
            policy=Pretrained(path="@sft"), reward=ScalarReward(path="@reward"), averaging=EMA(), iterations=2
        ),
    }
    return Experiment(name="toy", output_dir=str(directory), stages=stages, sinks=list(sinks))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole")
    pipeline(directory).run()
    return directory / "toy"


def same(run: Path, whole: Path) -> None:
    for stage in STAGES:
        assert tiny_runs.metrics(run / stage) == tiny_runs.metrics(whole / stage)
        assert tiny_runs.same_weights(run / stage / "model", whole / stage / "model")
    assert tiny_runs.same_weights(run / "ppo" / "ema", whole / "ppo" / "ema")


@pytest.mark.parametrize(
    ("stage", "step", "saved"),
    [
        ("sft", 1, "step 1 of 4 is saved"),
        ("sft", 3, "step 3 of 4 is saved"),
        ("reward", 2, "step 2 of 4 is saved"),
        ("ppo", 1, "iteration 1 of 2 is saved"),  # in the middle of an iteration
    ],
)
def test_a_stopped_run_continues_to_the_same_numbers(whole, tmp_path, stage, step, saved):
    number = signal.SIGTERM if step == 3 else signal.SIGINT
    with pytest.raises(Stopped) as error:
        pipeline(tmp_path, tiny_runs.SignalAt(stage=stage, step=step, number=int(number))).run()
    assert error.value.exit_code == 128 + number
    assert str(error.value) == (
        f"stage {stage}: stopped by {number.name}; {saved}, and the same command continues from there"
    )
    assert not (tmp_path / "toy" / stage / "model").exists() and not (tmp_path / "toy" / stage / "done.json").exists()
    pipeline(tmp_path).run()
    same(tmp_path / "toy", whole)


def test_asked_during_the_last_step_a_stage_is_finished_first(whole, tmp_path):
    with pytest.raises(Stopped, match="stopped by SIGINT; stage sft is finished, and the same command continues"):
        pipeline(tmp_path, tiny_runs.SignalAt(stage="sft", step=4, number=int(signal.SIGINT))).run()
    assert (tmp_path / "toy" / "sft" / "done.json").exists() and not (tmp_path / "toy" / "reward").exists()
    # in the last stage that is too late to stop anything
    pipeline(tmp_path, tiny_runs.SignalAt(stage="ppo", step=4, number=int(signal.SIGINT))).run()
    same(tmp_path / "toy", whole)


def test_asked_twice_it_stops_at_once_and_still_continues(whole, tmp_path):
    twice = [tiny_runs.SignalAt(stage="ppo", step=3, number=int(signal.SIGINT))] * 2
    once = dataclasses.replace(twice[0], step=1)
    with pytest.raises(Stopped):
        pipeline(tmp_path, once).run()
    with pytest.raises(KeyboardInterrupt) as error:
        pipeline(tmp_path, *twice).run()
    assert not isinstance(error.value, Stopped)
    assert (tmp_path / "toy" / "ppo" / "checkpoints" / "latest").read_text() == "step_2"
    pipeline(tmp_path).run()
    same(tmp_path / "toy", whole)


def test_a_stopped_run_is_continued_with_its_own_settings_only(tmp_path):
    with pytest.raises(Stopped):
        pipeline(tmp_path, tiny_runs.SignalAt(stage="sft", step=1, number=int(signal.SIGINT))).run()
    with pytest.raises(UserError, match=r"seed: 1 → 2"):
        dataclasses.replace(pipeline(tmp_path), seed=2).run()


CONFIG = """
name: toy
stages:
  sft:
    class_path: SFT
    init_args:
      policy:
        class_path: FromScratch
        init_args: {config: {model_type: gpt2, n_layer: 1, n_embd: 16, n_head: 2, n_positions: 128}}
      data: {sources: {world: {class_path: World, init_args: {form: demonstrations, rows: 60}}}, max_tokens: 128}
      batch_size: 4
      steps: 100000
"""


@pytest.mark.slow
def test_the_command_says_how_to_continue(tmp_path):
    (tmp_path / "exp.yaml").write_text(CONFIG)
    command = [sys.executable, "-m", "rlhf.run", "--config", str(tmp_path / "exp.yaml"), "--quiet"]
    command += ["--output_dir", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "toy" / "sft" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 143 and out == ""
    assert "stage sft: stopped by SIGTERM; step " in err and "the same command continues from there" in err
    assert "Traceback" not in err
    assert (tmp_path / "toy" / "sft" / "checkpoints" / "latest").read_text().startswith("step_")
