"""What a profile measured of a step: whole picoseconds of all its executions, added up."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pandas as pd

from tpusim.base.errors import FileError
from tpusim.diagnosis.kinds import HOST, IDLE, OTHER_PROGRAMS, SLOW_STEPS, kind_of
from tpusim.profiles import Profile
from tpusim.profiles.profile import short_name

TRANSPOSED = "transpose("
"""In the scope of an operation of a backward pass."""

BETWEEN_STEPS = "between steps"

SLOW = 1.05
MOST_DEVIATIONS = 8.0
LEAST_STEPS = 3
"""A step is slow if it takes longer than the median of its device by both: this factor, and so many
median absolute deviations. Of fewer steps none is."""

_DONE = re.compile(r"-done(?=[.\d]*$)")
_OPERAND = re.compile(r"\((?:[^%()]|\([^()]*\))*%([\w.-]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSteps:
    """The executions of a profile's main program, on all devices.

    executions: one row each: those of `Profile.steps`, `slow`, and `gap_ps` and `others_ps`, the
        time without and with other programs until the next one (-1 for the last of a device).
    operations: one row per operation, layer and execution, with `self_ps`; the end of an
        asynchronous operation is a part of its start.
    facts: what is known of each operation, by its name: `category`, `kind`, `scope`, `source`,
        `text`.
    """

    program: str
    executions: pd.DataFrame
    operations: pd.DataFrame
    facts: pd.DataFrame

    @property
    def devices(self) -> int:
        """The number of devices."""
        return int(self.executions["device"].nunique())

    @property
    def transposed(self) -> frozenset[str]:
        """The operations of backward passes, by their scopes."""
        scopes = self.facts["scope"]
        return frozenset(scopes.index[scopes.str.contains(TRANSPOSED, regex=False)])

    @property
    def typical(self) -> pd.DataFrame:
        """The executions that are not slow."""
        return self.executions[~self.executions["slow"]]

    def picoseconds(self, runs: pd.DataFrame, *keys: str) -> pd.Series:
        """Return the self times in some executions by columns of `operations`."""
        mine = self.operations.merge(runs[["device", "step"]], on=["device", "step"])
        return mine.groupby([*keys], sort=False, observed=True)["self_ps"].sum()

    def named(self, kinds: Mapping[str, str]) -> "MeasuredSteps":
        """Return the same with these kinds of operations, where they are known."""
        found = self.facts.index.to_series().map(kinds).fillna(self.facts["kind"])
        return replace(self, facts=self.facts.assign(kind=found))

    def mean(self) -> pd.DataFrame:
        """Return the mean step: `operation`, `layer`, `kind` and `measured_ps` of each part.

        `measured_order` is their place in the order of time.
        Operations and idle time are means of the executions that are not slow, and what slow ones
        take longer is a part of its own, spread over all. The picoseconds are whole, rounded so
        that they sum to the mean step: each is less than one off.
        """
        rows = [*self._work(), *self._outside()]
        frame = pd.DataFrame(rows, columns=["operation", "layer", "kind", "exact"])
        frame["measured_ps"] = apportioned(frame.pop("exact"))
        frame["measured_order"] = range(len(frame))
        return frame[frame["measured_ps"] != 0]

    def _work(self) -> Iterator[tuple[str, int, str, Fraction]]:
        typical = self.typical
        sums = self.picoseconds(typical, "operation", "layer")
        kinds = self.facts["kind"]
        for key, total in zip(sums.index.tolist(), sums.tolist(), strict=True):
            yield key[0], int(key[1]), str(kinds[key[0]]), Fraction(int(total), len(typical))
        took = int(typical["duration_ps"].sum())
        yield IDLE, -1, IDLE, Fraction(took - int(sums.sum()), len(typical))
        slower = Fraction(int(self.executions["duration_ps"].sum()), len(self.executions))
        yield SLOW_STEPS, -1, SLOW_STEPS, slower - Fraction(took, len(typical))

    def _outside(self) -> Iterator[tuple[str, int, str, Fraction]]:
        """Yield the time between executions."""
        gaps = self.executions[self.executions["gap_ps"] >= 0]
        if len(gaps):
            yield BETWEEN_STEPS, -1, HOST, Fraction(int(gaps["gap_ps"].sum()), len(gaps))
            others = Fraction(int(gaps["others_ps"].sum()), len(gaps))
            yield OTHER_PROGRAMS, -1, OTHER_PROGRAMS, others


def measured_steps(profile: Profile) -> MeasuredSteps:
    """Return the executions of the program of a profile's steps. Raise FileError for none."""
    program = profile.main
    mine = profile.operations
    mine = mine[(mine["program"] == program) & ~mine["asynchronous"]]
    if mine.empty:
        raise FileError(f"no operation of {short_name(program)} in it; profile whole steps")
    facts = _facts(mine)
    names = mine["instruction"].astype("category").cat
    operation = np.asarray(facts["operation"].reindex(names.categories))[names.codes]
    keys = ["device", "step", "operation", "layer"]
    sums = mine.assign(operation=operation).groupby(keys, sort=False, observed=True)["self_ps"]
    return MeasuredSteps(
        program=program,
        executions=_executions(profile),
        operations=sums.sum().reset_index(),
        facts=facts.drop_duplicates("operation").set_index("operation"),
    )


