"""Steps side by side: their numbers, their settings, and the causes of their differences.

A step's breakdown sums to the step, so the differences of its parts sum to that of the steps. This
says where the time is spent, not what would be saved: a collective that is hidden in one step and
exposed in the other is a difference of exposed communication, whatever made room for it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any

from tpusim.base.checked_call import checked_call
from tpusim.base.errors import PlanError
from tpusim.base.short_repr import ShortRepr
from tpusim.base.shown_value import cut
from tpusim.base.text_table import folded_table
from tpusim.base.text_width import PAGE_WIDTH, table_width
from tpusim.base.units import format_bytes, format_seconds
from tpusim.compiler.compiled import Compiled
from tpusim.report.compared_step import ComparedStep, read_step, step_of
from tpusim.results import PICO, Result, entry
from tpusim.simulation import simulate

if TYPE_CHECKING:
    from pandas import DataFrame

MOST_STEPS = len(ascii_uppercase)
"""Steps of a comparison at most: each is named by a letter."""

MOST_SETTINGS = 12
"""Settings that differ, at most."""

UNKNOWN = "-"


TIMES_AS_LONG = 2
"""The ratio of two steps from which it is said as such."""


@dataclass(frozen=True, slots=True)
class StepDifference:
    """What step `b` takes more than step `a`, and less where it is negative.

    names: of the two steps.
    """

    a: ComparedStep
    b: ComparedStep
    names: tuple[str, str]

    @property
    def difference_ps(self) -> int:
        """Whole picoseconds."""
        return self.b.step_ps - self.a.step_ps

    @property
    def parts_ps(self) -> dict[str, int]:
        """Whole picoseconds by cause, the largest first; they sum to the difference.

        The causes are the labels of a breakdown: kinds of work, exposed communication by mesh axes,
        waits and bubbles.
        """
        return _differences(self.a.breakdown_ps, self.b.breakdown_ps)

    @property
    def phases_ps(self) -> dict[str, int]:
        """Whole picoseconds by phase, the largest first; they sum to the difference."""
        return _differences(self.a.phases_ps, self.b.phases_ps)

    def facts(self) -> Mapping[str, Any]:
        """Return the difference as plain data, in seconds, and exactly in picoseconds."""
        return {
            "a": self.names[0],
            "b": self.names[1],
            "a_s": self.a.step_time_s,
            "b_s": self.b.step_time_s,
            "difference_s": self.difference_ps * PICO,
            "parts_s": _in_seconds(self.parts_ps),
            "phases_s": _in_seconds(self.phases_ps),
            "a_ps": self.a.step_ps,
            "b_ps": self.b.step_ps,
            "difference_ps": self.difference_ps,
            "parts_ps": self.parts_ps,
        }

    def __str__(self) -> str:
        a, b = self.names
        times = f"{format_seconds(self.b.step_time_s)} against {format_seconds(self.a.step_time_s)}"
        if not self.difference_ps:
            return f"{b} takes as long as {a}: {format_seconds(self.a.step_time_s)}"
        ratio = self.b.step_ps / self.a.step_ps
        how = f"{abs(ratio - 1):.1%} {'longer' if ratio > 1 else 'less'} than"
        if ratio >= TIMES_AS_LONG:
            how = f"{ratio:.1f} times as long as"
        sign = 1 if ratio > 1 else -1
        cause, most = max(self.parts_ps.items(), key=lambda part: sign * part[1])
        part = f"{'-+'[most > 0]}{format_seconds(abs(most) * PICO)}"
        return f"{b} takes {how} {a} ({times}); the largest cause is {cause} ({part})"


def _differences(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    """Return what `b` has more of each part, the largest first."""
    parts = {name: b.get(name, 0) - a.get(name, 0) for name in {**a, **b}}
    return dict(sorted(parts.items(), key=lambda part: -abs(part[1])))


def _in_seconds(parts: Mapping[str, int]) -> dict[str, float]:
    """Return whole picoseconds as seconds."""
    return {name: picoseconds * PICO for name, picoseconds in parts.items()}


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(ShortRepr):
    """Steps side by side, named A, B and so on, and their differences from the first.

    steps: two or more.
    """

    steps: tuple[ComparedStep, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each step: A, B, and so on."""
        return tuple(ascii_uppercase[: len(self.steps)])

    @property
    def differences(self) -> tuple[StepDifference, ...]:
        """Each other step against the first."""
        first, *others = self.steps
        a, *names = self.names
        return tuple(
            StepDifference(first, other, (a, name))
            for name, other in zip(names, others, strict=True)
        )

    @property
    def difference_ps(self) -> int:
        """Whole picoseconds that the second step takes more than the first."""
        return self.differences[0].difference_ps

    @property
    def parts_ps(self) -> dict[str, int]:
        """`difference_ps` by cause, the largest first; sums to it."""
        return self.differences[0].parts_ps

    @property
    def causes(self) -> tuple[str, ...]:
        """The labels of all breakdowns, those that differ most first."""
        most: dict[str, int] = {}
        for difference in self.differences:
            for label, picoseconds in difference.parts_ps.items():
                most[label] = max(most.get(label, 0), abs(picoseconds))
        return tuple(sorted(most, key=lambda label: -most[label]))

    @property
    def table(self) -> "DataFrame":
        """A row for each number and each part of the step, in SI units.

        The columns are `quantity`, `unit`, the names of the steps, and `B - A` and so on. A number
        that is not known is NaN.
        """
        from pandas import DataFrame

        rows = [
            (what, unit, *values, *(each - values[0] for each in values[1:]))
            for what, unit, values in self._rows()
        ]
        return DataFrame(rows, columns=["quantity", "unit", *self.names, *self.columns])

    @property
    def different_settings(self) -> dict[str, tuple[Any, ...]]:
        """The settings that differ among the steps that have them: the value of each step.

        A step that has no such setting, such as a compiled program a key of the plan, has None.
        """
        found: dict[str, tuple[Any, ...]] = {}
        for key in dict.fromkeys(key for step in self.steps for key in step.settings):
            held = [step.settings[key] for step in self.steps if key in step.settings]
            if any(value != held[0] for value in held):
                found[key] = tuple(step.settings.get(key) for step in self.steps)
        return found

    def facts(self) -> Mapping[str, Any]:
        """Return the content of `compare.json`, as plain data.

        `a_s`, `b_s`, `difference_s` and `parts_s` are of the first two steps; `against_first` has
        the same for each other step.
        """
        each = [difference.facts() for difference in self.differences]
        steps = {
            name: {
                "title": step.title,
                "source": step.source,
                "step_time_s": step.step_time_s,
                "mfu": step.mfu,
                "hfu": step.hfu,
                "tokens_per_s": step.tokens_per_s,
                "hbm_peak_bytes": step.hbm_peak_bytes,
                "hbm_bytes": step.hbm_bytes,
                "fit": step.fit,
                "breakdown_s": _in_seconds(step.breakdown_ps),
            }
            for name, step in zip(self.names, self.steps, strict=True)
        }
        settings = {
            key: dict(zip(self.names, values, strict=True))
            for key, values in self.different_settings.items()
        }
        return {**each[0], "steps": steps, "settings": settings, "against_first": each}

    def __str__(self) -> str:
        return "\n".join([*_head(self), "", *_tables(self)])

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the differences: `B - A`, and so on."""
        first, *others = self.names
        return tuple(f"{name} - {first}" for name in others)

    def _rows(self) -> Iterator[tuple[str, str, list[float]]]:
        """Yield name, unit and values of the headline, then of the parts of the step."""
        units = {"step_time_s": "s", "mfu": "1", "hfu": "1", "tokens_per_s": "1/s",
                 "hbm_peak_bytes": "B", "hbm_bytes": "B"}  # fmt: skip
        for what, unit in units.items():
            known = (getattr(step, what) for step in self.steps)
            yield what, unit, [float("nan") if value is None else value for value in known]
        for cause in self.causes:
            yield cause, "s", [step.breakdown_ps.get(cause, 0) * PICO for step in self.steps]


@checked_call
def compare(*steps: Result | Compiled | ComparedStep | Path | str) -> Comparison:
    """Return steps side by side, and the causes of their differences from the first.

    steps: two or more: results of plans and of compiled programs, compiled programs, which are
        simulated, and paths of `result.json` files or of the folders that have one.

    The causes are the labels of a breakdown, which sums to its step, so their differences sum to
    the difference of the steps, in whole picoseconds. They say where time is spent, not why.

    Raise PlanError for fewer than two steps or anything else in their place, and FileError for a
    file that is no result.
    """
    if not 2 <= len(steps) <= MOST_STEPS:
        raise PlanError(
            f"compare is given {len(steps)} step{'s' * (len(steps) != 1)}; give 2 to {MOST_STEPS}: "
            "results, compiled programs, or paths of result.json files"
        )
    return Comparison(tuple(map(_compared, steps)))


def _compared(given: object) -> ComparedStep:
    if isinstance(given, ComparedStep):
        return given
    if isinstance(given, Compiled):
        given = simulate(given)
    if isinstance(given, Result):
        return step_of(given)
    if isinstance(given, (str, Path)):
        if str(given).endswith(".toml"):
            raise PlanError(
                f"{given} is a run file; simulate it first: run = ts.read_run(path), then "
                "ts.simulate(run.model, run.plan, run.pod)"
            )
        return read_step(given)
    raise PlanError(
        f"compare is given {given!r:.60}, which is no step; give a result, a compiled program, or "
        "the path of a result.json"
    )


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of the table: the value of each step, and what the others have more than the first."""

    name: str
    values: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()


