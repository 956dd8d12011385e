"""The view over subclasses, dotted paths, and plug-ins."""

import ast
import importlib
import sys
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

import rlhf
from rlhf.errors import UserCodeError
from rlhf.interfaces import AdvantageEstimator
from rlhf.registry import REGISTRIES, Registry, did_you_mean, import_path, load_components, locate


class Fruit(ABC):
    @abstractmethod
    def taste(self) -> str: ...


class Citrus(Fruit):
    """Abstract still."""


@dataclass(frozen=True, kw_only=True)
class Lemon(Citrus):
    """Sour."""

    def taste(self) -> str:
        return "sour"


class Apple(Fruit):
    def taste(self) -> str:
        return "sweet"


class _Hidden(Apple):
    pass


def test_names_are_the_reachable_concrete_subclasses_in_order():
    class Local(Apple):
        pass

    registry = Registry(Fruit)
    assert registry.names() == ["Apple", "Lemon"]
    assert list(registry) == [Apple, Lemon]
    assert len(registry) == 2 and "Apple" in registry and "Citrus" not in registry
    assert Apple in registry and Local not in registry and _Hidden not in registry


def test_a_concrete_dataclass_is_among_its_own_choices():
    assert Registry(Lemon).names() == ["Lemon"]


def test_unknown_name_lists_what_there_is():
    with pytest.raises(ValueError, match=r"^No Fruit is called 'aple'\. Did you mean Apple\? Known: Apple, Lemon\.$"):
        Registry(Fruit).get("aple")


def test_wrong_case_is_suggested():
    assert did_you_mean("gae", ["GroupNorm", "GAE"]) == " Did you mean GAE?"
    assert did_you_mean("zzzzzz", ["GroupNorm", "GAE"]) == ""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes an importable module, and forgets it afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    written = []

    def write(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        written.append(name)
        return name

    yield write
    for name in written:
        sys.modules.pop(name, None)


def test_namesakes_are_listed_under_their_paths_and_the_bare_name_is_refused(module):
    module("fruit_a", "class Base: pass\nclass Pear(Base): pass\n")
    module("fruit_b", "from fruit_a import Base\nclass Pear(Base): pass\n")
    base = locate("fruit_b.Base")
    assert Registry(base).names() == ["fruit_a.Pear", "fruit_b.Pear"]
    with pytest.raises(
        ValueError, match=r"Several classes are called 'Pear'\. Write which: fruit_a\.Pear, fruit_b\.Pear"
    ):
        Registry(base).get("Pear")
    assert Registry(base).get("fruit_b.Pear") is locate("fruit_b.Pear")


THIRD_PARTY = """
from dataclasses import dataclass
from rlhf.interfaces import AdvantageEstimator
from rlhf.types import Advantages

@dataclass(frozen=True, kw_only=True)
class MyReturns(AdvantageEstimator):
    limit: float = 3.0
    def __call__(self, scored): return Advantages(scored.rewards, None)

class Unfinished(AdvantageEstimator):
    pass
"""


def test_a_dotted_path_needs_no_registration(module):
    module("my_ideas", THIRD_PARTY)
    assert Registry(AdvantageEstimator).get("my_ideas.MyReturns").__name__ == "MyReturns"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("my_ideas2.Unfinished", "'my_ideas2.Unfinished' is abstract: it must define __call__"),
        ("my_ideas2.dataclass", "'my_ideas2.dataclass' is no AdvantageEstimator"),
        ("my_ideas2.MyReturn", "my_ideas2 has no 'MyReturn'. Did you mean MyReturns?"),
        ("no_such_module.Thing", "there is no module 'no_such_module'"),
    ],
)
def test_wrong_dotted_paths_are_explained(module, path, message):
    module("my_ideas2", THIRD_PARTY)
    with pytest.raises(ValueError) as error:
        Registry(AdvantageEstimator).get(path)
    assert message in str(error.value)


def test_a_module_whose_own_import_is_missing_shows_that_import(module):
    module("my_broken", "import not_installed_anywhere\n")
    with pytest.raises(UserCodeError, match=r"my_broken.Thing': importing my_broken raised .*not_installed_anywhere"):
        locate("my_broken.Thing")


def install_plugin(folder, name: str, value: str) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[rlhf.plugins]\n{name} = {value}\n")


def test_installed_plugins_are_loaded(module, tmp_path):
    module("plugged_in", THIRD_PARTY.replace("MyReturns", "PluggedReturns"))
    install_plugin(tmp_path, "plugged", "plugged_in")
    load_components()
    assert "PluggedReturns" in Registry(AdvantageEstimator)


def test_a_plugin_that_cannot_be_imported_is_an_error_that_names_it(module, tmp_path):
    module("plugin_broken", "1 / 0\n")
    install_plugin(tmp_path, "shaky", "plugin_broken")
    with pytest.raises(ValueError, match=r"Plug-in 'shaky' \(plugin_broken\) cannot be imported: ZeroDivisionError"):
        load_components()


def test_every_component_of_ours_has_a_short_public_name():
    load_components()
    ours = [cls for registry in REGISTRIES.values() for cls in registry if cls.__module__.startswith("rlhf.")]
    assert len(ours) > 20
    names = Counter(cls.__name__ for cls in ours)
    assert [name for name, count in names.items() if count > 1] == ["Weighted"]
    assert {import_path(cls) for cls in ours if cls.__name__ == "Weighted"} == {
        "rlhf.data.Weighted",
        "rlhf.models.Weighted",
    }
    assert [cls for cls in ours if names[cls.__name__] == 1 and import_path(cls) != f"rlhf.{cls.__name__}"] == []


def test_type_checkers_are_told_the_same_names():
    tree = ast.parse(Path(rlhf.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    told = {alias.name: node.module for node in block.body for alias in node.names}
    assert told == rlhf._HOMES


def test_the_public_names_exist():
    for name, module in rlhf._HOMES.items():
        assert getattr(rlhf, name) is getattr(importlib.import_module(module), name)
        assert name in dir(rlhf)
    with pytest.raises(AttributeError, match="no attribute 'PPOO'"):
        rlhf.PPOO  # noqa: B018
