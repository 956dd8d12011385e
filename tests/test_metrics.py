"""metrics.jsonl and the sinks beside it."""

import json
from contextlib import closing
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from rlhf.metrics import MetricsFile, TensorBoard, WandB, peak_memory_gb, read_metrics


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


@pytest.mark.parametrize(("sink", "package"), [(TensorBoard, "tensorboard"), (WandB, "wandb")])
@pytest.mark.parametrize("spec", [None, ModuleSpec("wandb", None)], ids=["nothing", "a folder of that name"])
def test_a_missing_package_is_said_at_once(monkeypatch, sink, package, spec):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    with pytest.raises(ValueError, match=rf"package {package} is missing; pip install 'rlhf\[{package}\]'"):
        sink()


# ------------------------------------------------------------------------------------------------- Weights & Biases


def wandb_history(directory: Path) -> list[dict[str, float]]:
    """The rows of all offline runs in a stage's folder, as the package reads them from its files."""
    import wandb
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    wandb.teardown()  # `finish` may come back before the file is whole; the end of a process waits for it as well
    rows = []
    for file in sorted(directory.glob("wandb/offline-run-*/*.wandb")):
        store = DataStore()
        store.open_for_scan(str(file))
        while (data := store.scan_data()) is not None:
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.WhichOneof("record_type") == "history":
                items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
                rows.append({name: json.loads(value) for name, value in items.items() if name[0] != "_"})
                rows[-1]["step"] = record.history.step.num
    return rows


@pytest.fixture
def wandb_at_rest(monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


@pytest.mark.usefixtures("wandb_at_rest")
def test_wandb_gets_each_step_once_when_a_stage_is_resumed(tmp_path):
    sink = WandB(project="p", mode="offline")
    (tmp_path / "stage.json").write_text('{"settings": {"lr": 0.5}}')
    with closing(MetricsFile(tmp_path, [sink])) as file:
        file.write({"step": 0, "eval/score": 0.5})
        file.write({"step": 1, "loss": 1.0, "a/b": float("nan")})
        position = file.position()
        file.write({"step": 1, "eval/score": 1.5})
        file.write({"step": 2, "loss": 2.0})
        file.write({"step": 3, "loss": 3.0})
    with closing(MetricsFile(tmp_path, [sink])) as file:  # from the checkpoint after step 1, to make 2 and 3 again
        file.rewind(position)
        for step in (2, 3, 4):
            file.write({"step": step, "loss": float(step)})
        file.write({"step": 4, "eval/score": 4.5})
    rows = wandb_history(tmp_path)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row.get("loss") for row in rows] == [None, 1.0, 2.0, 3.0, 4.0]
    assert rows[1]["eval/score"] == 1.5 and rows[4]["eval/score"] == 4.5  # two lines of a step are one row
    assert [line["step"] for line in read_metrics(tmp_path)] == [0, 1, 2, 3, 4, 4]
    runs = [file.stem.removeprefix("run-") for file in tmp_path.glob("wandb/offline-run-*/*.wandb")]
    assert len(runs) == 2 and set(runs) == {json.loads((tmp_path / "wandb.json").read_text())["id"]}


@pytest.mark.usefixtures("wandb_at_rest")
def test_what_wandb_is_told_of_a_run(tmp_path, monkeypatch):
    import wandb

    told, real = {}, wandb.init
    monkeypatch.setattr(wandb, "init", lambda **given: told.update(given) or real(**given))
    directory = tmp_path / "experiment" / "ppo"
    directory.mkdir(parents=True)
    (directory / "stage.json").write_text('{"settings": {"lr": 0.5}}')
    WandB(project="p", entity="us", mode="disabled").open(directory).close()
    assert (told["project"], told["entity"], told["mode"], told["config"]) == ("p", "us", "disabled", {"lr": 0.5})
    assert (told["name"], told["group"]) == ("experiment/ppo", "experiment")
    WandB(name="mine", mode="disabled").open(tmp_path).close()
    assert (told["project"], told["name"], told["config"]) == ("rlhf", "mine", None)


@pytest.mark.usefixtures("wandb_at_rest")
def test_without_a_login_wandb_says_what_to_do(tmp_path, monkeypatch):
    import wandb

    def refused(**given):
        raise wandb.errors.UsageError("api_key not configured (no-tty)")

    monkeypatch.setattr(wandb, "init", refused)
    with pytest.raises(ValueError, match=r"WandB: api_key not configured .*; run wandb login, or set mode to offline"):
        WandB().open(tmp_path)
    with pytest.raises(ValueError, match="project: it is empty"):
        WandB(project="")


def test_peak_memory_is_in_gigabytes():
    assert 0.05 < peak_memory_gb() < 100
