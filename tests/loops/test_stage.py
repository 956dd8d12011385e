"""An on-policy stage from start to export: what it leaves, and resuming at every step."""

import json

import pytest
import tiny_runs
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM

from rlhf.algorithms.advantages import GroupNorm
from rlhf.algorithms.averaging import EMA
from rlhf.algorithms.kl import KL, Adaptive
from rlhf.algorithms.normalization import ScoreNormalization
from rlhf.algorithms.objectives import Mixture
from rlhf.algorithms.ppo import Evaluation
from rlhf.algorithms.schedules import CosineDecay
from rlhf.errors import UserError
from rlhf.interruption import Stopped
from rlhf.loops import build_stage
from rlhf.loops.context import StageContext
from rlhf.loops.offline import OfflineTrainer
from rlhf.loops.online import OnlineTrainer
from rlhf.loops.stage import OnlineStage
from rlhf.metrics import read_metrics
from rlhf.models.policy import Pretrained
from rlhf.models.storage import save_language_model


def short(**settings):
    """Four iterations of two steps, with everything that has state."""
    usual = {
        "policy": tiny_runs.policy(dropout=0.1),
        "mixture": Mixture(data=tiny_runs.data("text", eval_rows=0), gradient_every=3),
        "averaging": EMA(decay=0.9),
        "kl": KL(controller=Adaptive(target=1.0, horizon=50)),
        "score_normalization": ScoreNormalization(samples=16, running=True),
        "schedule": CosineDecay(),
        "evaluation": Evaluation(every=2, prompts=4, rewards={"letters": tiny_runs.LETTERS}),
        "iterations": 4,
        "save_every": 1,
        "save_rollouts": 2,
    }
    return tiny_runs.ppo(**{**usual, **settings})


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole")
    figures = OnlineStage(short(), tiny_runs.context(directory)).fit()
    return directory, figures


def test_one_line_a_step_and_evaluation(whole):
    lines = tiny_runs.metrics(whole[0])
    steps = [(line["iteration"], line["step"]) for line in lines if "loss/policy" in line]
    assert steps == [(1, 1), (1, 2), (2, 3), (2, 4), (3, 5), (3, 6), (4, 7), (4, 8)]
    assert [line["iteration"] for line in lines if "eval/score" in line] == [0, 2, 4]
    assert [line["step"] for line in lines if "eval/ema/score" in line] == [4, 8]
    assert [line["step"] for line in lines if "reward/score" in line] == [2, 4, 6, 8]
    assert whole[1]["step"] == 8


def test_all_figures_are_there(whole):
    names = {name for line in read_metrics(whole[0]) for name in line}
    wanted = """
        reward/score reward/total kl/ref_k1 kl/ref_k3 kl/coef policy/ratio_max policy/clip_fraction policy/entropy
        policy/approx_kl loss/policy loss/value loss/mixture loss/total value/explained_variance advantage/mean
        advantage/std rollout/length rollout/truncated_fraction rollout/logprob_gap grad_norm/policy grad_norm/value
        lr/policy lr/value data/rows_dropped time/rollout time/score time/train time/save
        throughput/rollout_tokens_per_s throughput/train_tokens_per_s throughput/samples_per_s memory/peak_gb
        gradient/policy_norm gradient/mixture_norm gradient/cosine update/steps update/samples
        eval/score eval/score_std eval/letters_score eval/kl eval/length eval/truncated_fraction eval/distinct_2
        eval/ema/score eval/ema/letters_score eval/ema/kl
    """.split()
    assert set(wanted) - names == set()


def test_figures_are_plausible(whole):
    last = read_metrics(whole[0])[-2]
    assert last["advantage/mean"] == pytest.approx(0, abs=1e-5)
    assert last["advantage/std"] == pytest.approx(1, abs=1e-3)
    assert 1 <= last["rollout/length"] <= 8 and 0 <= last["rollout/truncated_fraction"] <= 1
    assert 0 < last["policy/entropy"] < 5.7 and last["rollout/logprob_gap"] < 1e-4
    assert last["memory/peak_gb"] > 0.1 and last["time/save"] > 0


