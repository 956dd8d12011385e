"""An on-policy stage from start to export: what it leaves, and resuming at every step."""

import json

import pytest
import tiny_runs
from rich.console import Console
from transformers import AutoModelForCausalLM

from rlhf.algorithms.advantages import GroupNorm
from rlhf.algorithms.averaging import EMA
from rlhf.algorithms.kl import KL, Adaptive
from rlhf.algorithms.normalization import ScoreNormalization
from rlhf.algorithms.objectives import Mixture
from rlhf.algorithms.ppo import Evaluation
from rlhf.algorithms.schedules import CosineDecay
from rlhf.loops import build_stage
from rlhf.loops.context import StageContext
from rlhf.loops.offline import OfflineTrainer
from rlhf.loops.online import OnlineTrainer
from rlhf.loops.stage import OnlineStage
from rlhf.metrics import read_metrics


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


@pytest.mark.parametrize("step", range(1, 9))
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
