import random

import numpy as np
import pytest

from rlhf.data import fingerprint, split

PROMPTS = [f"prompt {i}" for i in range(100)]


def assign(prompts: list[str], fractions: list[float]) -> np.ndarray:
    return split.assign(fingerprint.of_texts(prompts, split.PHASE), fractions)


def holdout(prompts: list[str], **asked) -> np.ndarray:
    return split.holdout(fingerprint.of_texts(prompts, split.HOLDOUT), **asked)


def test_phases_are_exact_disjoint_and_cover_all() -> None:  # case G5
    phases = assign(PROMPTS, [2, 4, 4])
    assert np.bincount(phases).tolist() == [20, 40, 40]
    assert len(phases) == 100


def test_equal_prompts_stay_together() -> None:  # case G5
    phases = assign(PROMPTS * 2, [2, 4, 4])
    assert phases[:100].tolist() == phases[100:].tolist()
    assert np.bincount(phases).tolist() == [40, 80, 80]
    assert phases[:100].tolist() == assign(PROMPTS, [2, 4, 4]).tolist()


def test_a_row_keeps_its_phase_whatever_the_order() -> None:
    shuffled = random.Random(0).sample(PROMPTS, 100)
    before = dict(zip(PROMPTS, assign(PROMPTS, [1, 1, 1]), strict=True))
    assert [before[p] for p in shuffled] == assign(shuffled, [1, 1, 1]).tolist()


def test_a_phase_is_not_a_run_of_rows() -> None:
    first = np.flatnonzero(assign(PROMPTS, [2, 4, 4]) == 0)
    assert first.min() < 20 and first.max() > 80


def test_the_split_is_the_same_on_every_machine() -> None:
    assert assign([f"p{i}" for i in range(12)], [1, 1, 1]).tolist() == [1, 2, 0, 0, 1, 0, 2, 0, 1, 2, 1, 2]


def test_a_phase_without_a_share_gets_nothing() -> None:
    assert np.bincount(assign(PROMPTS, [0, 1, 0]), minlength=3).tolist() == [0, 100, 0]


@pytest.mark.parametrize("fractions", [[0, 0, 0], [1, -1, 1], [float("nan"), 1, 1]])
def test_impossible_shares_are_refused(fractions: list[float]) -> None:
    with pytest.raises(ValueError, match="split"):
        assign(PROMPTS, fractions)


def test_holdout_is_exact_by_prompt_and_spread_over_the_rows() -> None:  # case G5: not the first rows
    held = holdout(PROMPTS * 2, fraction=0.1)
    assert held[:100].sum() == 10 and held[:100].tolist() == held[100:].tolist()
    assert not held[:10].all()


def test_holdout_and_phase_are_independent() -> None:
    prompts = [f"p{i}" for i in range(1000)]
    held, phases = holdout(prompts, fraction=0.5), assign(prompts, [1, 1])
    assert 200 < (held & (phases == 0)).sum() < 300


def test_holdout_by_rows_takes_whole_prompts() -> None:
    held = holdout([f"p{i // 3}" for i in range(30)], rows=4)
    assert held.sum() == 6
    assert holdout(PROMPTS, rows=7).sum() == 7
    assert holdout(PROMPTS, rows=0).sum() == 0


def test_few_prompts_hold_out_none() -> None:
    assert holdout(["a", "b"], fraction=0.05).tolist() == [False, False]
    assert holdout([], fraction=0.5).tolist() == []


@pytest.mark.parametrize("asked", [{"fraction": 0.9}, {"rows": 2}, {"rows": 200}])
def test_holding_out_everything_is_refused(asked: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="lower it"):
        holdout(["a", "b"], **asked)