def test_rollout_files(whole):
    files = sorted(path.name for path in (whole[0] / "rollouts").iterdir())
    assert files == [
        "evaluation_000000.jsonl",
        "evaluation_000002.jsonl",
        "evaluation_000002_ema.jsonl",
        "evaluation_000004.jsonl",
        "evaluation_000004_ema.jsonl",
        *(f"iteration_{n:06d}.jsonl" for n in (1, 2, 3, 4)),
    ]
    rows = [json.loads(line) for line in (whole[0] / "rollouts/iteration_000003.jsonl").read_text().splitlines()]
    assert len(rows) == 2
    for row in rows:
        assert row["prompt"].endswith("=") and isinstance(row["response"], str) and isinstance(row["ended"], bool)
        lengths = {
            len(row[name])
            for name in (
                "tokens", "rollout_logprobs", "old_logprobs", "ref_logprobs", "rewards", "values", "advantages"
            )
        }  # fmt: skip
        assert len(lengths) == 1 and lengths.pop() >= 1 and isinstance(row["score"], float)


def test_models_are_left(whole):
    directory, _ = whole
    model = AutoModelForCausalLM.from_pretrained(directory / "model")
    average = AutoModelForCausalLM.from_pretrained(directory / "ema")
    assert model.config.vocab_size == average.config.vocab_size
    assert not tiny_runs.same_weights(directory / "model", directory / "ema")
    assert sorted(path.name for path in (directory / "checkpoints").iterdir()) == ["latest", "step_4", "step_6"]


@pytest.mark.parametrize("step", [1, 4, 7])
def test_resumed_in_the_middle_of_any_step(whole, tmp_path, step):
    killer = tiny_runs.KillAt(step=step)
    with pytest.raises(tiny_runs.Killed):
        OnlineStage(short(), tiny_runs.context(tmp_path, sinks=(killer,))).fit()
    OnlineStage(short(), tiny_runs.context(tmp_path)).fit()
    assert tiny_runs.metrics(tmp_path) == tiny_runs.metrics(whole[0])
    for name in ("model", "ema"):
        assert tiny_runs.same_weights(tmp_path / name, whole[0] / name)
    for file in (whole[0] / "rollouts").iterdir():
        assert (tmp_path / "rollouts" / file.name).read_text() == file.read_text()


def long_updates(**settings):
    """Two iterations of four steps each, with everything that has state and every rollout stored."""
    usual = {"iterations": 2, "epochs": 2, "save_every": 0, "save_rollouts": "all"}
    return short(**{**usual, "evaluation": Evaluation(every=1, prompts=2), **settings})


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    directory = tmp_path_factory.mktemp("uninterrupted")
    OnlineStage(long_updates(), tiny_runs.context(directory)).fit()
    return directory


def same_stage(one, other):
    assert tiny_runs.metrics(one) == tiny_runs.metrics(other)
    for name in ("model", "ema"):
        assert tiny_runs.same_weights(one / name, other / name)
    files = sorted(path.name for path in (one / "rollouts").iterdir())
    assert files == sorted(path.name for path in (other / "rollouts").iterdir())
    for name in files:
        assert (one / "rollouts" / name).read_text() == (other / "rollouts" / name).read_text()


def stop(algorithm, context, step, monkeypatch):
    stage = OnlineStage(algorithm, context)
    tiny_runs.stop_after(stage.trainer, step, monkeypatch, "_optimiser_step")
    with pytest.raises(Stopped) as error:
        stage.fit()
    return str(error.value)


