"""Every command and code block of README, CONTRIBUTING and docs/ is run.

Blocks of a page run in order in one folder, where ``experiments/`` is at hand. A block whose first line is
``# file: NAME`` is written to that file; other Python is executed; bash is run line by line. A command that would take
minutes runs with the shorter settings of ``SHORTER``; ``make`` targets are resolved without being run, since the tests
themselves are one of them.

Each command has a process of its own, forked from one that has imported torch and its like already: forty interpreters
would spend most of the time on that.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from shorter import SMALL_WORLD, TINY

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHORTER = dict.fromkeys(
    (f"experiments/{name}.yaml" for name in ("quickstart", "world", "hybrid_zero3_tp2")), TINY + SMALL_WORLD
) | {
    "experiments/tasks/increasing.yaml": (
        "--stages.sft.steps 3 --stages.ppo.iterations 3 --stages.ppo.batch_size 32 --stages.ppo.mini_batch_size 16 "
        "--stages.ppo.evaluation.prompts 8"
    )
}
SLOW_PAGES = {
    *("README.md", "after-a-run.md", "algorithms.md", "data.md", "engines.md", "findings.md", "grids.md", "rewards.md"),
    *("running.md", "write-an-algorithm.md"),
}
"""Pages that take half a minute or more."""
OVER_SEEDS = {
    "benchmarks/world.py": ["--seeds", "1", "--rows", "100"],
    "benchmarks/claims.py": ["--seeds", "1", "--every", "1"],
    "benchmarks/overoptimisation.py": ["--widths", "32", "--pairs", "64", "--every", "1"],
}
"""Scripts that run the quickstart or the world, with what shortens them."""
LAUNCHERS = {"torchrun": "torch.distributed.run", "deepspeed": "deepspeed.launcher.runner"}
SETUP = ("git", "cd", "pip", "pre-commit", "tensorboard")
"""Commands about a clone, its environment or a server: nothing of ours to run."""


HEAVY = [
    *(
        "torch",
        "datasets",
        "jsonargparse",
        "matplotlib.pyplot",
        "plotly",
        "scipy.stats",
        "rlhf.experiment",
        "rlhf.loops",
    ),
    *(f"transformers.models.{family}.modeling_{family}" for family in ("gpt2", "llama")),
]
"""What most commands import; none of it starts a thread or says anything."""


def _as_python(words: list[str], folder: Path, output: Path) -> None:
    """What ``python WORDS`` does, in a process that was forked for it."""
    sink = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    os.chdir(folder)
    os.environ |= {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    module = words[0] == "-m"
    sys.path[:0] = [str(folder if module else Path(words[0]).resolve().parent), str(ROOT)]
    sys.argv = words[1:] if module else words
    if module:
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")


@pytest.fixture(scope="module")
def python() -> Callable[[list[str], Path], None]:
    """Runs ``python WORDS`` in a folder and wants it to succeed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(HEAVY)

    def run(words: list[str], folder: Path) -> None:
        output = folder / "output.txt"
        process = context.Process(target=_as_python, args=(words, folder, output))
        process.start()
        process.join(280)
        if process.is_alive():
            process.kill()
            process.join()
        assert process.exitcode == 0, f"python {shlex.join(words)}\n{output.read_text()[-4000:]}"

    return run


def _shell(line: str, folder: Path, python: Callable[[list[str], Path], None]) -> None:
    words = shlex.split(line, comments=True)
    if not words or words[0] in SETUP:
        return
    if words[0] == "make":
        done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        return
    if words[0] in LAUNCHERS:
        words = ["python", "-m", LAUNCHERS[words[0]], *words[1:]]
    assert words[0] == "python", f"the docs run only python, torchrun, deepspeed and make, not {line!r}"
    shorter = shlex.split(next((SHORTER[name] for name in SHORTER if name in words), ""))
    if "rlhf.run" in words and "--print_config" not in words:
        words += shorter
    elif found := next((name for name in OVER_SEEDS if name in words), None):
        shorter = shlex.split(TINY + SMALL_WORLD + " --stages.ppo.mixture.data.sources.world.rows 600")
        pairs = zip(shorter[::2], shorter[1::2], strict=True)
        words += OVER_SEEDS[found]
        words += [word for key, value in pairs for word in ("--set", key.removeprefix("--"), value)]
    elif any(word.startswith("experiments/grids/") for word in words):
        words += ["--dry_run"]  # tests/grid/test_experiments.py runs them, smaller
    elif "benchmarks/grid.py" in words:
        return  # twelve processes; tests/benchmarks/test_grid.py checks what it makes of them
    elif "benchmarks/calibration.py" in words:
        words += ["--seeds", "3", "--experiments", "3", "--resamples", "9"]
    elif "benchmarks/memory.py" in words:
        words += ["--stages", "2", "--width", "48", "--layers", "1"]
    elif "benchmarks/switch.py" in words:
        words += ["--width", "48", "--layers", "1"]
    elif "benchmarks/rollout.py" in words:
        words += ["--repeats", "1", "--scale", "0.1", "--width", "32", "--layers", "1"]
    python(words[1:], folder)


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow if page.name in SLOW_PAGES else (), id=page.name) for page in PAGES],
)
def test_page_runs(page: Path, tmp_path: Path, python: Callable[[list[str], Path], None]) -> None:
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    commands = []
    for _, body in blocks:
        if name := re.match(r"# file: (\S+)\n", body):
            (tmp_path / name[1]).write_text(body, encoding="utf-8")
    for language, body in blocks:
        if re.match(r"# file: ", body):
            continue
        if language == "python":
            commands.append(body)
            script = tmp_path / "block.py"
            script.write_text(body, encoding="utf-8")
            python([script.name], tmp_path)
        elif language == "bash":
            commands.append(body)
            for line in body.replace("\\\n", " ").splitlines():
                _shell(line, tmp_path, python)
        else:
            assert language in ("text", "toml", "yaml"), f"{page.name}: a block in {language}"
    assert commands or page.name in ("CONTRIBUTING.md", "architecture.md", "numerics.md", "metrics.md", "engines.md")


def test_a_command_that_fails_is_noticed(tmp_path: Path, python: Callable[[list[str], Path], None]) -> None:
    with pytest.raises(AssertionError, match=r"python -m rlhf\.report nowhere\n.*nowhere does not exist"):
        python(["-m", "rlhf.report", "nowhere"], tmp_path)
    (tmp_path / "block.py").write_text("raise ValueError('a bug')")
    with pytest.raises(AssertionError, match=r"(?s)block.py.*ValueError: a bug"):
        python(["block.py"], tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_algorithm_of_the_page_is_at_most_forty_lines() -> None:
    page = (ROOT / "docs" / "write-an-algorithm.md").read_text(encoding="utf-8")
    block = next(body for _, body in BLOCK.findall(page) if "class AWR" in body)
    assert len(block.strip().splitlines()) <= 40
