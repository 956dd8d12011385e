"""The command: its help, its exit codes, and what it prints."""

import os
import subprocess
import sys

import pytest

from rlhf.algorithms.kl import Adaptive
from rlhf.errors import UserError
from rlhf.experiment import Experiment
from rlhf.report.frame import MissingPackage
from rlhf.run import main
from rlhf.types import Tally
from rlhf.yaml_files import parse

CONFIG = """
name: toy
stages:
  sft:
    class_path: SFT
    init_args:
      policy: {class_path: Pretrained, init_args: {path: somewhere}}
      data: {sources: {reviews: {class_path: Files, init_args: {path: reviews.jsonl}}}}
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "exp.yaml"
    path.write_text(CONFIG)
    return str(path)


def test_print_config_prints_every_setting_and_runs_nothing(config, capsys, monkeypatch):
    monkeypatch.setattr(Experiment, "run", lambda *_, **__: pytest.fail("ran"))
    assert main(["--config", config, "--print_config", "--stages.sft.batch_size", "4"]) == 0
    printed = parse(capsys.readouterr().out)
    assert printed["stages"]["sft"]["class_path"] == "rlhf.SFT"
    assert printed["stages"]["sft"]["init_args"]["batch_size"] == 4


def test_the_experiment_is_run_and_reported(config, monkeypatch, capsys):
    calls = []

    def run(self, *, overwrite, resume, console):
        calls.append((self.seed, overwrite, resume))

    monkeypatch.setattr(Experiment, "run", run)
    monkeypatch.setattr("rlhf.report.page.write_report", lambda runs: runs[0] / "report.html")
    assert main(["--config", config, "--seed", "5"]) == 0
    assert capsys.readouterr().out.endswith("report: runs/toy/report.html\n")
    assert main(["--config", config, "--overwrite"]) == 0
    assert main(["--config", config, "--overwrite", "sft", "ppo", "--seed", "3", "--resume", "never"]) == 0
    assert calls == [(5, False, "auto"), (1, True, "auto"), (3, ["sft", "ppo"], "never")]


def test_the_report_may_be_left_out(config, monkeypatch, capsys):
    monkeypatch.setattr(Experiment, "run", lambda *_, **__: None)
    for place in ("rlhf.report.page.write_report", "rlhf.summary.draw_curves"):
        monkeypatch.setattr(place, lambda *_: pytest.fail("drawn"))
    assert main(["--config", config, "--no_report"]) == 0
    assert "report" not in capsys.readouterr().out


def test_a_run_is_whole_without_the_packages_of_the_report(config, monkeypatch, capsys):
    def write_report(_):
        raise MissingPackage("report: not written, the package plotly is missing; pip install 'rlhf[report]'")

    monkeypatch.setattr(Experiment, "run", lambda *_, **__: None)
    monkeypatch.setattr("rlhf.report.page.write_report", write_report)
    assert main(["--config", config]) == 0
    assert "pip install 'rlhf[report]'" in capsys.readouterr().out


# case H1
def test_a_wrong_config_is_exit_code_2_and_a_message(config, capsys, monkeypatch):
    monkeypatch.setattr(Experiment, "run", lambda *_, **__: pytest.fail("ran"))
    assert main(["--config", config, "--stages.sft.learning_ratee", "1", "--sed", "2"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("2 problems in the config:\n")
    assert "--" not in error and "command line: sed: Experiment has no setting 'sed'. Did you mean seed?" in error
    assert "stages.sft.learning_ratee: SFT has no setting 'learning_ratee'" in error
    assert "Traceback" not in error


def test_without_a_config_the_usage_is_shown(capsys):
    assert main([]) == 2
    assert "--config" in capsys.readouterr().err


def test_a_mistake_met_while_running_is_exit_code_1_and_a_message(config, capsys, tmp_path, monkeypatch):
    assert main(["--config", config, "--output_dir", str(tmp_path), "--name", "a/b"]) == 2  # refused before running
    monkeypatch.setattr(Experiment, "run", lambda self, **_: self.stages["sft"].data.sources["reviews"].missing())
    with pytest.raises(AttributeError):  # a bug: its traceback is needed
        main(["--config", config])
    capsys.readouterr()

    def run(self, **_):
        raise UserError("the folder is full")

    monkeypatch.setattr(Experiment, "run", run)
    assert main(["--config", config]) == 1
    assert capsys.readouterr().err == "Error: the folder is full\n"
    monkeypatch.setenv("RLHF_TRACEBACK", "1")
    with pytest.raises(UserError):
        main(["--config", config])


def test_what_our_code_refuses_is_a_message_and_what_breaks_in_it_a_traceback(config, capsys, monkeypatch):
    monkeypatch.setattr(Experiment, "run", lambda *_, **__: Adaptive(target=-1.0))
    assert main(["--config", config]) == 1
    assert capsys.readouterr().err.startswith("Error: target is -1.0")
    for broken in (lambda *_, **__: Tally().sum("x", "no number"), lambda *_, **__: float("no number")):
        monkeypatch.setattr(Experiment, "run", broken)
        with pytest.raises(ValueError, match="could not convert"):
            main(["--config", config])


def test_interrupting_is_one_line_and_exit_code_130(config, capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Experiment, "run", interrupt)
    assert main(["--config", config]) == 130
    assert capsys.readouterr().err == "\nInterrupted.\n"


def test_help_lists_the_settings_and_imports_nothing_heavy():
    code = (
        "import sys; from rlhf.run import main; code = main(['--help']); "
        "print([m for m in ('transformers', 'datasets', 'tokenizers', 'matplotlib', 'pandas') if m in sys.modules]); "
        "sys.exit(code)"
    )
    environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.endswith("[]\n")
    for wanted in (
        "--config",
        "--print_config",
        "--overwrite",
        "stages: dict[str, Algorithm]",
        "python -m rlhf.components",
    ):
        assert wanted in done.stdout


def test_importing_the_package_imports_no_torch():
    code = "import sys, rlhf, rlhf.run; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


SHOWN = """
name: shown
stages:
  sft:
    class_path: SFT
    init_args:
      policy:
        class_path: FromScratch
        init_args: {vocab_size: 260, config: {model_type: gpt2, n_layer: 1, n_embd: 8, n_head: 1}}
      data:
        sources:
          asked: {class_path: Files, init_args: {path: FOLDER/asked.jsonl, columns: hc3}}
          judged:
            class_path: Files
            init_args:
              path: FOLDER/judged.jsonl
              columns: {prompt: q, chosen: {best: {1: one, 2: two}}}
        template: {class_path: Plain, init_args: {prompt_format: "Q: {prompt}\\nA:"}}
        templates:
          judged: {class_path: Plain, init_args: {prompt_format: "{prompt} >"}}
        eval_rows: 0
      batch_size: 2
  reward:
    class_path: RewardModelling
    init_args:
      model: {class_path: Pretrained, init_args: {path: "@sft"}}
      data: {sources: {world: {class_path: World, init_args: {form: comparisons}}}}