@pytest.mark.parametrize("step", range(1, 8))
def test_stopped_after_any_optimiser_step(uninterrupted, tmp_path, monkeypatch, step):
    """No more than the step is waited for, and nothing of the iteration is lost: its rollouts are in the checkpoint."""
    said = stop(long_updates(), tiny_runs.context(tmp_path), step, monkeypatch)
    assert said.startswith(f"stopped by SIGTERM; step {step}, in iteration {(step + 3) // 4} of 2, is saved")
    context = tiny_runs.context(tmp_path)
    again = OnlineStage(long_updates(), context)
    monkeypatch.setattr(again.trainer.policy, "generate", counted := Counting(again.trainer.policy.generate))
    again.fit()
    same_stage(tmp_path, uninterrupted)
    assert f"continues from step {step}, in the middle of iteration {(step + 3) // 4}" in " ".join(
        context.console.file.getvalue().split()
    )
    sampled_again = counted.calls - 2 * (3 - (step + 3) // 4)  # evaluations of policy and average
    assert sampled_again == 2 - (step + 3) // 4


class Counting:
    def __init__(self, function):
        self.function, self.calls = function, 0

    def __call__(self, *arguments, **settings):
        self.calls += 1
        return self.function(*arguments, **settings)


def test_stopped_twice_in_one_iteration(uninterrupted, tmp_path, monkeypatch):
    stop(long_updates(), tiny_runs.context(tmp_path), 1, monkeypatch)
    assert "step 3, in iteration 1 of 2" in stop(long_updates(), tiny_runs.context(tmp_path), 2, monkeypatch)
    OnlineStage(long_updates(), tiny_runs.context(tmp_path)).fit()
    same_stage(tmp_path, uninterrupted)


def test_an_update_that_stopped_itself_early_is_not_gone_on_with(tmp_path, monkeypatch):
    """``target_kl`` ends the update after the step at which the stop is asked for."""
    early = long_updates(target_kl=1e-9, iterations=1)
    OnlineStage(early, tiny_runs.context(tmp_path / "whole")).fit()
    steps = [line["step"] for line in tiny_runs.metrics(tmp_path / "whole") if "loss/policy" in line]
    assert 1 < len(steps) < 4
    stop(early, tiny_runs.context(tmp_path / "cut"), len(steps), monkeypatch)
    OnlineStage(early, tiny_runs.context(tmp_path / "cut")).fit()
    same_stage(tmp_path / "cut", tmp_path / "whole")


def test_the_reference_is_the_one_of_the_start(tmp_path, monkeypatch):
    """Weights that have changed on the disk are refused, and so is a policy that would be its own reference."""
    lm = tiny_runs.policy().build(lambda: ["abc=xyz"], seed=1)
    save_language_model(tmp_path / "start", lm.module, lm.tokenizer)
    algorithm = short(policy=Pretrained(path=str(tmp_path / "start")), save_every=0)
    stop(algorithm, tiny_runs.context(tmp_path / "stage"), 1, monkeypatch)
    with torch.no_grad():
        lm.module.transformer.wte.weight[0, 0] += 1e-3
    save_language_model(tmp_path / "start", lm.module, lm.tokenizer)
    with pytest.raises(
        UserError,
        match=r"step_1: the frozen weights of the PolicyModel are not those",
    ):
        OnlineStage(algorithm, tiny_runs.context(tmp_path / "stage")).fit()


def test_by_hand_is_the_same_as_the_stage(whole, tmp_path):
    """``generate_experience`` and ``train_rlhf`` in a loop of one's own."""
    trainer = OnlineTrainer(short(), StageContext(directory=tmp_path, seed=1))
    stage = [line for line in tiny_runs.metrics(whole[0]) if "reward/score" in line]
    steps = [line for line in tiny_runs.metrics(whole[0]) if "loss/policy" in line]
    told = []
    for line in stage:
        experience = trainer.generate_experience()
        metrics = trainer.train_rlhf(experience, told.append)
        for name in ("step", "iteration", "reward/score", "reward/total", "kl/sequence", "kl/coef", "rollout/length"):
            assert metrics[name] == line[name]
        assert metrics["loss/policy"] == pytest.approx(sum(t["loss/policy"] for t in told[-2:]) / 2)
    assert [t["loss/total"] for t in told] == [line["loss/total"] for line in steps]
    assert [t["grad_norm/policy"] for t in told] == [line["grad_norm/policy"] for line in steps]


def test_the_critic_that_is_not_built_is_spoken_of(tmp_path, capsys):
    settings = short(advantage=GroupNorm(), samples_per_prompt=4, iterations=1, save_every=0)
    context = StageContext(directory=tmp_path, name="ppo", console=Console())
    OnlineStage(settings, context).fit()
    out = capsys.readouterr().out
    assert "ppo: GroupNorm reads no values, so the critic is not built" in out
    assert "ppo: toy: 20 for training, 4 held out" in out and "ppo 1/1" in out
    assert "loss/value" not in read_metrics(tmp_path)[-2]


def test_which_loop_runs_what(tmp_path):
    assert isinstance(build_stage(tiny_runs.sft(), tiny_runs.context(tmp_path)), OfflineTrainer)
    assert isinstance(build_stage(tiny_runs.ppo(), tiny_runs.context(tmp_path)), OnlineStage)
    with pytest.raises(TypeError, match="no loop is registered for str"):
        build_stage("sft", tiny_runs.context(tmp_path))  # pyright: ignore
