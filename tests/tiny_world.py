"""The quickstart in seconds, for the scripts of ``benchmarks/`` that run it; how a test gets one and runs it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
TINY = {
    "stages.sft.steps": "3",
    "stages.sft.data.sources.world.rows": "300",
    "stages.sft.data.eval_rows": "16",
    "stages.reward.epochs": "0.1",
    "stages.reward.data.sources.fit.rows": "100",
    "stages.reward.data.sources.doubled.rows": "100",
    "stages.reward.data.sources.mixed.rows": "100",
    "stages.reward.data.eval_rows": "16",
    "stages.ppo.iterations": "3",
    "stages.ppo.batch_size": "16",
    "stages.ppo.mini_batch_size": "8",
    "stages.ppo.score_normalization.samples": "8",
    "stages.ppo.evaluation.prompts": "8",
    "stages.ppo.sampling.max_new_tokens": "8",
    "stages.ppo.mixture.data.sources.world.rows": "600",
}


def load_script(path: Path) -> ModuleType:
    """A script as a module, which finds its neighbours as it does when it is run."""
    if (folder := str(path.parent)) not in sys.path:
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location(f"{path.stem}_script", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_script(path: Path, *arguments: str) -> str:
    """What a script prints about the tiny quickstart; fails where the script does."""
    changes = [word for key, value in TINY.items() for word in ("--set", key, value)]
    config = str(ROOT / "experiments" / "quickstart.yaml")
    done = subprocess.run(
        [sys.executable, str(path), "--config", config, *arguments, *changes],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