def _head(c: Comparison) -> Iterator[str]:
    for at, difference in enumerate(c.differences):
        yield from entry("" if at else "compare", str(difference))
    for name, step in zip(c.names, c.steps, strict=True):
        yield from entry(name, f"{step.title}{f', from {step.source}' if step.source else ''}")
    settings = [*c.different_settings.items()]
    for at, (key, values) in enumerate(settings[:MOST_SETTINGS]):
        yield from entry("" if at else "settings", f"{key}: {' | '.join(map(_shown, values))}")
    if len(settings) > MOST_SETTINGS:
        yield from entry("", f"and {len(settings) - MOST_SETTINGS} others")


def _shown(value: Any) -> str:
    """Return a setting as one cell.

    >>> _shown({"fsdp": 16, "tensor": ["x", "y"]})
    'fsdp=16 tensor=x,y'
    """
    if value is None or value in ("", [], {}):
        return "none"
    if isinstance(value, Mapping):
        return cut(" ".join(f"{key}={_shown(inner)}" for key, inner in value.items()))
    if isinstance(value, list):
        return cut(",".join(map(_shown, value)))
    return cut(f"{value:g}" if isinstance(value, float) else str(value))


def _tables(c: Comparison) -> Iterator[str]:
    """Yield one table, or where it is too wide, one of the values and one of the differences."""
    rows = [*_rows(c)]
    whole = [(row.name, *row.values, *row.changes) for row in rows]
    shares = ("of A",) if len(c.steps) == 2 else ()
    lines = [*folded_table([("", *c.names, *c.columns, *shares), *whole])]
    if max(map(len, lines)) <= (table_width() or PAGE_WIDTH):
        yield from lines
        return
    yield from folded_table([("", *c.names), *((row.name, *row.values) for row in rows)])
    yield ""
    changed = [row for row in rows if any(row.changes)]
    yield from folded_table([("", *c.columns), *((row.name, *row.changes) for row in changed)])


