"""Folders of a run that cannot be made, are another run's, were damaged, or lie on a full disk.

Nothing is half done after a mistake: no stage of the run is taken for finished, and none for begun that was not.
"""

import shutil
import subprocess

import pytest
import tiny_runs
import yaml
from yaml_stages import ppo, refused, sft

from rlhf.run import main


def test_a_folder_of_another_config(run, here):
    assert run(sft(), arguments=["--quiet"]) == (0, "")
    before = (here / "runs/toy/config.yaml").read_text()
    answer = run(sft(batch_size=4))
    refused(answer, 1, "runs/toy/s0 holds a stage that was run otherwise", "batch_size: 32 → 4", "--overwrite")
    assert (here / "runs/toy/config.yaml").read_text() == before


def test_an_output_folder_that_cannot_be_made(run):
    answer = run(sft(), arguments=["--output_dir", "/proc/x"])
    refused(answer, 2, "output_dir: /proc/x/toy cannot be made (No such file or directory); give another")


def test_a_file_for_the_output_folder(run, here):
    (here / "runs").write_text("x")
    refused(run(sft()), 2, "output_dir: runs is a file, so no folder can be made there; give another")


@pytest.mark.parametrize(("file", "content"), [("stage.json", "{"), ("done.json", "")])
def test_files_of_a_run_that_were_damaged(run, here, file, content):
    assert run(sft(save_every=1, steps=3), arguments=["--quiet"])[0] == 0
    (here / "runs/toy/s0" / file).write_text(content)
    answer = run(sft(save_every=1, steps=3))
    refused(answer, 1, f"runs/toy/s0/{file}")


def test_checkpoints_of_a_run_that_were_damaged(run, here, capsys):  # case F6
    assert run(sft(save_every=1, steps=3), arguments=["--quiet"])[0] == 0
    stage = here / "runs/toy/s0"
    for file, said in (
        ("latest", "latest names 'step_9', which is not there; going on from step_2"),
        ("step_2/state.pt", "step_2 is damaged: state.pt has 6 bytes, and"),
    ):
        (stage / "done.json").unlink()
        (stage / "checkpoints" / file).write_text("step_9")
        assert main(["--config", "exp.yaml"]) == 0
        assert said in " ".join(capsys.readouterr().out.split())
    (stage / "done.json").unlink()
    for step in (1, 2):
        (stage / f"checkpoints/step_{step}/state.pt").write_text("half")
    refused(run(sft(save_every=1, steps=3)), 1, "step_1 is damaged", "no other to go on from", "--resume never")
    assert run(sft(save_every=1, steps=3), arguments=["--quiet", "--resume", "never"]) == (0, "")


def test_resuming_from_a_wrong_path(run, here):
    refused(run(sft(), arguments=["--resume", "nowhere"]), 1, "--resume: nowhere is no folder", "auto, never")
    assert run(sft(save_every=1, steps=3), arguments=["--quiet"])[0] == 0
    answer = run(sft(save_every=1, steps=3), arguments=["--name", "b", "--resume", "runs/toy/s0"])
    refused(answer, 1, "runs/toy/s0 holds checkpoints and is none; give one of runs/toy/s0/checkpoints/step_1")
    refused(run(sft(), arguments=["--overwrite", "s1"]), 1, "--overwrite: no stage is called 's1'; there are s0")


def test_replay(run, here):
    refused(run(ppo(replay="nowhere")), 2, "stages.s0: replay: nowhere is no folder")
    assert run(ppo(save_rollouts="all"), arguments=["--quiet", "--name", "first"])[0] == 0
    file = here / "runs/first/s0/rollouts/iteration_000001.jsonl"
    assert run(ppo(replay=str(file.parent)), arguments=["--quiet"])[0] == 0
    file.write_text(file.read_text()[:-20])
    answer = run(ppo(replay=str(file.parent)), arguments=["--name", "second"])
    refused(answer, 1, "iteration_000001.jsonl line 4 is not JSON", "is the file cut?")


@pytest.fixture
def small_disk(here):
    """A disk with little room; ``grow()`` makes it large. Skipped where this process may not mount one."""
    disk = here / "disk"
    disk.mkdir()
    if shutil.which("mount") is None or subprocess.run(["mount", "-t", "tmpfs", "tmpfs", disk]).returncode:
        pytest.skip("needs the right to mount a file system")

    def resize(size):
        subprocess.run(["mount", "-o", f"remount,size={size}", disk], check=True)

    yield disk, resize
    subprocess.run(["umount", disk], check=True)


def test_a_disk_that_is_full_while_saving(here, small_disk, capsys):  # case F6
    disk, resize = small_disk
    config = {"name": "toy", "stages": {"s0": sft(save_every=1, steps=4, batch_size=4)}}
    (here / "exp.yaml").write_text(yaml.safe_dump(config))
    assert main(["--config", "exp.yaml", "--quiet", "--output_dir", "whole"]) == 0
    one = sum(path.stat().st_size for path in (here / "whole/toy/s0/checkpoints/step_3").iterdir())
    resize(int(2.6 * one))  # room for two checkpoints, and two are kept while the third is written
    command = ["--config", "exp.yaml", "--quiet", "--output_dir", str(disk)]
    assert main(command) == 1
    error = capsys.readouterr().err
    checkpoints = disk / "toy/s0/checkpoints"
    assert f"No space left on device: '{checkpoints / 'step_3'}'. Make room, and run the same command again" in error
    assert sorted(path.name for path in checkpoints.iterdir()) == ["latest", "step_1", "step_2"]
    assert (checkpoints / "latest").read_text() == "step_2" and not (disk / "toy/s0/done.json").exists()
    resize("64m")
    assert main(command[:2] + command[3:]) == 0
    assert "s0: continues from step 2" in capsys.readouterr().out
    assert tiny_runs.same_weights(disk / "toy/s0/model", here / "whole/toy/s0/model")
    assert tiny_runs.metrics(disk / "toy/s0") == tiny_runs.metrics(here / "whole/toy/s0")


def test_a_disk_that_is_full_while_the_model_is_saved(here, small_disk, capsys):  # case F6
    disk, resize = small_disk
    (here / "exp.yaml").write_text(yaml.safe_dump({"name": "toy", "stages": {"s0": sft()}}))
    resize("48k")
    command = ["--config", "exp.yaml", "--quiet", "--output_dir", str(disk)]
    assert main(command) == 1
    assert f"No space left on device: '{disk / 'toy/s0/model'}'. Make room" in capsys.readouterr().err
    assert not (disk / "toy/s0/model").exists() and not (disk / "toy/s0/done.json").exists()
    resize("64m")
    assert main(command) == 0
    assert (disk / "toy/s0/model/model.safetensors").exists()
