"""Components whose settings break what holds for every kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from faulty.parts import _COUNT, _Estimator, component


class _Undecorated(_Estimator):
    """No dataclass."""


@dataclass(kw_only=True)
class _Changeable(_Estimator):
    """Not frozen."""


@dataclass(frozen=True)
class _Positional(_Estimator):
    """Settings by position.

    Args:
        limit: A bound.
    """

    limit: float = 3.0


@component
class _Undocumented(_Estimator):
    """A setting that nobody explains."""

    limit: float = 3.0


@component
class _OverDocumented(_Estimator):
    """A setting that is not there.

    Args:
        limit: A bound.
    """


@component
class _Drawn(_Estimator):
    """Another default each time.

    Args:
        limit: A bound.
    """

    limit: int = field(default_factory=_COUNT.__next__)


class _Address:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Address)

    __hash__ = None


@component
class _Addressed(_Estimator):
    """A setting whose text is an address in memory.

    Args:
        limit: A bound.
    """

    limit: Any = field(default_factory=_Address)


@component
class _Unpicklable(_Estimator):
    """Holds a function that no file can hold."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "function", lambda: 0)


@component
class _Doubling(_Estimator):
    """What is printed of it makes another one.

    Args:
        limit: A bound.
    """

    limit: float = 3.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "limit", 2 * self.limit)


CAUGHT: list[tuple[type, str]] = [
    (_Undecorated, "it is no dataclass"),
    (_Changeable, "its settings can be changed; make the dataclass frozen"),
    (_Positional, "limit can be given by position; make the dataclass kw_only"),
    (_Undocumented, "not documented: limit"),
    (_OverDocumented, "documented, but no setting: limit"),
    (_Drawn, r"two of the same settings are not equal: _Drawn\(limit="),
    (_Addressed, r"two of the same settings read differently: .*object at 0x"),
    (_Unpicklable, "it must be possible to pickle it, but it raised"),
    (_Doubling, r"printed by --print_config and read again it is _Doubling\(limit=12.0\), not _Doubling\(limit=6.0\)"),
]
