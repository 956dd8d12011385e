"""What the tests of the grid share."""

import gc
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for tables.py and grid_runs.py


@pytest.fixture(autouse=True)
def _no_collection(monkeypatch):
    """Holm's correction of statsmodels collects garbage at every call: a tenth of a second in a process with torch."""
    monkeypatch.setattr(gc, "collect", lambda *_: 0)


@pytest.fixture(scope="session")
def imported():
    """What cells need is there before they are forked."""
    import transformers.models.gpt2.modeling_gpt2  # noqa: F401

    import rlhf.loops
    import rlhf.stages.run  # noqa: F401
