"""``benchmarks/memory.py`` for the processes of tests: what a script defines cannot be sent to them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "memory.py"


def script() -> ModuleType:
    """The benchmark as a module."""
    name = "memory_script"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, SCRIPT)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


def measure(
    stage: int, lora: bool, offload: str, precision: str
) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Bytes by kind: counted before a step and after it, and worked out."""
    module = script()
    before, after, worked_out = module.measure(module.Cell(stage, lora, offload, precision), width=96, layers=3)
    return before, after, {kind: found.total for kind, found in worked_out.items()}
