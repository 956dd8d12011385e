"""Supervised fine-tuning: its loss, and that it learns."""

import pytest
import tiny_runs
import torch

from rlhf.data.examples import DemonstrationExample
from rlhf.loops.offline import OfflineTrainer
from rlhf.types import Outputs

# The end id is 0, and so is the pad: a mask made from ids would lose the end, and the marker inside the prompt.
MARKED = DemonstrationExample(prompt_ids=[7, 0, 8], response_ids=[5, 6, 0])
SHORT = DemonstrationExample(prompt_ids=[3], response_ids=[4])


def test_loss_is_the_negative_log_likelihood_of_the_response():  # case A3
    sft = tiny_runs.sft()
    batch = sft.collate([MARKED, SHORT], pad_id=0)
    assert batch.sequences.attention_mask.sum(1).tolist() == [6, 2]
    assert batch.mask.tolist() == [[False, False, True, True, True], [True, False, False, False, False]]
    logprobs = -torch.tensor([[9.0, 9.0, 1.0, 2.0, 3.0], [6.0, 9.0, 9.0, 9.0, 9.0]])
    (term,), tally = sft.loss(Outputs(logprobs=logprobs), batch)
    assert sft.denominators(batch) == {"sft": 4.0}
    assert tally.compute() == {"loss": 3.0}  # (1 + 2 + 3 + 6) / 4
    assert (term.name, term.mode, term.coef) == ("sft", "token", 1.0)
    assert float(term.values[term.mask].sum()) == 12.0


def test_the_prompt_may_be_learned_too():
    batch = tiny_runs.sft(train_on_prompt=True).collate([MARKED], pad_id=0)
    assert batch.mask.tolist() == [[True] * 5]


def test_packing_puts_examples_in_one_row():
    sft = tiny_runs.sft(packing=True, data=tiny_runs.data("demonstration", max_tokens=8))
    batch = sft.collate([MARKED, SHORT], pad_id=0)
    assert len(batch) == 1 and sft.denominators(batch) == {"sft": 4.0}


@pytest.mark.parametrize("packing", [False, True])
def test_it_memorises(tmp_path, packing):
    data = tiny_runs.data("demonstration", 6, eval_rows=1)
    sft = tiny_runs.sft(data=data, packing=packing, steps=60, policy=tiny_runs.policy(width=32))
    trainer = OfflineTrainer(sft, tiny_runs.context(tmp_path))
    losses = [trainer.train_step(trainer.next_batch())["loss"] for _ in range(sft.steps or 0)]
    assert losses[0] > 4 and losses[-1] < 0.3
