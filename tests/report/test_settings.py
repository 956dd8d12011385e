"""Settings for people."""

from rlhf.report.settings import changes, differences, flat, text

CONFIG = {
    "name": "toy",
    "seed": 1,
    "stages": {
        "sft": {
            "class_path": "rlhf.SFT",
            "init_args": {
                "steps": 7,
                "epochs": 1.0,
                "policy": {"class_path": "rlhf.Pretrained", "init_args": {"path": "x", "dropout": None}},
                "optimizer": {"class_path": "rlhf.AdamW", "init_args": {"lr": 1e-5, "weight_decay": 0.5}},
                "schedule": {"class_path": "rlhf.CosineDecay", "init_args": {"warmup": 3}},
                "data": {"max_tokens": 99, "eval_fraction": 0.05},
            },
        }
    },
}


def test_what_is_at_its_default_is_left_out():
    found = {change.key.removeprefix("stages.sft."): (change.value, change.default) for change in changes(CONFIG)}
    assert found["steps"] == ("7", "null") and "epochs" not in found and "seed" not in found
    assert found["policy"] == ("Pretrained", "") and found["policy.path"] == ("x", "") and "policy.dropout" not in found
    assert "optimizer" not in found and "optimizer.lr" not in found and found["optimizer.weight_decay"][0] == "0.5"
    assert found["schedule"] == ("CosineDecay", "Constant") and found["schedule.warmup"] == ("3", "0")
    assert found["data.max_tokens"] == ("99", "512") and "data.eval_fraction" not in found


def test_what_is_there_in_the_place_of_nothing_differs_whatever_stands_in_it():
    """Also at the defaults of its own class."""
    inside = {"score_normalization": {"samples": 256, "running": False}, "reference": None}
    config = {"stages": {"ppo": {"class_path": "rlhf.PPO", "init_args": inside}}}
    found = {change.key: (change.value, change.default) for change in changes(config)}
    assert found["stages.ppo.score_normalization"] == ('{"samples": 256, "running": false}', "null")
    assert "stages.ppo.reference" not in found


def test_a_class_that_is_not_here_shows_all_its_settings():
    config = {"stages": {"mine": {"class_path": "my_module.Mine", "init_args": {"a": {"b": [1, 2]}, "c": None}}}}
    assert [(c.key, c.value) for c in changes(config)] == [
        ("stages.mine", "Mine"),
        ("stages.mine.a.b", "[1, 2]"),
        ("stages.mine.c", "null"),
    ]


def test_settings_that_this_version_does_not_know_are_shown():
    config = {"stages": {"sft": {"class_path": "rlhf.SFT", "init_args": {"gone": 3}}}}
    assert ("stages.sft.gone", "3", "") in changes(config)


def test_differences_between_runs():
    other = {**CONFIG, "seed": 2, "extra": True}
    assert differences([CONFIG, other]) == [("seed", ["1", "2"]), ("extra", ["—", "true"])]
    assert differences([CONFIG, CONFIG]) == []


def test_components_are_their_name_and_their_settings():
    assert flat({"a": CONFIG["stages"]["sft"]["init_args"]["schedule"]}) == {"a": "CosineDecay", "a.warmup": 3}
    assert text({"class_path": "rlhf.GAE", "init_args": {"lam": 0.9}}) == 'GAE({"lam": 0.9})'
