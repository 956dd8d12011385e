"""The listing of what can be named in a config."""

import subprocess
import sys
from dataclasses import MISSING

import pytest

from rlhf.algorithms.advantages import GAE
from rlhf.components import _default, main


def test_one_kind(capsys):
    assert main(["advantage-estimators"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("advantage-estimators (AdvantageEstimator)\n")
    assert "  GAE  [rlhf.GAE]\n" in text
    assert "      lam: float = 0.95\n" in text
    assert "Known" not in text and "policies" not in text and "Source" not in text


def test_all_kinds(capsys):
    assert main([]) == 0
    text = capsys.readouterr().out
    for line in ("algorithms (Algorithm)", "  PPO  [rlhf.PPO]", "      advantage: AdvantageEstimator = GAE"):
        assert f"{line}\n" in text
    assert "      policy: Policy = required\n" in text


def test_one_component(capsys):
    assert main(["GAE"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("advantage-estimators (AdvantageEstimator)\n  GAE  [rlhf.GAE]\n")
    assert "lam: float = 0.95" in text and "GroupNorm" not in text
    assert "    Source: arXiv:1506.02438" in text and "A_t = " in text  # and its formula, which a list leaves out
    assert main(["Weighted"]) == 0  # a blender and a reward model
    assert capsys.readouterr().out.count("\n  Weighted  [") == 2
    assert main(["gae"]) == 2
    assert "Did you mean GAE?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "hint"),
    [("advantage-estimator", "Did you mean advantage-estimators?"), ("x", "Kinds: algorithms, policies")],
)
def test_an_unknown_kind_is_exit_code_2(capsys, kind, hint):
    assert main([kind]) == 2
    error = capsys.readouterr().err
    assert f"no component or kind is called '{kind}'." in error and hint in error


def test_defaults_are_written_as_in_yaml():
    values = [None, True, 0.5, "x", (1, 2), {}, GAE(), MISSING]
    assert [_default(v) for v in values] == ["null", "true", "0.5", '"x"', "[1, 2]", "{}", "GAE", "required"]


def test_a_reader_that_leaves_is_no_error():
    command = f"{sys.executable} -m rlhf.components | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0 and "Traceback" not in done.stderr


def test_groups_of_settings_and_column_maps_are_listed_too(capsys):
    assert main(["Data", "Sampling", "KL", "Evaluation", "Experiment", "column-maps"]) == 0
    out = capsys.readouterr().out
    for wanted in ("[rlhf.Data]", "max_tokens: int = 512", "[rlhf.Sampling]", "[rlhf.KL]", "[rlhf.Evaluation]"):
        assert wanted in out
    assert "[rlhf.Experiment]" in out and "  alpaca: {" in out and "[rlhf.PPO]" not in out
    assert main(["GAE", "Sampling"]) == 0
    out = capsys.readouterr().out
    assert "[rlhf.GAE]" in out and "[rlhf.Sampling]" in out
