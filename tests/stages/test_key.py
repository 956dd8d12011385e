"""What a stage's key depends on, and what it does not."""

import dataclasses
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_runs
from rich.console import Console

from rlhf.algorithms.objectives import Mixture
from rlhf.data.dataset import Data
from rlhf.data.sources import Files, Generator
from rlhf.experiment import Experiment
from rlhf.models.policy import Pretrained
from rlhf.models.rewards import FunctionReward, ScalarReward, StepFunctionReward, Weighted
from rlhf.stages import key as keys
from rlhf.stages.key import Inputs, changed_inputs, explain, identity, keys_of, stage_key, versions

ROWS = [{"prompt": "a", "response": "b"}, {"prompt": "c", "response": "d"}]


def inputs(algorithm) -> dict[str, str | None]:
    return Inputs(None).of(algorithm)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def test_files_count_by_content(file, tmp_path):
    algorithm = tiny_runs.sft(data=Data(sources={"x": Files(path=str(file))}))
    before = inputs(algorithm)
    assert set(before) == {"data.sources.x"}
    file.touch()
    assert inputs(algorithm) == before
    file.write_text(file.read_text().replace("d", "e"))
    assert inputs(algorithm) != before
    assert changed_inputs(before, inputs(algorithm)) == ["data.sources.x: its content has changed since"]
    file.unlink()
    gone = inputs(algorithm)
    assert gone == {"data.sources.x": None} and changed_inputs(before, gone) == []


COUNT = {"rows": 6, "calls": 0}


def counted(**_) -> Iterator[dict[str, Any]]:
    COUNT["calls"] += 1
    yield from tiny_runs.rows("demonstration", COUNT["rows"])


def test_rows_of_functions_count_by_content_and_are_made_once(monkeypatch):
    source = Generator(function="test_key.counted")
    monkeypatch.setitem(__import__("sys").modules, "test_key", __import__("sys").modules[__name__])
    one, other = tiny_runs.sft(data=Data(sources={"x": source})), tiny_runs.sft(data=Data(sources={"y": source}))
    looked = Inputs(None)
    first, second = looked.of(one), looked.of(other)
    assert COUNT["calls"] == 1 and first["data.sources.x"] == second["data.sources.y"] is not None
    monkeypatch.setitem(COUNT, "rows", 7)
    assert inputs(one) != first


