"""Two runs beside each other: settings, what else went in, costs."""

import json

import pytest
from run_folders import config, curve, simple, stage

from rlhf.errors import UserError
from rlhf.report.compare import Cost, Difference, compare, differing_settings, read_both
from rlhf.report.runs import read_run


def component(path, **settings):
    return {"class_path": path, "init_args": settings}


def record(folder, **content):
    (folder / "stage.json").write_text(json.dumps(content))


def two(tmp_path, first=None, second=None):
    """Two runs of one SFT stage each, with a record."""
    for name, content in (("a", first), ("b", second)):
        config(tmp_path / name, {"sft": component("rlhf.SFT")})
        record(stage(tmp_path / name / "sft", curve("loss", 1.0)), **(content or {}))
    return read_both(tmp_path / "a", tmp_path / "b")


def test_settings_by_their_keys_names_and_folders_left_aside(tmp_path):
    folders = [simple(tmp_path / name, lr=lr) for name, lr in (("a", 1e-3), ("b", 1e-4))]
    for folder in folders:
        path = folder / "config.yaml"
        path.write_text(path.read_text() + f"output_dir: {folder}\n")
    found = read_both(*folders)
    assert found.settings == [Difference("stages.ppo.optimizer.lr", "0.001", "0.0001")]
    assert [pair.name for pair in found.stages] == ["sft", "ppo"] and found.only == ([], [])


def test_equal_settings_are_not_told_however_they_are_written():
    one = {"lr": 1, "whiten": True, "groups": {}, "tokens": [1, 2]}
    assert differing_settings(one, {"tokens": [1, 2], "groups": {}, "whiten": True, "lr": 1.0}) == []
    assert differing_settings(one, {**one, "whiten": 1}) == [Difference("whiten", "true", "1")]


def test_lists_by_their_whole_lists_of_components_by_place():
    one = {"tokens": [1, 2], "sinks": [component("rlhf.TensorBoard"), component("rlhf.WandB", project="x")]}
    other = {"tokens": [2, 1], "sinks": [component("rlhf.TensorBoard"), component("rlhf.WandB", project="y")]}
    assert differing_settings(one, other) == [
        Difference("tokens", "[1, 2]", "[2, 1]"),
        Difference("sinks.1.project", "x", "y"),
    ]
    assert differing_settings({"sinks": []}, {"sinks": [component("rlhf.TensorBoard")]}) == [
        Difference("sinks.0", "-", "TensorBoard")
    ]


def test_another_component_has_its_own_settings_behind_its_name():
    one = {"advantage": component("rlhf.GAE", gamma=1.0, lam=0.95, whiten=True), "filter": None}
    other = {
        "advantage": component("rlhf.GroupNorm", scale="group", whiten=False),
        "filter": component("rlhf.Informative", tolerance=0.5, inner=component("rlhf.Inner", x=1)),
    }
    assert differing_settings(one, other) == [
        Difference("advantage", "GAE(gamma=1.0, lam=0.95)", "GroupNorm(scale=group)"),
        Difference("advantage.whiten", "true", "false"),  # both have it
        Difference("filter", "null", "Informative(tolerance=0.5, inner=Inner(x=1))"),
    ]


def test_the_nearest_component_that_differs_has_what_is_inside():
    one = component("rlhf.PPO", critic=component("rlhf.OwnTrunk", coef=1.0), advantage=component("rlhf.GAE", lam=0.5))
    other = component("rlhf.GRPO", critic=None, advantage=component("rlhf.GroupNorm"))
    assert differing_settings({"stages": {"ppo": one}}, {"stages": {"ppo": other}}) == [
        Difference("stages.ppo", "PPO", "GRPO"),
        Difference("stages.ppo.critic", "OwnTrunk(coef=1.0)", "null"),
        Difference("stages.ppo.advantage", "GAE(lam=0.5)", "GroupNorm"),
    ]


def test_a_group_without_a_class_against_null():
    assert differing_settings({"kl": {"where": "loss", "coef": 0.5}, "x": 1}, {"kl": None, "x": 2}) == [
        Difference("kl", "(where=loss, coef=0.5)", "null"),
        Difference("x", "1", "2"),
    ]


def test_classes_of_one_name_by_their_whole_paths():
    assert differing_settings({"kl": component("rlhf.KL", x=1)}, {"kl": component("mine.KL", x=1)}) == [
        Difference("kl", "rlhf.KL", "mine.KL")
    ]


def test_texts_that_would_not_be_seen_are_in_quotes():
    one = {"end": "", "format": "{prompt}", "number": "1", "name": "Grüße, 世界"}
    other = {"end": " ", "format": "{prompt}\n", "number": 1, "name": "Gruß"}
    assert differing_settings(one, other) == [
        Difference("end", '""', '" "'),
        Difference("format", "{prompt}", '"{prompt}\\n"'),
        Difference("number", '"1"', "1"),
        Difference("name", "Grüße, 世界", "Gruß"),
    ]


