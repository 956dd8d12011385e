"""Every YAML under experiments/ is parsed and built."""

import re
from pathlib import Path

import pytest
from shapes import write_shapes

from rlhf.config import dump, load
from rlhf.experiment import Experiment

ROOT = Path(__file__).parent.parent
CONFIGS = sorted(p for p in (ROOT / "experiments").rglob("*.yaml") if "grids" not in p.parts)


def files(path: Path) -> list[Path]:
    """A file and the one that it says what differs from."""
    based_on = {"algorithms": ROOT / "experiments" / "tasks" / "increasing.yaml"}
    return [based_on[path.parent.name], path] if path.parent.name in based_on else [path]


def test_there_are_experiments():
    assert ROOT / "experiments" / "quickstart.yaml" in CONFIGS


def case(path: Path):
    """A recipe for many gigabytes is built on shapes, which takes a while."""
    large = path.parent.name == "opt" and path.stem not in ("1.3b", "6.7b")
    return pytest.param(path, marks=pytest.mark.slow if large else (), id=path.relative_to(ROOT).as_posix())


@pytest.mark.parametrize("path", map(case, CONFIGS))
def test_experiment_is_built_and_survives_its_dump(path, tmp_path, monkeypatch):
    write_shapes(tmp_path)
    monkeypatch.chdir(tmp_path)
    launched = re.search(r"--nproc-per-node (\d+)", path.read_text())
    if launched and "\ndeployment:" not in path.read_text():
        monkeypatch.setenv("WORLD_SIZE", launched[1])
        monkeypatch.setenv("RANK", "0")
    experiment = load(files(path))
    assert isinstance(experiment, Experiment)
    assert experiment.name == "_".join(path.relative_to(ROOT / "experiments").with_suffix("").parts)
    (tmp_path / "dump.yaml").write_text(dump(experiment))
    assert load([tmp_path / "dump.yaml"]) == experiment


def test_the_quickstart_has_the_three_stages():
    assert list(load([ROOT / "experiments" / "quickstart.yaml"]).stages) == ["sft", "reward", "ppo"]
