"""The offline loop: batches, evaluation, and resuming at every step."""

import dataclasses
import math

import pytest
import tiny_runs
import torch

from rlhf.algorithms.schedules import CosineDecay
from rlhf.data.templates import Chat
from rlhf.errors import UserError
from rlhf.interruption import Stopped
from rlhf.loops.offline import OfflineTrainer
from rlhf.models.policy import FromScratch
from rlhf.types import Labelled


def short():
    """20 training rows in batches of 6: 7 steps over 2 epochs, the last one short."""
    return tiny_runs.sft(
        policy=tiny_runs.policy(dropout=0.1),
        data=tiny_runs.data("demonstration", 24),
        batch_size=6,
        epochs=2.0,
        eval_every=2,
        save_every=1,
        schedule=CosineDecay(warmup=2),
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    directory = tmp_path_factory.mktemp("whole")
    figures = OfflineTrainer(short(), tiny_runs.context(directory)).fit()
    return directory, figures


def test_steps_of_the_whole_run(whole):  # case F2
    directory, figures = whole
    lines = tiny_runs.metrics(directory)
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4, 5, 6, 7]
    assert [line["step"] for line in lines if "eval/loss" in line] == [2, 4, 6, 7]
    # windows carried over epochs: ⌈2 · 20 / 6⌉ = 7 steps, not 2 · ⌊20 / 6⌋
    rates = [line["lr/policy"] for line in lines if "lr/policy" in line]
    assert rates[:3] == [0, 0.005, 0.01] and rates[2:] == sorted(rates[2:], reverse=True)
    assert figures["step"] == 7 and figures["eval/perplexity"] == pytest.approx(math.exp(figures["eval/loss"]))
    assert {"memory/peak_gb", "time/train", "data/rows_dropped", "throughput/samples_per_s"} <= figures.keys()


@pytest.mark.parametrize("step", range(1, 8))
def test_resumed_in_the_middle_of_any_step(whole, tmp_path, step):
    with pytest.raises(tiny_runs.Killed):
        OfflineTrainer(short(), tiny_runs.context(tmp_path, sinks=(tiny_runs.KillAt(step=step),))).fit()
    torch.manual_seed(99)
    figures = OfflineTrainer(short(), tiny_runs.context(tmp_path)).fit()
    assert tiny_runs.metrics(tmp_path) == tiny_runs.metrics(whole[0])
    assert tiny_runs.same_weights(tmp_path / "model", whole[0] / "model")
    assert figures["eval/loss"] == whole[1]["eval/loss"]


def ranking():
    """Comparisons, with dropout, whose last figures come after the last step."""
    return tiny_runs.reward_modelling(
        model=tiny_runs.policy(dropout=0.1), data=tiny_runs.data("scored"), batch_size=3, steps=7, eval_every=3
    )


@pytest.fixture(scope="module")
def ranked(tmp_path_factory):
    directory = tmp_path_factory.mktemp("ranked")
    OfflineTrainer(ranking(), tiny_runs.context(directory)).fit()
    return directory


@pytest.mark.parametrize(("step", "background"), [*((step, False) for step in range(1, 7)), (2, True)])
def test_stopped_after_any_step(ranked, tmp_path, monkeypatch, step, background):
    context = dataclasses.replace(tiny_runs.context(tmp_path), save_in_background=background)
    trainer = OfflineTrainer(ranking(), context)
    tiny_runs.stop_after(trainer, step, monkeypatch, "train_step")
    with pytest.raises(Stopped, match=f"stopped by SIGTERM; step {step} of 7 is saved"):
        trainer.fit()
    assert [line["step"] for line in tiny_runs.metrics(tmp_path) if "loss" in line] == list(range(1, step + 1))
    torch.manual_seed(99)
    OfflineTrainer(ranking(), tiny_runs.context(tmp_path)).fit()
    assert tiny_runs.metrics(tmp_path) == tiny_runs.metrics(ranked)
    assert tiny_runs.same_weights(tmp_path / "model", ranked / "model")


def test_a_damaged_newest_checkpoint_is_told_and_passed_over(whole, tmp_path):  # case F6
    with pytest.raises(tiny_runs.Killed):
        OfflineTrainer(short(), tiny_runs.context(tmp_path, sinks=(tiny_runs.KillAt(step=5),))).fit()
    (tmp_path / "checkpoints" / "step_4" / "rank_0.pt").write_bytes(b"half")
    context = tiny_runs.context(tmp_path)
    OfflineTrainer(short(), context).fit()
    text = " ".join(context.console.file.getvalue().split())  # pyright: ignore
    assert "step_4 is damaged: rank_0.pt has 4 bytes" in text and "going on from step_3" in text
    assert "stage: continues from step 3" in text
    assert tiny_runs.metrics(tmp_path) == tiny_runs.metrics(whole[0])
    assert tiny_runs.same_weights(tmp_path / "model", whole[0] / "model")


def test_a_checkpoint_of_another_shape_is_refused(tmp_path):
    with pytest.raises(tiny_runs.Killed):
        OfflineTrainer(short(), tiny_runs.context(tmp_path / "a", sinks=(tiny_runs.KillAt(step=3),))).fit()
    wider = dataclasses.replace(short(), policy=tiny_runs.policy(width=32))
    trainer = OfflineTrainer(wider, tiny_runs.context(tmp_path / "b"))
    path = tmp_path / "a" / "checkpoints" / "step_2"
    with pytest.raises(UserError, match=r"step_2 does not fit this stage \(RuntimeError: .*size mismatch"):
        trainer.resume(path)
    other = OfflineTrainer(short(), tiny_runs.context(tmp_path / "b", seed=2))
    with pytest.raises(UserError, match=r"step_2: data seed: \d+, but the checkpoint has \d+"):
        other.resume(path)