def _rows(c: Comparison) -> Iterator[TableRow]:
    longest = max(step.step_ps for step in c.steps)
    scale, unit = (PICO, "s") if longest >= 10**12 else (PICO * 1e3, "ms")
    steps = c.steps
    yield _row(c, f"step time [{unit}]", [s.step_ps for s in steps], *_times(scale), share=True)
    yield _row(c, "MFU", [s.mfu for s in steps], "{:.1%}".format, _points)
    yield _row(c, "HFU", [s.hfu for s in steps], "{:.1%}".format, _points)
    tokens = [s.tokens_per_s for s in steps]
    yield _row(c, "tokens/s", tokens, "{:,.0f}".format, "{:+,.0f}".format)
    yield _row(c, "HBM peak", [s.hbm_peak_bytes for s in steps], format_bytes, _signed_bytes)
    yield TableRow("fit", tuple(step.fit for step in c.steps))
    yield TableRow("")
    yield TableRow(f"where the step goes [{unit}]")
    for cause in c.causes:
        parts = [step.breakdown_ps.get(cause, 0) for step in c.steps]
        yield _row(c, f"  {cause}", parts, *_times(scale), share=True)
    sums = [sum(step.breakdown_ps.values()) for step in c.steps]
    yield _row(c, "  sum", sums, *_times(scale), share=True)
    yield TableRow("by phase")
    for phase in dict.fromkeys(phase for step in c.steps for phase in step.phases_ps):
        parts = [step.phases_ps.get(phase, 0) for step in c.steps]
        yield _row(c, f"  {phase}", parts, *_times(scale), share=True)


def _row(
    c: Comparison,
    name: str,
    numbers: Sequence[float | None],
    written: Callable[[float], str],
    signed: Callable[[float], str],
    *,
    share: bool = False,
) -> TableRow:
    """Return the row of a number; with `share` of two steps, also its change over the step of A."""
    first, *others = numbers
    changes = [None if first is None or n is None else n - first for n in others]
    cells = [UNKNOWN if change is None else signed(change) for change in changes]
    if share and len(changes) == 1:
        cells += [f"{change / c.steps[0].step_ps:+.1%}" for change in changes if change is not None]
    values = (UNKNOWN if n is None else written(n) for n in numbers)
    return TableRow(name, tuple(values), tuple(cells))


def _times(scale: float) -> tuple[Callable[[float], str], Callable[[float], str]]:
    """Return how picoseconds are written, and how differences of them are."""
    return (lambda ps: f"{ps * scale:.3f}"), (lambda ps: f"{ps * scale:+.3f}")


def _points(difference: float) -> str:
    return f"{difference * 100:+.1f} points"


def _signed_bytes(difference: float) -> str:
    return f"{'-' if difference < 0 else '+'}{format_bytes(abs(difference))}"
