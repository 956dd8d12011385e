"""Which components there are: a view over the subclasses of each interface. Deriving from a base is registering."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from rlhf import interfaces
from rlhf.errors import UserError, telling
from rlhf.interruption import held
from rlhf.user_code import import_module

T = TypeVar("T")

COMPONENT_MODULES = (
    "rlhf.algorithms",
    "rlhf.models",
    "rlhf.data",
    "rlhf.engines",
    "rlhf.metrics",
    "rlhf.deployment",
    "rlhf.grid.executors",
)
PLUGIN_GROUP = "rlhf.plugins"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``" Did you mean GAE?"`` where something known is close to ``name``, else nothing."""
    spelled = {word.lower(): word for word in known}
    close = difflib.get_close_matches(name.lower(), spelled, n=1)
    return f" Did you mean {spelled[close[0]]}?" if close else ""


def import_path(cls: type) -> str:
    """The shortest dotted path that leads to a class: ``rlhf.PPO`` rather than the file it is written in."""
    parts = cls.__module__.split(".")
    for length in range(1, len(parts) + 1):
        package = ".".join(parts[:length])
        if getattr(sys.modules.get(package), cls.__name__, None) is cls:
            return f"{package}.{cls.__name__}"
    return f"{cls.__module__}.{cls.__qualname__}"


def locate(path: str) -> Any:
    """Imports what a dotted path such as ``my_algo.MyPPO`` names.

    Raises:
        UserError: no such module, or nothing of that name in it.
        UserCodeError: importing the module raised something.
    """
    module_name, _, name = path.rpartition(".")
    with telling(f"'{path}'"):
        module = import_module(module_name)
    if not hasattr(module, name):
        raise UserError(f"'{path}': {module_name} has no '{name}'.{did_you_mean(name, dir(module))}")
    return getattr(module, name)


class Registry(Generic[T]):
    """The concrete subclasses of a base, by class name.

    Nothing is stored: each look finds what the modules imported so far define. Where several modules define a class of
    the same name, each is listed under its full path and the bare name is refused.

    Args:
        base: Abstract base class from ``rlhf.interfaces``, or any other.
    """

    def __init__(self, base: type[T]) -> None:
        self.base = base

    def _classes(self) -> dict[str, type[T]]:
        found: list[type[T]] = []
        pending = [self.base]
        while pending:
            cls = pending.pop()
            pending.extend(cls.__subclasses__())
            reachable = not cls.__name__.startswith("_") and "<locals>" not in cls.__qualname__
            # A base without abstract methods is still no component, unless it is one: then it is a dataclass itself.
            concrete = not inspect.isabstract(cls) and (cls is not self.base or dataclasses.is_dataclass(cls))
            if reachable and concrete and cls not in found:
                found.append(cls)
        names = [cls.__name__ for cls in found]
        named = {cls.__name__ if names.count(cls.__name__) == 1 else import_path(cls): cls for cls in found}
        return dict(sorted(named.items()))

    def names(self) -> list[str]:
        """Names in alphabetical order."""
        return list(self._classes())

    def get(self, name: str) -> type[T]:
        """The class of a name or dotted path.

        Raises:
            UserError: there is none, it is abstract, or it is not a subclass of the base; the text says what there is.
        """
        classes = self._classes()
        if name in classes:
            return classes[name]
        if "." not in name:
            raise UserError(self.suggest(name))
        cls = locate(name)
        if not (isinstance(cls, type) and issubclass(cls, self.base)):
            raise UserError(f"'{name}' is no {self.base.__name__}. {self._known()}")
        if inspect.isabstract(cls):
            missing = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
            raise UserError(f"'{name}' is abstract: it must define {missing}.")
        return cls

    def suggest(self, name: str) -> str:
        """What to say of a name that is not known."""
        names = self.names()
        namesakes = [path for path in names if path.endswith(f".{name}")]
        if namesakes:
            return f"Several classes are called '{name}'. Write which: {', '.join(namesakes)}."
        return f"No {self.base.__name__} is called '{name}'.{did_you_mean(name, names)} {self._known()}"

    def _known(self) -> str:
        return f"Known: {', '.join(self.names()) or 'none'}."

    def __iter__(self) -> Iterator[type[T]]:
        return iter(self._classes().values())

    def __len__(self) -> int:
        return len(self._classes())

    def __contains__(self, item: object) -> bool:
        """Whether a name, or a class, is among them."""
        classes = self._classes()
        return item in classes or item in classes.values()


REGISTRIES: dict[str, Registry[Any]] = {
    "algorithms": Registry(interfaces.Algorithm),
    "policies": Registry(interfaces.Policy),
    "critics": Registry(interfaces.Critic),
    "value-heads": Registry(interfaces.ValueHead),
    "reward-models": Registry(interfaces.RewardModel),
    "advantage-estimators": Registry(interfaces.AdvantageEstimator),
    "policy-losses": Registry(interfaces.PolicyLoss),
    "sampler-corrections": Registry(interfaces.SamplerCorrection),
    "rollout-filters": Registry(interfaces.RolloutFilter),
    "kl-controllers": Registry(interfaces.KLController),
    "weight-averages": Registry(interfaces.WeightAverage),
    "objectives": Registry(interfaces.Objective),
    "optimizers": Registry(interfaces.Optimizer),
    "schedules": Registry(interfaces.Schedule),
    "data-sources": Registry(interfaces.Source),
    "templates": Registry(interfaces.Template),
    "blenders": Registry(interfaces.Blender),
    "engines": Registry(interfaces.Engine),
    "inference": Registry(interfaces.Inference),
    "deployments": Registry(interfaces.Deployment),
    "evaluation-metrics": Registry(interfaces.EvaluationMetric),
    "selections": Registry(interfaces.Selection),
    "metric-sinks": Registry(interfaces.MetricSink),
    "executors": Registry(interfaces.Executor),
}
"""Every kind of component, under the name ``python -m rlhf.components`` knows it by."""


def load_components() -> None:
    """Imports all modules that define components: ours, and those of installed plug-ins.

    Raises:
        UserError: a plug-in cannot be imported; the text names it.
    """
    with held():
        for name in COMPONENT_MODULES:
            module = importlib.import_module(name)
            for found in pkgutil.walk_packages(getattr(module, "__path__", ()), prefix=f"{name}."):
                if not found.name.endswith(".__main__"):
                    importlib.import_module(found.name)
    for plugin in entry_points(group=PLUGIN_GROUP):
        try:
            plugin.load()
        except (Exception, SystemExit) as error:  # a plug-in is foreign code and may raise anything
            raise UserError(
                f"Plug-in '{plugin.name}' ({plugin.value}) cannot be imported: {type(error).__name__}: {error}. "
                "Mend it, or uninstall the package that brings it."
            ) from error
