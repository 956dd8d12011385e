"""What runs of several processes have got wrong in public: hangs, the same responses, figures of one process only."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import tiny_runs
import torch

from rlhf import distributed
from rlhf.algorithms.optimizers import SGD
from rlhf.engines.inference import responses
from rlhf.engines.inference.sampling import Sampling
from rlhf.engines.zero import Zero
from rlhf.loops.offline import OfflineTrainer
from rlhf.loops.online import OnlineTrainer
from rlhf.types import Labelled, LossTerm, Prompts, Tally

STAGES = (0, 1, 2, 3)
SECONDS = 60
EAGER = {"stage3_max_live_parameters": 0, "stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0}
"""Weights are parted again after every use: a tiny model would stay gathered, and hide passes that do not match."""


def zero(stage: int) -> Zero:
    return Zero(stage=stage, config={"zero_optimization": EAGER} if stage == 3 else {})  # type: ignore[arg-type]


@contextlib.contextmanager
def trainer_of(algorithm: Any, kind: type) -> Iterator[Any]:
    with tempfile.TemporaryDirectory() as folder:
        yield kind(algorithm, dataclasses.replace(tiny_runs.context(Path(folder)), cache_dir=None))


@pytest.fixture
def ready(two_processes: Any) -> Any:
    """Two processes that have started: the limit of a test is not spent on that."""
    two_processes.run(distributed.rank)
    return two_processes


# ------------------------------------------------------------------------------------------------------------ sampling

LENGTH = 32


def respond(stage: int, count: int, ends: dict[int, int]) -> dict[str, Any]:
    """Responses to ``count`` prompts; a process draws an end token at the step that ``ends`` says, and no other.

    Returns:
        Lengths and ids of all, as this process has them.
    """
    settings = tiny_runs.ppo(engine=zero(stage), sampling=Sampling(max_new_tokens=LENGTH))
    with trainer_of(settings, OnlineTrainer) as trainer:
        end, honest, steps = trainer.tokenizer.eos_token_id, responses.draw, iter(range(LENGTH))

        def draw(*arguments: Any, **rest: Any) -> Any:
            drawn, step = honest(*arguments, **rest), next(steps)
            ids = torch.where(drawn.ids == end, end + 1, drawn.ids)
            return drawn._replace(ids=torch.full_like(ids, end) if step == ends.get(distributed.rank()) else ids)

        prompts = Prompts([[5 + row, 6, 7] for row in range(count)], [""] * count, ["toy"] * count)
        with mock.patch.object(responses, "draw", draw):
            rollout = trainer.sample(prompts, seed=1)
    return {"lengths": rollout.mask.sum(1).tolist(), "ids": rollout.sequences.ids.tolist(), "text": rollout.text}


@pytest.mark.parametrize(
    ("count", "lengths"),
    [  # also unequal counts, down to none
        (3, [1, 1, LENGTH]),
        pytest.param(2, [1, LENGTH], marks=pytest.mark.slow),
        pytest.param(1, [1], marks=pytest.mark.slow),
    ],
)
def test_responses_of_unequal_length_do_not_hang(ready, count, lengths):  # case E1
    three = ready.run(respond, 3, count, {0: 0}, seconds=SECONDS)
    assert three[0]["lengths"] == lengths and three[0] == three[1]
    assert ready.run(respond, 0, count, {0: 0}, seconds=SECONDS)[0] == three[0]


def duplicates(stage: int) -> dict[str, Any]:
    """Two rollouts of one prompt four times, and what processes have in common or not when the training starts."""
    settings = tiny_runs.ppo(
        engine=zero(stage), policy=tiny_runs.policy(dropout=0.1), sampling=Sampling(max_new_tokens=16)
    )
    with trainer_of(settings, OnlineTrainer) as trainer:
        prompts = Prompts([[5, 6, 7]], ["abc"], ["toy"]).repeat(4)
        first, again = (trainer.sample(prompts, seed=1) for _ in range(2))
        weights = {name: value.clone() for name, value in trainer.policy.model.state_dict().items()}
    return {
        "first": [row[mask].tolist() for row, mask in zip(first.sequences.response_ids, first.mask, strict=True)],
        "again": [row[mask].tolist() for row, mask in zip(again.sequences.response_ids, again.mask, strict=True)],
        "weights": weights,
        "dropout": torch.rand(8).tolist(),
    }


@pytest.mark.parametrize("stage", [0, 3])
def test_the_same_prompt_on_all_processes_is_answered_differently(ready, stage):  # case E10
    one, other = ready.run(duplicates, stage, seconds=SECONDS)
    assert len({tuple(row) for row in one["first"]}) == 4
    assert one["again"] == one["first"] == other["first"] == other["again"]
    if stage == 0:
        assert all(torch.equal(one["weights"][name], other["weights"][name]) for name in one["weights"])
    # processes have other rows of a batch: the same mask on each would be one mask for several rows
    assert one["dropout"] != other["dropout"]


# ------------------------------------------------------------------------------------------------- losses and figures


def rows(losses: list[list[int]]) -> Labelled:
    """Rows whose tokens have these losses in the hands of ``tiny_runs.Ids``."""
    sequences, mask = tiny_runs.right_padded([[0, *row] for row in losses])
    return Labelled(sequences=sequences, mask=mask)


def stepped(stage: int, losses: list[list[int]], mode: Any, denominator: float, size: int) -> dict[str, Any]:
    """One step with weight 1 and rate 0.1: the figures, and the weight afterwards."""
    engine = zero(stage).build(tiny_runs.Ids(), optimizer=SGD(lr=0.1))

    def loss(outputs: Any, part: Labelled) -> tuple[list[LossTerm], Tally]:
        tally = Tally()
        tally.mean("loss", -outputs.logprobs, part.mask)
        return [LossTerm("sft", -outputs.logprobs, part.mask, mode=mode)], tally

    tally = engine.accumulate(rows(losses).split(size), loss, {"sft": denominator}, want=("logprobs",))
    norm = engine.step()["grad_norm"]
    return {**tally.compute(), "norm": norm, "weight": engine.full_state()["w"].item()}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(("mode", "denominator", "mean"), [("token", 10.0, 2.6), ("sequence", 4.0, 3.5)])
@pytest.mark.parametrize("size", [1, 3])
def test_how_rows_fall_on_processes_changes_nothing(two_processes, stage, mode, denominator, mean, size):  # case C1
    losses = [[2, 2, 2], [6], [1, 1, 1, 1], [5, 5]]
    for found in two_processes.run(stepped, stage, losses, mode, denominator, size):
        assert found["loss/sft"] == found["loss/total"] == pytest.approx(mean) and found["norm"] == pytest.approx(mean)
        assert found["loss"] == pytest.approx(2.6) and found["weight"] == pytest.approx(1 - 0.1 * mean, abs=1e-6)


@pytest.mark.parametrize("stage", STAGES)
def test_a_figure_is_of_all_processes_and_all_micro_batches(two_processes, stage):  # case I4
    """Process 0 has the losses 1 and 3, process 1 has 5 and 7."""
    for found in two_processes.run(stepped, stage, [[1], [5], [3], [7]], "token", 4.0, 2):
        assert found["loss"] == found["loss/sft"] == found["loss/total"] == 4.0


def perplexity() -> dict[str, float]:
    with trainer_of(tiny_runs.sft(engine=zero(2)), OfflineTrainer) as trainer:
        trainer.engine = zero(2).build(tiny_runs.Ids())
        trainer.heldout = [rows([[1] * 10, [3] * 30])]
        return trainer.evaluate()


def test_perplexity_is_over_the_tokens_of_all_processes(two_processes):  # case I2
    for found in two_processes.run(perplexity):
        assert found["eval/loss"] == pytest.approx(2.5) and found["eval/perplexity"] == pytest.approx(12.182494)