def _facts(operations: pd.DataFrame) -> pd.DataFrame:
    """Return what is known of each instruction, and the operation that it is a part of."""
    columns = ["instruction", "category", "scope", "source", "text", "wait"]
    first = operations[columns].drop_duplicates("instruction")
    first = first.astype(dict.fromkeys(columns[:-1], "object")).set_index("instruction")
    waits = first[first["wait"]]["text"]
    ends = {str(name): _awaited(str(name), text) for name, text in waits.items()}
    first["operation"] = [_start(str(name), ends) for name in first.index]
    named = zip(first.index, first["category"], first["scope"], strict=True)
    first["kind"] = [kind_of(category, f"{name} {scope}") for name, category, scope in named]
    return first.sort_values("wait", kind="stable")


def _awaited(name: str, text: str) -> str:
    """Return what the end of an asynchronous operation waits for: its operand.

    Parts of tuples are no operations; then it is the start of the same number.
    """
    found = _OPERAND.search(text.partition(" = ")[2])
    if found and not found[1].startswith("get-tuple-element"):
        return found[1]
    return _DONE.sub("-start", name)


def _start(name: str, ends: dict[str, str]) -> str:
    """Return the start of an asynchronous operation; anything else is its own."""
    seen: set[str] = set()
    while ends.get(name) and name not in seen:
        seen.add(name)
        name = ends[name]
    return name


def _executions(profile: Profile) -> pd.DataFrame:
    """Return the executions of the main program, each with the time until the next one."""
    parts = []
    for _, mine in profile.steps.groupby("device", sort=False):
        every = mine.sort_values("start_ps")
        found = every[every["program"] == profile.main].copy()
        others = every[every["program"] != profile.main]
        ends = found["start_ps"] + found["duration_ps"]
        until = found["start_ps"].shift(-1, fill_value=-1)
        used = _used(others, until.clip(lower=ends)) - _used(others, ends)
        found["others_ps"] = used.where(until >= 0, -1)
        found["gap_ps"] = (until - ends - used).where(until >= 0, -1)
        found["slow"] = _slow(found["duration_ps"].to_numpy())
        parts.append(found)
    return pd.concat(parts, ignore_index=True)


def _used(runs: pd.DataFrame, times: pd.Series) -> pd.Series:
    """Return the picoseconds of executions before each of some times."""
    begins = np.sort(runs["start_ps"].to_numpy())
    ends = np.sort((runs["start_ps"] + runs["duration_ps"]).to_numpy())
    begun, ended = (_since(each, times.to_numpy()) for each in (begins, ends))
    return pd.Series(begun - ended, index=times.index)


def _since(events: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the sum of the times since the events before each of some times."""
    count = np.searchsorted(events, times)
    return np.asarray(count * times - np.concatenate([[0], np.cumsum(events)])[count])


def _slow(durations: np.ndarray) -> np.ndarray:
    if len(durations) < LEAST_STEPS:
        return np.zeros(len(durations), bool)
    middle = np.median(durations)
    spread = np.median(np.abs(durations - middle))
    return np.asarray(durations > max(SLOW * middle, middle + MOST_DEVIATIONS * spread))


def apportioned(exact: Sequence[Fraction] | pd.Series) -> list[int]:
    """Return whole numbers, each less than one off, that sum to the rounded sum.

    >>> apportioned([Fraction(1, 3), Fraction(1, 3), Fraction(1, 3)])
    [0, 1, 0]
    """
    found, total, before = [], Fraction(0), 0
    for each in exact:
        total += each
        rounded = round(total)
        found.append(rounded - before)
        before = rounded
    return found