def test_settings_of_stages_that_one_alone_has_are_not_told(tmp_path):
    config(tmp_path / "a", {"sft": component("rlhf.SFT", steps=1), "reward": component("rlhf.RewardModelling")})
    config(tmp_path / "b", {"sft": component("rlhf.SFT", steps=2), "dpo": component("rlhf.DPO", beta=0.1)})
    found = read_both(tmp_path / "a", tmp_path / "b")
    assert found.settings == [Difference("stages.sft.steps", "1", "2")]
    assert [[(one.name, one.algorithm) for one in side] for side in found.only] == [
        [("reward", "RewardModelling")],
        [("dpo", "DPO")],
    ]
    assert [pair.name for pair in found.stages] == ["sft"]


def test_what_else_went_in_from_the_records(tmp_path):
    hashes = ["0123456789abcdef0123456789abcdef", "f" * 32]
    first = {
        "versions": {"torch": "2.1", "numpy": "1.26", "rlhf": "aaa"},
        "inputs": {"data.sources.toy": hashes[0], "only_here": hashes[0], "same": hashes[1]},
        "used_keys": {"sft": hashes[0], "reward": hashes[0]},
    }
    second = {
        "versions": {"torch": "2.2", "numpy": "1.26", "rlhf": "bbb", "peft": "0.1"},
        "inputs": {"data.sources.toy": None, "same": hashes[1]},
        "used_keys": {"sft": hashes[1], "reward": hashes[0]},
        "continued_from": "runs/c/sft/checkpoints/step_4",
    }
    found = two(tmp_path, first, second)
    assert found.recorded == ["sft"]
    assert found.circumstances == [
        Difference("torch", "2.1", "2.2", ("sft",)),
        Difference("code of rlhf", "aaa", "bbb", ("sft",)),
        Difference("peft", "-", "0.1", ("sft",)),
        Difference("content of data.sources.toy", "0123456789ab", "not known", ("sft",)),
        Difference("earlier stage @sft", "0123456789ab", "ffffffffffff", ("sft",)),
        Difference("continued from", "-", "runs/c/sft/checkpoints/step_4", ("sft",)),
    ]


def test_what_several_stages_have_alike_is_told_once(tmp_path):
    folders = [simple(tmp_path / name) for name in ("a", "b")]
    for folder, version in zip(folders, ("2.1", "2.2"), strict=True):
        for name in ("sft", "ppo"):
            record(folder / name, versions={"torch": version})
    assert read_both(*folders).circumstances == [Difference("torch", "2.1", "2.2", ("sft", "ppo"))]


def test_runs_without_records(tmp_path):
    found = two(tmp_path)
    assert found.recorded == [] and found.circumstances == []


def test_costs(tmp_path):
    rows = [
        {"step": step, "throughput/rollout_tokens_per_s": speed, "memory/peak_gb": memory}
        for step, speed, memory in ((1, 100.0, 1.0), (2, 300.0, 2.0), (3, None, 1.5))
    ]
    for name, done in (("a", True), ("b", False)):
        config(tmp_path / name, {"ppo": component("rlhf.PPO")})
        stage(tmp_path / name / "ppo", rows[: 3 if done else 1], done=done)
    assert read_both(tmp_path / "a", tmp_path / "b").costs == [
        Cost("ppo", "seconds", 75.0, None),  # what run_folders.stage writes; of one that goes on, not known
        Cost("ppo", "tokens/s sampled, mean", 200.0, 100.0),  # (100 + 300) / 2
        Cost("ppo", "peak memory, GB", 2.0, 1.0),
    ]


def test_copies_of_one_stage_have_cost_nothing_twice(tmp_path):
    for name in ("a", "b"):
        config(tmp_path / name, {"ppo": component("rlhf.PPO")})
        stage(tmp_path / name / "ppo", [{"step": 1, "loss": 2.0, "time/train": 3.0}])
    found = read_both(tmp_path / "a", tmp_path / "b")
    assert found.stages[0].same == "copy" and found.costs == []


def test_one_run_by_two_paths_is_refused(tmp_path):
    folder = simple(tmp_path / "toy")
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(UserError, match=r"are one run; give two$"):
        read_both(folder, tmp_path / "link")


def test_comparing_the_other_way_round_turns_every_sign(tmp_path):
    runs = [read_run(simple(tmp_path / name, lr=lr, response=name)) for name, lr in (("a", 1.0), ("b", 2.0))]
    (runs[1].directory / "ppo" / "metrics.jsonl").write_text(
        "".join(json.dumps({"step": n, "iteration": n, "eval/score": n, "new": 1.0}) + "\n" for n in (1, 2))
    )
    there, back = compare(*runs), compare(*runs[::-1])
    assert [(row.what, row.b, row.a) for row in there.settings] == [(row.what, row.a, row.b) for row in back.settings]
    ppo, turned = there.stages[1], back.stages[1]
    assert [(row.a, row.b, row.difference) for row in ppo.rows] == [(1.0, 2, 1.0)]  # 2/2 and 2
    assert [(row.a, row.b, row.difference) for row in turned.rows] == [(2, 1.0, -1.0)]
    assert ppo.only == turned.only[::-1] == (["kl/sequence", "mine/own"], ["new"])
    assert ppo.parting and turned.parting and ppo.parting.at == turned.parting.at == 1
    assert ppo.answers == turned.answers
