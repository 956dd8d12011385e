"""What a stage's data came to."""

import json

import tiny_runs

from rlhf.algorithms.objectives import Mixture
from rlhf.loops.offline import OfflineTrainer
from rlhf.loops.stage import OnlineStage


def test_rows_and_drops_by_source_and_reason(tmp_path):
    settings = tiny_runs.sft(data=tiny_runs.data("demonstration", max_prompt_tokens=4), steps=1)
    trainer = OfflineTrainer(settings, tiny_runs.context(tmp_path))
    trainer.fit()
    (toy,) = json.loads((tmp_path / "data.json").read_text())["data"].values()
    assert toy["train"] == len(trainer.data.train) and toy["heldout"] == len(trainer.data.heldout)
    assert toy["dropped"] == {"long_prompt": trainer.data.rows_dropped} and toy["dropped"]["long_prompt"] > 0
    assert toy["train"] + toy["heldout"] + toy["dropped"]["long_prompt"] == 24


def test_duplicates_stand_beside_the_drops(tmp_path):
    settings = tiny_runs.sft(data=tiny_runs.data("demonstration", duplicates="report", near_duplicates=0.5), steps=1)
    trainer = OfflineTrainer(settings, tiny_runs.context(tmp_path))
    trainer.fit()
    found = json.loads((tmp_path / "data.json").read_text())["findings"]
    assert found == {"data": list(trainer.data.findings)} and found["data"][0].startswith("near duplicates: ")


def test_the_mixtures_data_stand_beside_the_prompts(tmp_path):
    mixture = Mixture(data=tiny_runs.data("text", 10, eval_rows=0))
    OnlineStage(tiny_runs.ppo(mixture=mixture, iterations=1), tiny_runs.context(tmp_path)).fit()
    found = json.loads((tmp_path / "data.json").read_text())
    assert found["data"]["toy"]["train"] == 20 and found["mixture"]["toy"]["train"] == 10
    assert found["findings"] == {"data": [], "mixture": []}
