"""Losses and estimators against published implementations; ``docs/peers.md`` says how to install those."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def load():
    spec = importlib.util.spec_from_file_location("peers_script", ROOT / "benchmarks" / "peers.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script = load()
SINGLE = 1e-5  # Stable-Baselines3 keeps its buffers in single precision
DOUBLE = 1e-7  # verl adds 1e-8 to its denominators


@pytest.mark.peers
@pytest.mark.parametrize("comparison", script.COMPARISONS, ids=lambda c: f"{c.ours} - {c.peer}, {c.theirs}")
def test_agrees_or_differs_as_is_said(comparison):
    try:
        found = comparison.run()
    except script.MissingPeer as error:
        pytest.skip(str(error))
    tolerance = SINGLE if comparison.peer == "stable-baselines3" else DOUBLE
    if comparison.why:
        assert found.difference > 1e-3, "they agree: the reason in the table is gone"
        assert found.remainder is not None and found.remainder < tolerance
    else:
        assert found.remainder is None and found.difference < tolerance


def test_the_page_has_a_line_for_each_comparison():
    page = (ROOT / "docs" / "peers.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("| `")]
    for line, comparison in zip(lines, script.COMPARISONS, strict=True):
        assert line.startswith(f"| {' | '.join(comparison.cells())} | "), line
        assert comparison.why in line


def test_what_is_installed_is_what_is_compared_with():
    (extra,) = re.findall(r"^peers = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.MULTILINE | re.DOTALL)
    pins = dict(re.findall(r'"([\w-]+)==([\d.]+)', extra))
    assert pins == {name: version for name, version in script.VERSIONS.items() if name != "verl"}
    page = (ROOT / "docs" / "peers.md").read_text(encoding="utf-8")
    assert f"verl=={script.VERSIONS['verl']}" in page and f"verl=={script.VERSIONS['verl']}" in script.HINT


def test_without_a_peer_its_lines_say_so(monkeypatch):
    def missing(name):
        raise script.MissingPeer(f"{name} is not installed")

    monkeypatch.setattr(script.peer_code, "check_version", missing)
    script.runs.verl.cache_clear()
    lines = script.table()[2:]
    assert len(lines) == len(script.COMPARISONS) and all("| not installed |" in line for line in lines)