"""


def test_show_batch_prints_the_first_rows_and_runs_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Experiment, "run", lambda *_, **__: pytest.fail("ran"))
    (tmp_path / "asked.jsonl").write_text(
        '{"question": "Why?", "human_answers": ["So."], "chatgpt_answers": ["As."]}\n'
    )
    (tmp_path / "judged.jsonl").write_text('{"q": "How", "one": "Fast", "two": "Slowly\\nbut well", "best": 2}\n')
    path = tmp_path / "exp.yaml"
    path.write_text(SHOWN.replace("FOLDER", str(tmp_path)))
    assert main(["--config", str(path), "--output_dir", str(tmp_path / "runs"), "--show_batch"]) == 0
    text = capsys.readouterr().out
    assert "source asked, " in text and "\nQ: Why?\nA:⟦So.<|end|>⟧\n" in text
    assert "source judged, " in text and "\nHow >⟦Slowly\nbut well<|end|>⟧\n" in text
    assert text.endswith("reward: not shown, as @sft is not there yet; run the experiment up to that stage first\n")
    assert not (tmp_path / "runs").exists()


def test_show_batch_says_which_stage_cannot_be_shown(tmp_path, capsys):
    path = tmp_path / "exp.yaml"
    path.write_text(SHOWN.replace("FOLDER", str(tmp_path)))
    assert main(["--config", str(path), "--show_batch"]) == 1
    assert capsys.readouterr().err.startswith(
        f"Error: stage sft: data.sources.asked: {tmp_path}/asked.jsonl: no such file"
    )
