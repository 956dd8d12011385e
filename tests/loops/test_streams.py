"""The order of an on-policy stage's prompts."""

import tiny_runs

from rlhf.loops.online import OnlineTrainer
from rlhf.loops.streams import next_prompts, prompt_stream


def test_they_are_those_that_the_trainer_answers(tmp_path):
    settings = tiny_runs.ppo(samples_per_prompt=2)
    trainer = OnlineTrainer(settings, tiny_runs.context(tmp_path))
    stream = prompt_stream(settings, trainer.data, seed=trainer.context.seed_for("order"))
    for _ in range(3):
        mine, its = next_prompts(settings, stream), trainer.next_prompts()
        assert len(mine) == 4 and mine.ids == its.ids
