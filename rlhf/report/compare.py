"""Two runs beside each other: what differs in what went in, in what came out, and in what it cost."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rlhf.errors import UserError
from rlhf.report.pairs import StagePair, pair
from rlhf.report.runs import RunRecord, StageRecord, read_run
from rlhf.report.settings import ClassPath, flat, text

LEFT_ASIDE = ("name", "output_dir")
"""Settings of an experiment that say where a run is, and not what it does."""
ABSENT = "-"
GROUP = object()
"""Stands for settings that belong together and have no class."""
COSTS = (
    ("throughput/rollout_tokens_per_s", "tokens/s sampled, mean", "mean"),
    ("throughput/train_tokens_per_s", "tokens/s trained on, mean", "mean"),
    ("throughput/samples_per_s", "responses, rows or pairs/s, mean", "mean"),
    ("memory/peak_gb", "peak memory, GB", "max"),
)


class Difference(NamedTuple):
    """Something that went into the runs and is not the same.

    Attributes:
        what: A setting's dotted key, or what else it is.
        a: Of the first run.
        b: Of the second.
        stages: Those that it is of, where it is no setting.
    """

    what: str
    a: str
    b: str
    stages: tuple[str, ...] = ()


class Cost(NamedTuple):
    """What a stage took; None where that is not known."""

    stage: str
    what: str
    a: float | None
    b: float | None


@dataclass(frozen=True)
class Comparison:
    """Two runs beside each other.

    Attributes:
        a: The first.
        b: The second.
        settings: Those in which they differ, of the experiment and of the stages that both have.
        circumstances: What else may explain other figures: versions, content of the data, earlier stages.
        recorded: Stages of which both runs have a record of that.
        only: Stages that one alone has, of the first and of the second.
        stages: Those that both have, in the order of the first.
        costs: Of these, as far as they were started, and are not copies of one stage.
    """

    a: RunRecord
    b: RunRecord
    settings: list[Difference]
    circumstances: list[Difference]
    recorded: list[str]
    only: tuple[list[StageRecord], list[StageRecord]]
    stages: list[StagePair]
    costs: list[Cost]


def read_both(a: Path, b: Path) -> Comparison:
    """Reads two runs and compares them.

    Raises:
        UserError: a folder is no run, or both are the same.
    """
    first, second = read_run(a), read_run(b)
    if a.resolve() == b.resolve():
        raise UserError(f"--compare: {a} and {b} are one run; give two")
    return compare(first, second)


def compare(a: RunRecord, b: RunRecord) -> Comparison:
    """Compares two runs, stages by their names."""
    both = [(one, other) for one in a.stages if (other := b.stage(one.name)) is not None]
    pairs = [pair(one.name, one, other) for one, other in both]
    return Comparison(
        a=a,
        b=b,
        settings=differing_settings(_common(a.config, b), _common(b.config, a)),
        circumstances=_circumstances(both),
        recorded=[one.name for one, other in both if one.record.get("versions") and other.record.get("versions")],
        only=(
            [stage for stage in a.stages if b.stage(stage.name) is None],
            [stage for stage in b.stages if a.stage(stage.name) is None],
        ),
        stages=pairs,
        costs=[cost for both in pairs if both.same != "copy" for cost in _costs(both.a, both.b)],
    )


# ----------------------------------------------------------------------------------------------------------- settings


def _common(config: Mapping[str, Any], other: RunRecord) -> dict[str, Any]:
    """A config without the stages that the other run lacks."""
    stages = {name: stage for name, stage in (config.get("stages") or {}).items() if other.stage(name) is not None}
    return {**{key: value for key, value in config.items() if key not in LEFT_ASIDE}, "stages": stages}


def differing_settings(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Difference]:
    """The settings in which two configs differ.

    What one alone has inside of a component stands behind the component's name, as ``GAE(gamma=1.0, lam=0.95)``, where
    the other has another component there.
    """
    left, right = flat(dict(a), whole=True), flat(dict(b), whole=True)
    left, right = _without_empty(left, right), _without_empty(right, left)
    left, right = _with_groups(left, right), _with_groups(right, left)
    keys = [key for key in {**left, **right} if not _equal(left.get(key, ...), right.get(key, ...))]
    apart = [key for key in keys if key in left and key in right]
    inside: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {key: ({}, {}) for key in keys}
    for key in keys:
        above = max((place for place in apart if key.startswith(f"{place}.")), key=len, default=None)
        if above is not None and key not in apart:
            values, side = (left, 0) if key in left else (right, 1)
            inside[above][side][key.removeprefix(f"{above}.")] = values[key]
            del inside[key]
    rows = []
    for key, own in inside.items():
        names = _two_names(left.get(key, ...), right.get(key, ...))
        rows.append(Difference(key, _call(names[0], own[0]), _call(names[1], own[1])))
    return rows


def _without_empty(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The settings but for empty groups that the other has something in: that says it already."""
    return {
        key: value
        for key, value in one.items()
        if value not in ([], {}) or not any(name.startswith(f"{key}.") for name in other)
    }


