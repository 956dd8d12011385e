"""What the tests of the grid share."""

import gc
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for tables.py


@pytest.fixture(autouse=True)
def _no_collection(monkeypatch):
    """Holm's correction of statsmodels collects garbage at every call: a tenth of a second in a process with torch."""
    monkeypatch.setattr(gc, "collect", lambda *_: 0)