def test_the_next_rate_after_resuming_is_the_next_rate(whole, tmp_path):  # case F2
    trainer = OfflineTrainer(short(), tiny_runs.context(tmp_path))
    for _ in range(3):
        trainer.train_step(trainer.next_batch())
    other = OfflineTrainer(short(), tiny_runs.context(tmp_path))
    other.load_state_dict(trainer.state_dict())
    assert other.train_step(other.next_batch())["lr/policy"] == tiny_runs.metrics(whole[0])[4]["lr/policy"]


def test_every_row_is_seen_once_an_epoch(tmp_path):
    settings = tiny_runs.sft(data=tiny_runs.data("demonstration", 24), batch_size=6, epochs=1.0)
    trainer = OfflineTrainer(settings, tiny_runs.context(tmp_path))
    batches = [trainer.next_batch() for _ in range(trainer.total_steps)]
    assert [len(batch) for batch in batches] == [6, 6, 6, 2]


def test_steps_overrule_epochs(tmp_path):
    settings = tiny_runs.sft(data=tiny_runs.data("demonstration", 24), batch_size=6, steps=5, epochs=1.0)
    trainer = OfflineTrainer(settings, tiny_runs.context(tmp_path))
    assert trainer.total_steps == 5 and [len(trainer.next_batch()) for _ in range(5)] == [6] * 5


def test_evaluation_is_a_mean_over_tokens(tmp_path):  # case I2
    trainer = OfflineTrainer(tiny_runs.sft(), tiny_runs.context(tmp_path))

    def rows(count, token):
        sequences, mask = tiny_runs.right_padded([[0] + [token] * count])
        return Labelled(sequences=sequences, mask=mask)

    trainer.engine.model = tiny_runs.Ids()  # a token's loss is its id
    trainer.heldout = [rows(10, 1), rows(30, 3)]
    figures = trainer.evaluate()
    assert figures["eval/loss"] == pytest.approx(2.5)
    assert figures["eval/perplexity"] == pytest.approx(12.182494)


def test_throughput_counts_what_was_learned_from(tmp_path, monkeypatch):  # case I5
    trainer = OfflineTrainer(tiny_runs.sft(batch_size=8), tiny_runs.context(tmp_path))
    ticks = iter([10.0, 12.0])
    monkeypatch.setattr("rlhf.loops.offline.time.perf_counter", lambda: next(ticks))
    batch = trainer.next_batch()
    figures = trainer.train_step(batch)
    assert figures["throughput/samples_per_s"] == 4.0
    assert figures["throughput/train_tokens_per_s"] == int(batch.sequences.attention_mask.sum()) / 2
    assert figures["time/train"] == 2.0


def test_samples_of_comparisons_are_pairs(tmp_path, monkeypatch):  # case I5
    trainer = OfflineTrainer(tiny_runs.reward_modelling(batch_size=8), tiny_runs.context(tmp_path))
    ticks = iter([0.0, 2.0])
    monkeypatch.setattr("rlhf.loops.offline.time.perf_counter", lambda: next(ticks))
    assert trainer.train_step(trainer.next_batch())["throughput/samples_per_s"] == 4.0


def test_dropped_rows_are_counted(tmp_path):
    settings = tiny_runs.sft(data=tiny_runs.data("demonstration", max_prompt_tokens=4), steps=1)
    trainer = OfflineTrainer(settings, tiny_runs.context(tmp_path))
    figures = trainer.fit()
    assert trainer.data.rows_dropped > 0 and figures["data/rows_dropped"] == trainer.data.rows_dropped


def test_conversations_are_learned_and_compared_turn_by_turn(tmp_path):
    bytes_only = {"vocab_size": 258, "chat_template": "turns"}
    policy = FromScratch(config={**tiny_runs.policy().config, "n_positions": 128}, **bytes_only)
    settings = {"template": Chat(), "eval_rows": 0, "max_tokens": 128}
    learned = tiny_runs.sft(policy=policy, data=tiny_runs.data("talk", **settings), batch_size=24, steps=1)
    trainer = OfflineTrainer(learned, tiny_runs.context(tmp_path / "sft"))
    batch = trainer.next_batch()
    said = [len(m["content"]) + 1 for row in tiny_runs.rows("talk", 24) for m in row["messages"][1::2]]
    assert int(batch.mask.sum()) == sum(said)  # a token for each letter and each end
    first = trainer.train_step(batch)["loss"]
    assert math.isfinite(first) and trainer.train_step(batch)["loss"] < first
    pairs = tiny_runs.reward_modelling(model=policy, data=tiny_runs.data("talk_pair", **settings), steps=2)
    assert OfflineTrainer(pairs, tiny_runs.context(tmp_path / "reward")).fit()["step"] == 2


def test_without_held_out_rows_there_is_no_evaluation(tmp_path):
    settings = tiny_runs.sft(data=tiny_runs.data("demonstration", eval_rows=0), steps=1)
    assert "eval/loss" not in OfflineTrainer(settings, tiny_runs.context(tmp_path)).fit()


def test_rows_that_the_model_has_no_positions_for_are_refused_at_once(tmp_path):
    small = {"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 4}
    algorithm = tiny_runs.sft(policy=FromScratch(config=small, vocab_size=280))
    with pytest.raises(
        ValueError, match=r"data.max_tokens: .* the model has 4 positions .*; set max_tokens to at most 4"
    ):
        OfflineTrainer(algorithm, tiny_runs.context(tmp_path))
