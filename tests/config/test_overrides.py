"""Overrides that are values and say where they stand, as those of a grid's choices."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf.config import Override, load
from rlhf.errors import ConfigError


def test_an_override_may_be_a_value_and_is_told_by_where_it_stands(tmp_path):
    path = tmp_path / "exp.yaml"
    path.write_text(OVERRIDDEN)
    changes = [
        Override("stages.sft.optimizer", {"class_path": "AdamW", "lr": 0.5}, "axes.a.x"),
        Override("stages.sft.max_grad_norm", None, "axes.a.x"),
        ("stages.sft.batch_size", "8"),
        Override("stages.sft.epochs", "2", "overrides"),
    ]
    found = load([path], changes).stages["sft"]
    assert (found.optimizer.lr, found.max_grad_norm, found.batch_size, found.epochs) == (0.5, None, 8, 2.0)
    with pytest.raises(ConfigError) as error:
        load([path], [Override("stages.sft.batch_sise", 3, "axes.a.x"), Override("stages.sft.steps", "few", "axes.b")])
    assert error.value.problems == [
        "axes.a.x: stages.sft.batch_sise: SFT has no setting 'batch_sise'. Did you mean batch_size?"
    ]
    with pytest.raises(ConfigError, match=r"^axes\.b: stages\.sft\.steps: 'few' is not of type int "):
        load([path], [Override("stages.sft.steps", "few", "axes.b")])


OVERRIDDEN = """
name: toy
stages:
  sft:
    class_path: SFT
    init_args:
      policy: {class_path: Pretrained, init_args: {path: somewhere}}
      data: {sources: {reviews: {class_path: Files, init_args: {path: reviews.jsonl}}}}
"""


@pytest.mark.parametrize("files", [["quickstart"], ["hybrid_zero3_tp2"], ["quickstart", "algorithms/vapo"]])
def test_what_is_made_quickly_is_what_jsonargparse_makes(files, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2" if "hybrid_zero3_tp2" in files else "1")
    paths = [Path(__file__).parents[2] / "experiments" / f"{name}.yaml" for name in files]
    changes = [("seed", "3"), ("threads", "null"), ("sinks", "[{class_path: TensorBoard}]")]
    assert load(paths, changes, quickly=True) == load(paths, changes)


def test_nothing_in_braces_is_told_to_change_nothing(tmp_path):
    path = tmp_path / "exp.yaml"
    path.write_text(OVERRIDDEN)
    for key, told in {
        "stages": "{} would change nothing; set what is to go to null (sft)",
        "stages.sft.data.sources": "{} would change nothing; set what is to go to null (reviews)",
        "stages.sft.policy": "{} would change nothing of Pretrained; name what is to change",
    }.items():
        with pytest.raises(ConfigError) as error:
            load([path], [(key, "{}")])
        assert f"command line: {key}: {told}" in error.value.problems
    assert load([path], [("stages.sft.data.eval_sources", "{}")]) == load([path])  # it is empty already
