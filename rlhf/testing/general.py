"""What every component keeps to, whatever its kind."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from docstring_parser import parse

from rlhf.config import dump, load
from rlhf.schema import explanations, settings
from rlhf.testing.contract import Contract


def check_class(contract: Contract, cls: type) -> None:
    """A frozen, keyword-only dataclass, documented setting by setting."""
    contract.holds(not inspect.isabstract(cls), f"it is abstract: define {', '.join(_abstract(cls))}")
    parameters = vars(cls).get("__dataclass_params__")
    contract.holds(parameters is not None, "it is no dataclass; decorate it with @dataclass(frozen=True, kw_only=True)")
    contract.holds(
        bool(parameters and parameters.frozen), "its settings can be changed; make the dataclass frozen=True"
    )
    loose = [p.name for p in inspect.signature(cls).parameters.values() if p.kind is not p.KEYWORD_ONLY]
    contract.holds(not loose, f"{', '.join(loose)} can be given by position; make the dataclass kw_only=True")
    missing = [name for name in settings(cls) if not explanations(cls).get(name)]
    contract.holds(not missing, f"not documented: {', '.join(missing)}; name each under Args: in the docstring")
    extra = [p.arg_name for p in parse(cls.__doc__ or "").params if p.arg_name not in settings(cls)]
    contract.holds(not extra, f"documented, but no setting: {', '.join(extra)}")


def _abstract(cls: type) -> list[str]:
    return sorted(getattr(cls, "__abstractmethods__", ()))


def check_object(contract: Contract, component: Any, again: Callable[[], Any], base: type) -> None:
    """Equal settings are equal objects, and come back from a pickle and from a config."""
    contract.holds(again() == component, f"two of the same settings are not equal: {component!r}")
    contract.holds(repr(again()) == repr(component), f"two of the same settings read differently: {component!r}")
    pickled = contract.answered(lambda: pickle.loads(pickle.dumps(component)), "it must be possible to pickle it")
    contract.holds(pickled == component, f"pickled and read again it is {pickled!r}, not {component!r}")
    holder = dataclasses.make_dataclass("Holder", [("component", base)], frozen=True, kw_only=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"

        def printed() -> Any:
            file.write_text(dump(holder(component=component)), encoding="utf-8")
            return load([file], root=holder).component

        read = contract.answered(printed, "what --print_config writes of it must be read again")
    contract.holds(read == component, f"printed by --print_config and read again it is {read!r}, not {component!r}")
