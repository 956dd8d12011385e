"""What the scripts over seeds share."""

import pytest
from tiny_world import ROOT, load_script


@pytest.fixture(scope="module")
def script():
    return load_script(ROOT / "benchmarks" / "over_seeds.py")


def test_intervals_are_student_t(script):
    pytest.importorskip("scipy")
    text = script.table([{"x": 1.0}, {"x": 2.0}, {"x": 3.0}], [1, 2, 3])
    # mean 2, sample deviation 1, t(0.975, 2) = 4.303: 2 ± 4.303 / √3 = 2 ± 2.48
    assert text.splitlines()[-1] == "| x | 2.00 | -0.48 … 4.48 | 1.00 | 2.00 | 3.00 |"


def test_an_amount_has_no_size_in_units_of_nothing(script):
    assert script.per(3.0, 2.0) == 1.5
    assert script.per(3.0, 0.0) != script.per(3.0, 0.0)  # not a number


def test_an_experiment_of_a_seed_has_its_name_and_what_was_set(script):
    config = str(ROOT / "experiments" / "quickstart.yaml")
    base = script.Base(config, "somewhere", [("stages.ppo.iterations", "3"), ("threads", "2")])
    found = base.seed(7)
    assert (found.seed, found.name, found.output_dir, found.threads) == (7, "seed-7", "somewhere", 2)
    assert found.stages["ppo"].iterations == 3


def test_results_of_processes_come_in_the_order_of_the_jobs(script):
    assert script.in_processes(divmod, [(7, 2), (9, 4), (5, 5)], 2) == [(3, 1), (2, 1), (1, 0)]