def test_mixtures_and_models_inside_are_looked_at(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    algorithm = tiny_runs.ppo(
        policy=Pretrained(path=str(tmp_path / "m")),
        reference=Pretrained(path="@sft"),
        reward=Weighted(
            models={"a": ScalarReward(path="somebody/model"), "b": tiny_runs.LETTERS}, weights={"a": 1, "b": 1}
        ),
        mixture=Mixture(data=tiny_runs.data("text")),
    )
    before = inputs(algorithm)
    assert set(before) == {"policy.path", "reward.models.b", "data.sources.toy", "mixture.data.sources.toy"}
    (tmp_path / "m" / "config.json").write_text("{ }")
    assert changed_inputs(before, inputs(algorithm)) == ["policy.path: its content has changed since"]
    (tmp_path / "m" / "other.json").write_text("")  # an empty file counts too
    assert len({before["policy.path"], inputs(algorithm)["policy.path"]}) == 2
    assert inputs(tiny_runs.sft(policy=Pretrained(path=str(tmp_path / "nowhere"))))["policy.path"] is None


def test_the_file_of_a_function_counts_and_this_packages_own_are_in_the_versions(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "reward_of_mine.py"
    module.write_text("def score(prompts, responses): return [0.0]\n")
    reward = FunctionReward(function="reward_of_mine.score")
    before = inputs(tiny_runs.ppo(reward=reward))
    module.write_text("def score(prompts, responses): return [1.0]\n")
    assert changed_inputs(before, inputs(tiny_runs.ppo(reward=reward))) == ["reward: its content has changed since"]
    assert StepFunctionReward(function="reward_of_mine.score").fingerprint() == reward.fingerprint()
    assert FunctionReward(function="rlhf.data.world.gold_reward").fingerprint() is None
    assert FunctionReward(function="sys.getsizeof").fingerprint() is None  # built in: no file


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mine(Pretrained):
    """A policy of somebody's own."""


def test_the_file_of_a_class_of_ones_own_counts():
    assert "policy (its class)" in inputs(tiny_runs.sft(policy=Mine(path="@sft")))
    assert "policy (its class)" not in inputs(tiny_runs.sft(policy=Pretrained(path="@sft")))


def test_replayed_rollouts_count(tmp_path):
    (tmp_path / "iteration_000001.jsonl").write_text("{}\n")
    algorithm = tiny_runs.ppo(replay=str(tmp_path))
    before = inputs(algorithm)["(itself)"]
    (tmp_path / "iteration_000001.jsonl").write_text("{ }\n")
    assert before is not None and inputs(algorithm)["(itself)"] != before


def test_settings_without_influence_are_left_out():
    usual = identity(tiny_runs.sft(), seed=1, threads=None)
    assert usual == identity(tiny_runs.sft(save_every=7), seed=1, threads=None)
    assert usual != identity(tiny_runs.sft(batch_size=8), seed=1, threads=None)
    assert usual != identity(tiny_runs.sft(), seed=2, threads=None) != identity(tiny_runs.sft(), seed=2, threads=1)
    assert usual["class_path"] == "rlhf.algorithms.sft.SFT"


def test_the_key(monkeypatch):
    usual: dict[str, Any] = {"stage_seed": 1, "settings": {"a": 1}, "inputs": {"x": "h"}, "used": {"sft": "k"}}
    others = [
        {"stage_seed": 2},
        {"settings": {"a": 2}},
        {"inputs": {"x": "i"}},
        {"inputs": {"y": "h"}},
        {"used": {"sft": "l"}},
    ]
    found = [stage_key(**{**usual, **other}) for other in [{}, *others]]
    assert stage_key(**usual) == found[0] and len({*found}) == 6
    for unknown in ({"inputs": {"x": None}}, {"used": {"sft": None}}):
        assert stage_key(**{**usual, **unknown}) is None
    monkeypatch.setattr(keys, "versions", lambda: {"torch": "0"})
    assert stage_key(**usual) not in found


def test_versions_are_of_packages_and_of_the_source(monkeypatch):
    import torch

    assert versions()["torch"] == torch.__version__.partition("+")[0] or versions()["torch"] == torch.__version__
    assert {"torch", "transformers", "tokenizers", "rlhf"} <= versions().keys()
    monkeypatch.setattr(keys, "CODE", ("types.py", "algorithms"))
    assert versions.__wrapped__()["rlhf"] != versions()["rlhf"]
    monkeypatch.setattr(keys, "PACKAGES", ("torch", "no-such-package"))
    assert versions.__wrapped__().keys() == {"torch", "rlhf"}


def test_everything_that_counts_as_source_is_there():
    home = Path(keys.__file__).parents[1]
    assert [name for name in keys.CODE if not (home / name).exists()] == []


def test_what_differs_is_told_most_telling_first():
    old = {"settings": {"a": 1}, "inputs": {"x": "h"}, "used_keys": {"sft": "k"}, "versions": {"torch": "1"}}
    new = {"settings": {"a": 2}, "inputs": {"x": "i"}, "used_keys": {"sft": "l"}, "versions": {"torch": "2"}}
    told = ["a: 1 → 2", "x: its content has changed since", "@sft: is another", "torch: 1 → 2"]
    assert explain(old, new) == told and explain(old, old) == []


def test_a_stage_with_a_seed_of_its_own_has_the_key_of_a_run_with_that_seed(tmp_path):
    def keys(**settings):
        stages = {"sft": tiny_runs.sft(), "ppo": tiny_runs.ppo(policy=Pretrained(path="@sft")), "lone": tiny_runs.ppo()}
        experiment = Experiment(name="a", output_dir=str(tmp_path), stages=stages, cache_dir=None, **settings)
        return keys_of(experiment, Inputs(None))

    one, two = keys(seed=1), keys(seed=2)
    own = keys(seed=1, stage_seeds={"ppo": 2, "lone": 2})
    assert own["sft"] == one["sft"] and own["lone"] == two["lone"] != one["lone"]
    assert own["ppo"] not in (one["ppo"], two["ppo"])  # of the first one's sft, with the second one's seed
    assert None not in own.values() and len({*one.values(), *two.values()}) == 6


def test_keys_that_are_known_before_are_those_that_a_run_writes(tmp_path):
    stages = {"sft": tiny_runs.sft(steps=1), "two": tiny_runs.sft(policy=Pretrained(path="@sft"), steps=1)}
    experiment = Experiment(
        name="a", output_dir=str(tmp_path), stages=stages, cache_dir=None, stage_cache=None, stage_seeds={"two": 5}
    )
    known = keys_of(experiment, Inputs(None))
    experiment.run(console=Console(file=io.StringIO()))
    written = {stage: json.loads((tmp_path / "a" / stage / "stage.json").read_text())["key"] for stage in stages}
    assert written == known
