"""An empty folder, the command that runs stages in it, and models that are whole."""

import shutil
from pathlib import Path

import pytest
import tiny_runs
import yaml
from yaml_stages import PAIRS, ROWS, SCRATCH, lines, sft

from rlhf.run import main


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A policy and a reward model that are whole."""
    directory = tmp_path_factory.mktemp("models")
    lines(directory / "rows.jsonl", ROWS)
    lines(directory / "pairs.jsonl", PAIRS)
    pairs = {"policy": None, "model": SCRATCH}
    reward = sft(directory / "pairs.jsonl", **pairs)
    reward = {"class_path": "RewardModelling", "init_args": {k: v for k, v in reward["init_args"].items() if v}}
    config = {
        "name": "whole",
        "output_dir": str(directory),
        "stages": {"sft": sft(directory / "rows.jsonl"), "rm": reward},
    }
    (directory / "whole.yaml").write_text(yaml.safe_dump(config))
    assert main(["--config", str(directory / "whole.yaml"), "--quiet"]) == 0
    return directory / "whole"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rlhf.summary.draw_curves", lambda *_: None)  # seconds that no test here looks at
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    lines(tmp_path / "rows.jsonl", ROWS)
    return tmp_path


@pytest.fixture
def run(here, capsys):
    """Runs stages through the command: exit code and message."""

    def run(*stages, arguments=(), **named):
        config = {
            "name": "toy",
            "output_dir": "runs",
            "stages": {f"s{n}": stage for n, stage in enumerate(stages)} | named,
        }
        (here / "exp.yaml").write_text(yaml.safe_dump(config))
        capsys.readouterr()
        code = main(["--config", "exp.yaml", *arguments])
        return code, capsys.readouterr().err

    return run


@pytest.fixture
def log(here, capsys):
    """What a run says, and the figures it leaves."""

    def log(stage, rows):
        lines(here / "rows.jsonl", rows)
        shutil.rmtree(here / "runs", ignore_errors=True)
        (here / "exp.yaml").write_text(yaml.safe_dump({"name": "toy", "stages": {"s0": stage}}))
        capsys.readouterr()
        assert main(["--config", "exp.yaml"]) == 0
        return capsys.readouterr().out, tiny_runs.metrics(here / "runs/toy/s0")

    return log
