"""metrics.jsonl and the sinks beside it."""

from contextlib import closing

import pytest

from rlhf.metrics import MetricsFile, TensorBoard, peak_memory_gb, read_metrics


def test_one_line_each_and_null_for_what_is_not_finite(tmp_path):
    with closing(MetricsFile(tmp_path / "stage")) as file:
        file.write({"step": 1, "loss": 0.5})
        file.write({"step": 2, "loss": float("nan"), "norm": float("inf")})
    text = (tmp_path / "stage" / "metrics.jsonl").read_text()
    assert text == '{"step": 1, "loss": 0.5}\n{"step": 2, "loss": null, "norm": null}\n'
    assert read_metrics(tmp_path / "stage")[0] == {"step": 1, "loss": 0.5}
    assert read_metrics(tmp_path / "nowhere") == []


def test_what_came_after_a_checkpoint_is_taken_back(tmp_path):
    with closing(MetricsFile(tmp_path)) as file:
        file.write({"step": 1})
        position = file.position()
        file.write({"step": 2})
    with closing(MetricsFile(tmp_path)) as file:
        file.rewind(position)
        file.write({"step": 2, "again": 1})
    assert read_metrics(tmp_path) == [{"step": 1}, {"step": 2, "again": 1}]


def test_a_file_that_has_lost_lines_is_not_filled_with_zeros(tmp_path):
    with closing(MetricsFile(tmp_path)) as file, pytest.raises(ValueError, match=r"has 0 bytes, but .* after 100"):
        file.rewind(100)


def test_tensorboard(tmp_path):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with closing(MetricsFile(tmp_path, [TensorBoard()])) as file:
        file.write({"step": 3, "loss": 0.5})
    events = event_accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(3, 0.5)]


def test_tensorboard_missing_is_said_at_once(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"package tensorboard is missing; pip install 'rlhf\[tensorboard\]'"):
        TensorBoard()


def test_peak_memory_is_in_gigabytes():
    assert 0.05 < peak_memory_gb() < 100
