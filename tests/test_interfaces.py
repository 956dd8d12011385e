"""The map of the house: what a base class gives to whoever derives from it."""

from dataclasses import dataclass

import pytest

from rlhf import interfaces
from rlhf.interfaces import AdvantageEstimator, Algorithm, Engine


def test_everything_exported_is_there():
    assert all(hasattr(interfaces, name) for name in interfaces.__all__)
    assert sorted(interfaces.__all__) == interfaces.__all__


def test_bases_cannot_be_made():
    with pytest.raises(TypeError, match="abstract"):
        AdvantageEstimator()  # pyright: ignore


@dataclass(frozen=True, kw_only=True)
class OneProcess(Engine):
    micro_batch_size: int | None = None

    def build(self, model, **settings):
        raise NotImplementedError


def test_an_engine_is_one_process_unless_it_says_otherwise():
    engine = OneProcess()
    assert engine.world_size == 1 and engine.rows_at_once == 64 and OneProcess(micro_batch_size=8).rows_at_once == 8


def test_an_algorithm_has_no_problems_and_leaves_a_model_unless_it_says_otherwise():
    class Own(Algorithm):
        phase = "ppo"

    assert Own().check() == [] and Own().outputs() == ("model",)
