"""Settings as data: written out, compared, and with references put in. More of references in ``test_experiment.py``."""

import json

import pytest
import tiny_runs

from rlhf.algorithms.optimizers import AdamW
from rlhf.data.dataset import Data
from rlhf.data.sources import Files
from rlhf.models.policy import Pretrained
from rlhf.models.rewards import ScalarReward
from rlhf.stages.settings import differences, missing_inputs, references, resolve, settings_tree, used_stages


def test_settings_and_differences():
    tree = settings_tree(tiny_runs.sft())
    assert tree["class_path"] == "rlhf.algorithms.sft.SFT" and tree["optimizer"]["lr"] == 1e-2
    other = settings_tree(tiny_runs.sft(optimizer=AdamW(lr=2e-2), steps=3))
    assert differences(tree, other) == ["steps: None → 3", "optimizer.lr: 0.01 → 0.02"]
    assert differences({"a": 1}, {"b": {"c": 2}}) == ["a: 1 → absent", "b: absent → {'c': 2}"]


def test_the_stages_that_are_used():
    algorithm = tiny_runs.ppo(
        policy=Pretrained(path="@sft/ema"), reference=Pretrained(path="@sft"), reward=ScalarReward(path="@reward")
    )
    assert used_stages(algorithm) == ["sft", "reward"]
    assert [path for _, path in references(algorithm)] == ["@sft/ema", "@reward", "@sft"]
    folders = {"@sft": "a", "@sft/ema": "b", "@reward": "c"}
    resolved = resolve(algorithm, folders)
    assert (resolved.policy.path, resolved.reference.path, resolved.reward.path) == ("b", "a", "c")
    same = tiny_runs.sft()
    assert resolve(same, {}) is same


@pytest.mark.parametrize("there", [True, False])
def test_missing_inputs_are_named_with_their_place(tmp_path, there):
    path = tmp_path / "rows.jsonl"
    if there:
        path.write_text('{"prompt": "a", "response": "b"}\n')
    algorithm = tiny_runs.sft(data=Data(sources={"x": Files(path=str(path))}), policy=Pretrained(path="@sft"))
    found = list(missing_inputs(algorithm, "stages.s"))
    assert [text.partition(":")[0] for text in found] == ([] if there else ["stages.s.data.sources.x"])


class Bare:
    """Settings of somebody's that are no dataclass."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale


def test_components_that_are_no_dataclass_are_data_too():
    tree = settings_tree({"part": Bare(2.0), "other": [Bare()]})
    assert tree["part"]["scale"] == 2.0 and tree["part"]["class_path"].endswith(".Bare")
    assert tree["other"][0]["scale"] == 1.0 and json.dumps(tree)
