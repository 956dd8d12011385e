"""What a stage's data came to, in ``data.json``: rows by source, what was dropped for which reason, and duplicates."""

from __future__ import annotations

import json
from pathlib import Path

from rlhf.data.preparation import Prepared
from rlhf.files import atomic_text

DATA = "data.json"


def write_summary(directory: Path, data: Prepared, *, mixture: Prepared | None = None) -> None:
    """Writes the summary of a stage's data, and of its mixture's where it has one, in place of an older file."""
    parts = {"data": data, "mixture": mixture}
    known = {name: part for name, part in parts.items() if part is not None}
    summary = {name: part.summary() for name, part in known.items()}
    summary["findings"] = {name: list(part.findings) for name, part in known.items()}
    directory.mkdir(parents=True, exist_ok=True)
    atomic_text(directory / DATA, json.dumps(summary, indent=2))