def _with_groups(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with a place of its own for each group that the other has something else for, such as null."""
    found: dict[str, Any] = {}
    for key, value in one.items():
        parts = key.split(".")
        places = (".".join(parts[:count]) for count in range(1, len(parts)))
        found |= {place: GROUP for place in places if place in other and place not in one}
        found[key] = value
    return found


def _equal(a: Any, b: Any) -> bool:
    """As settings: 1 and 1.0 are, 1 and true are not."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _call(name: str, settings: Mapping[str, Any]) -> str:
    """A component with settings, those of the components inside of it behind their names."""
    parts = []
    for key, value in settings.items():
        if not any(key.startswith(f"{place}.") for place in settings):
            inner = {name.removeprefix(f"{key}."): v for name, v in settings.items() if name.startswith(f"{key}.")}
            parts.append(f"{key}={_call(_name(value), inner)}")
    return f"{name}({', '.join(parts)})" if parts else name


def _two_names(a: Any, b: Any) -> tuple[str, str]:
    """Classes by their last names, where these tell them apart."""
    short = (_name(a), _name(b))
    return short if short[0] != short[1] else (_shown(a), _shown(b))


def _name(value: Any) -> str:
    if value is GROUP:
        return ""
    return _shown(value.rpartition(".")[2] if isinstance(value, ClassPath) else value)


def _shown(value: Any) -> str:
    """A value on one line; a text that would not be seen, or be taken for something else, in quotes."""
    if value is ...:
        return ABSENT
    if not isinstance(value, str):
        return text(value)
    return value if _is_plain(value) else json.dumps(value, ensure_ascii=False)


def _is_plain(value: str) -> bool:
    if not value.isprintable() or value != value.strip() or value in ("", ABSENT):
        return False
    try:
        json.loads(value)
    except ValueError:
        return True
    return False


# ------------------------------------------------------------------------------------------- what else went in, and out


def _circumstances(stages: Sequence[tuple[StageRecord, StageRecord]]) -> list[Difference]:
    """What the records of the stages differ in besides settings, each once with its stages."""
    found: dict[Difference, list[str]] = {}
    for one, other in stages:
        if one.record and other.record:
            for difference in _otherwise(one.record, other.record):
                found.setdefault(difference, []).append(one.name)
    return [difference._replace(stages=tuple(names)) for difference, names in found.items()]


def _otherwise(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[Difference]:
    parts = (
        ("versions", lambda name: "code of rlhf" if name == "rlhf" else name),
        ("inputs", lambda place: f"content of {place}"),
        ("used_keys", lambda stage: f"earlier stage @{stage}"),
    )
    for part, said in parts:
        left, right = a.get(part) or {}, b.get(part) or {}
        for name in {**left, **right}:
            there = name in left and name in right
            # What one alone reads follows from its settings; a package that one alone has does not.
            if (there or part == "versions") and left.get(name) != right.get(name):
                yield Difference(said(name), _mark(left, name), _mark(right, name))
    left, right = (str(record.get("continued_from") or ABSENT) for record in (a, b))
    if left != right:
        yield Difference("continued from", left, right)


def _mark(known: Mapping[str, str | None], name: str) -> str:
    """A version, or the beginning of a fingerprint."""
    if name not in known:
        return ABSENT
    value = known[name]
    return "not known" if value is None else value if len(value) < 32 else value[:12]


def _costs(a: StageRecord, b: StageRecord) -> Iterator[Cost]:
    """Of a stage, those that are known of either run."""
    seconds = [(stage.done or {}).get("seconds") for stage in (a, b)]
    if seconds != [None, None]:
        yield Cost(a.name, "seconds", *seconds)
    for figure, what, how in COSTS:
        one, other = (_summed(stage.series(figure).values, how) for stage in (a, b))
        if one is not None or other is not None:
            yield Cost(a.name, what, one, other)


def _summed(values: Sequence[float], how: str) -> float | None:
    if not values:
        return None
    return max(values) if how == "max" else sum(values) / len(values)
