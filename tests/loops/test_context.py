"""Seeds of a stage."""

import tiny_runs


def test_each_purpose_has_its_own_seed(tmp_path):
    one, same, other = (tiny_runs.context(tmp_path, seed=seed) for seed in (1, 1, 2))
    seeds = {one.seed_for("weights"), one.seed_for("order"), other.seed_for("weights"), other.seed_for("order")}
    assert len(seeds) == 4 and one.seed_for("weights") == same.seed_for("weights")
    assert all(0 <= seed < 2**31 for seed in seeds)
