"""What a person may give by mistake as a config: a message with value, place and remedy, and code 2."""

import pytest
import yaml
from yaml_stages import pretrained, refused, sft

from rlhf.run import main


# case H1
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "exp.yaml"),
        ("", "exp.yaml: is empty"),
        ("# nothing\n", "exp.yaml: is empty"),
        ("- sft\n- ppo\n", "exp.yaml: holds a list; its top level must be keys"),
        ("name: [", "exp.yaml: is not YAML"),
        ("name: toy\n", "stages"),
        ("name: toy\nstages: {}\n", "stages"),
        ("name: toy\nstages: {sft: {class_path: SFTT}}\n", "Did you mean SFT?"),
    ],
)
def test_config_files(here, capsys, text, message):
    if text is not None:
        (here / "exp.yaml").write_text(text)
    code = main(["--config", "exp.yaml"])
    refused((code, capsys.readouterr().err), 2, message)
    assert not (here / "runs").exists()


def test_a_folder_for_a_config(here, capsys):
    code = main(["--config", str(here)])
    refused((code, capsys.readouterr().err), 2, f"{here}: cannot be read: [Errno 21] Is a directory")


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"learning_ratee": 1}, ["stages.s0.learning_ratee: SFT has no setting 'learning_ratee'"]),
        ({"batch_size": "many"}, ["stages.s0.batch_size: 'many' is not of type int"]),
        ({"batch_size": 2.5}, ["stages.s0.batch_size: 2.5 is not of type int"]),
        ({"batch_size": None}, ["stages.s0.batch_size: "]),
        ({"batch_size": 0}, ["stages.s0.batch_size: is 0; must be at least 1"]),
        (
            {"optimizer": {"class_path": "AdamW", "init_args": {"lr": "fast"}}},
            ["stages.s0.optimizer.lr: 'fast' is not of"],
        ),
        (
            {"optimizer": {"class_path": "AdamW", "init_args": {"lr": -1.0}}},
            ["stages.s0.optimizer (AdamW): lr is -1.0; must be at least 0"],
        ),
        ({"optimizer": "Adam"}, ["No Optimizer is called 'Adam'", "Did you mean AdamW?"]),
        # case H4
        (
            {"batch_size": 6, "engine": {"class_path": "Local", "init_args": {"micro_batch_size": 4}}},
            ["6 % 4 = 2, not 0"],
        ),
    ],
)
def test_settings(run, here, settings, parts):
    refused(run(sft(**settings)), 2, *parts)
    assert not (here / "runs").exists()


# case H2
def test_words_for_booleans(run, here):
    refused(run(sft(packing="maybe")), 2, "stages.s0.packing: 'maybe' is not of type bool")
    assert run(sft(packing=True), arguments=["--stages.s0.packing", "no", "--quiet"])[0] == 0
    assert yaml.safe_load((here / "runs/toy/config.yaml").read_text())["stages"]["s0"]["init_args"]["packing"] is False


def test_references(run):
    refused(run(sft(policy=pretrained("@ppo"))), 2, "stages.s0.policy.path: no earlier stage leaves '@ppo'")
