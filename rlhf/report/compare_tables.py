"""What a comparison of two runs looks like in a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlhf.report.compare import ABSENT, Comparison, Cost
from rlhf.report.pairs import Answers, StagePair
from rlhf.report.parting import First, Parting
from rlhf.report.runs import RunRecord, StageRecord

WIDE = 120
"""Columns of a terminal from which on figures have their titles beside them."""
KEYS = 0.45
"""Share of a line that the keys of settings have at most, and keep however long the values are."""
MOST_NAMES = 6
"""Names that a line has room for; the rest is counted."""
CHANCE = (
    "Two runs show no spread: whether a difference is more than chance, only several seeds tell. "
    "python -m rlhf.grid runs a setting's values with several seeds, and tests them."
)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Lets the command end in its own way where who read the output has left, as ``head`` does."""
        raise


def print_comparison(found: Comparison, console: Console | None = None) -> None:
    """Prints what differs in tables, and what does not in a line each."""
    console = console or _Console()

    def say(line: str = "", style: str = "") -> None:
        console.print(Text(line, style=style))

    for label, run in (("A", found.a), ("B", found.b)):
        say(f"{label}: {_called(run)}", "bold")
    for line in _what_went_in(found, console.width):
        say(line) if isinstance(line, str) else console.print(line)
    for pair in found.stages:
        say()
        say(_heading(pair), "bold")
        for line in _what_came_out(pair, console.width >= WIDE):
            say(line) if isinstance(line, str) else console.print(line)
    if found.costs:
        say()
        console.print(_cost_table(found.costs))
        for line in _taken([pair for pair in found.stages if pair.name in {cost.stage for cost in found.costs}]):
            say(line)
    if any(_differs(pair) for pair in found.stages):
        say()
        say(CHANCE)


def _called(run: RunRecord) -> str:
    return str(run.directory) + (f", called {run.name}" if run.name != run.directory.name else "")


def _table(title: str, words: Sequence[str], numbers: Sequence[str] = ()) -> Table:
    table = Table(title=Text(title), title_justify="left")
    for heading in words:
        table.add_column(heading, overflow="fold")
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table


# --------------------------------------------------------------------------------------------------------- what went in


def _what_went_in(found: Comparison, width: int) -> Iterator[str | Table]:
    if found.settings:
        table = _table("settings that differ", ("setting", "A", "B"))
        longest = max(cell_len(text) for text in ("setting", *(row.what for row in found.settings)))
        table.columns[0].width = min(longest, int(KEYS * width))
        for row in found.settings:
            table.add_row(*(Text(part) for part in (row.what, row.a, row.b)))
        yield table
    else:
        yield "No setting differs."
    for label, stages in zip("AB", found.only, strict=True):
        if stages:
            told, plural = ", ".join(f"{stage.name} ({stage.algorithm})" for stage in stages), "s" if stages[1:] else ""
            yield f"Only {label} has the stage{plural} {told}; stages are matched by their names."
    if found.circumstances:
        table = _table("what else differs", ("what", "A", "B", "stages"))
        for row in found.circumstances:
            table.add_row(*(Text(part) for part in (row.what, row.a, row.b, ", ".join(row.stages))))
        yield table
    elif found.recorded:
        yield "The code, the packages and the contents of what is read are the same, as far as they are recorded."
    started = [pair.name for pair in found.stages if "not started" not in (pair.a.state, pair.b.state)]
    if unknown := [name for name in started if name not in found.recorded]:
        yield f"Not recorded of {', '.join(unknown)}: the code, the packages and the contents of what is read."


# -------------------------------------------------------------------------------------------------------- what came out


def _heading(pair: StagePair) -> str:
    one, other = pair.a.algorithm, pair.b.algorithm
    return f"{pair.name}: {one}" if one == other else f"{pair.name}: {one} in A, {other} in B"


def _what_came_out(pair: StagePair, wide: bool) -> Iterator[str | Table]:
    waiting = [label for label, stage in (("A", pair.a), ("B", pair.b)) if not stage.metrics]
    if waiting:
        yield f"{' and '.join(waiting)} {'has' if len(waiting) == 1 else 'have'} no figures of it yet."
        return
    yield from _ends(pair)
    if pair.same:
        yield _the_same(pair)
    elif pair.parting is None:
        yield "No figure was taken at a place that both have."
    else:
        yield _parted(pair.parting)
    if pair.same_key and not pair.same and pair.finished:
        yield (
            "Both have one key, so their figures ought to be equal. What made them differ is in no record: the "
            "processor, say, or the number of processes."
        )
    if not pair.same:
        yield from _figures(pair, wide)
    if pair.answers and (not pair.same or pair.answers.equal < pair.answers.prompts):
        yield _answered(pair.answers)


def _ends(pair: StagePair) -> Iterator[str]:
    """How far each has come, where that is not the same, or not the end."""
    if not pair.finished:
        told = "; ".join(f"{label} {_state(stage)}" for label, stage in (("A", pair.a), ("B", pair.b)))
        yield f"{told}. Figures are read where both have them last."
    elif _end(pair.a) != _end(pair.b):
        yield f"A ends at {_end(pair.a)}, B at {_end(pair.b)}: the last figures of each."


def _state(stage: StageRecord) -> str:
    cause = f" ({stage.ended_by})" if stage.ended_by and stage.state == "failed" else ""
    return f"is {stage.state} at {_end(stage)}{cause}" if stage.state != "failed" else f"failed at {_end(stage)}{cause}"


