"""The map of the house: what a base class gives to whoever derives from it."""

import importlib
import pkgutil
from dataclasses import dataclass

import pytest

from rlhf import interfaces
from rlhf.interfaces import AdvantageEstimator, Algorithm, Engine, Selection, SelectionByEvaluation
from rlhf.registry import import_path


def test_everything_exported_is_there():
    assert all(hasattr(interfaces, name) for name in interfaces.__all__)
    assert sorted(interfaces.__all__) == interfaces.__all__


def test_bases_cannot_be_made():
    with pytest.raises(TypeError, match="abstract"):
        AdvantageEstimator()  # pyright: ignore


def test_everything_public_is_exported_and_found_by_its_short_path():
    modules = [
        importlib.import_module(f"rlhf.interfaces.{found.name}") for found in pkgutil.iter_modules(interfaces.__path__)
    ]
    classes = [c for m in modules for n, c in vars(m).items() if isinstance(c, type) and c.__module__ == m.__name__]
    public = [cls for cls in classes if not cls.__name__.startswith("_")]
    assert len(public) > 35 and {cls.__name__ for cls in public} <= set(interfaces.__all__)
    assert {import_path(cls) for cls in public} == {f"rlhf.interfaces.{cls.__name__}" for cls in public}


def test_a_selection_by_evaluation_has_to_say_what_an_evaluation_is_worth():
    class Own(SelectionByEvaluation):
        def check(self, **_):
            return []

    assert Own.evaluates and not Selection.evaluates
    with pytest.raises(TypeError, match="worth"):
        Own()  # pyright: ignore


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