def _end(stage: StageRecord) -> str:
    iterations = [line["iteration"] for line in stage.metrics if line.get("iteration") is not None]
    steps = [line["step"] for line in stage.metrics if "step" in line]
    return f"iteration {max(iterations):g}" if iterations else f"step {max(steps, default=0):g}"


def _the_same(pair: StagePair) -> str:
    told = f"every figure is equal in {_count(len(pair.a.metrics), 'line')} of metrics.jsonl, times"
    if pair.same == "copy":
        return f"The same stage: {told} included."
    return f"The same result: {told} and memory left aside{', though other things went in' if pair.other_key else ''}."


def _parted(parting: Parting) -> str:
    if parting.at is None:
        last = f"{parting.unit} {parting.equal_until:g}"
        return f"Equal as far as both go: {_count(parting.compared, 'figure')}, until {last}."
    until = parting.equal_until
    start = "Not equal from the first on" if until is None else f"Equal until {parting.unit} {until:g}"
    first, *further = parting.figures
    step = f", step {first.step:g}" if parting.unit == "iteration" and first.step is not None else ""
    values = " and ".join(_apart(first))
    text = f"{start}: at {parting.unit} {parting.at:g}{step}, {first.figure} differs first ({values})"
    text += f", then {_names([one.figure for one in further])}" if further else ""
    return f"{text}. That is {len(parting.figures)} of the {_count(parting.compared, 'figure')} there."


def _apart(first: First) -> tuple[str, str]:
    """Both values with as many digits as tell them apart, at least four."""
    if first.a is None or first.b is None:
        return _number(first.a), _number(first.b)
    for digits in range(4, 17):
        texts = f"{first.a:.{digits}g}", f"{first.b:.{digits}g}"
        if texts[0] != texts[1]:
            return texts
    return repr(first.a), repr(first.b)


def _figures(pair: StagePair, wide: bool) -> Iterator[str | Table]:
    if pair.rows:
        yield _figure_table(pair, wide)
    if pair.equal:
        verb = "is" if len(pair.equal) == 1 else "are"
        yield f"{_count(len(pair.equal), 'last figure')} {verb} equal: {_names(pair.equal)}."
    for label, names in zip("AB", pair.only, strict=True):
        if names:
            yield f"Only {label} has {_names(names)}."
    if pair.unmatched:
        yield f"Taken at no place that both have: {_names(pair.unmatched)}."


def _figure_table(pair: StagePair, wide: bool) -> Table:
    spread = any(row.in_deviations is not None for row in pair.rows)
    words = ("figure", "what it is") if wide else ("figure",)
    table = _table(f"{pair.name}: last figures", words, ("A", "B", "B - A", *(["in SD"] if spread else [])))
    group = ""
    for row in pair.rows:
        if row.group != group:
            table.add_section()
            table.add_row(Text(row.group, style="bold"))
            group = row.group
        numbers = [_number(row.a), _number(row.b), _signed(row.difference)]
        numbers += [_signed(row.in_deviations, digits=2) if row.deviation else ""] if spread else []
        table.add_row(Text(f"  {row.figure}"), *([Text(row.title)] if wide else []), *numbers)
    if spread:
        table.caption = "in SD: B - A by the deviation over responses at A's first evaluation"
        table.caption_justify = "left"
    return table


def _answered(answers: Answers) -> str:
    told = f"Answers to the fixed prompts at iteration {answers.iteration}, the last evaluation of both: "
    if not answers.prompts:
        return f"{told}the prompts are others."
    text = f"{told}{answers.equal} of {answers.prompts} are the same, letter for letter"
    return (
        f"{text}; {_count(answers.further, 'answer')} to prompts of one run alone." if answers.further else f"{text}."
    )


# ------------------------------------------------------------------------------------------------------- what it cost


def _cost_table(costs: Sequence[Cost]) -> Table:
    table = _table("what it cost", ("stage", "cost"), ("A", "B", "B / A"))
    stage = ""
    for cost in costs:
        new = cost.stage != stage
        if new:
            table.add_section()
        share = f"{cost.b / cost.a:.3g}" if cost.a and cost.b is not None else ABSENT
        table.add_row(Text(cost.stage if new else ""), Text(cost.what), _cost(cost.a), _cost(cost.b), share)
        stage = cost.stage
    return table


def _cost(value: float | None) -> str:
    return ABSENT if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _taken(pairs: Sequence[StagePair]) -> Iterator[str]:
    """Whose costs are another run's."""
    for label, side in (("A", 0), ("B", 1)):
        names = [pair.name for pair in pairs if (pair.a, pair.b)[side].record.get("taken_from")]
        if names:
            yield f"{label} took {', '.join(names)} from a run that had made the same before: the costs are that run's."


# --------------------------------------------------------------------------------------------------------------- words


def _differs(pair: StagePair) -> bool:
    return bool(pair.rows) or (pair.parting is not None and pair.parting.at is not None)


def _number(value: float | None) -> str:
    if value is None:
        return "NaN"
    return f"{value:.0f}" if value == int(value) and abs(value) < 1e6 else f"{value:.4g}"


def _signed(value: float | None, digits: int = 3) -> str:
    return ABSENT if value is None else "0" if value == 0 else f"{value:+.{digits}g}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _names(names: Sequence[str]) -> str:
    if len(names) <= MOST_NAMES + 1:
        return ", ".join(names)
    return f"{', '.join(names[:MOST_NAMES])} and {len(names) - MOST_NAMES} more"
