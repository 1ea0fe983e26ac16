"""The operations of a profile as a table: self times, programs, steps and layers."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from tpusim.compiler.hlo.shapes import HBM_SPACE, HOST_SPACE, flatten_shape, parse_shape
from tpusim.profiles.recorded import About, DeviceEvents, Events

COLUMNS = (
    "device", "program", "step", "instruction", "category", "start_ps", "duration_ps", "self_ps",
    "wait", "asynchronous", "loops", "layer", "flops", "bytes", "shape", "spaces", "source",
    "scope", "text",
)  # fmt: skip

_LAYER = re.compile(r"(?:layers?|blocks?|stages?)[_./\[ ]?(\d+)")
_OPCODE = re.compile(r"\s([a-z][\w-]*)\(")
_DONE = re.compile(r"(?:^|[-_.])done(?:[-_.]\d+)*$")


def operation_table(device: DeviceEvents) -> pd.DataFrame:
    """Return one row per operation of a device, in the order of their starts (`COLUMNS`)."""
    parts = [_rows(device.operations, False), _rows(device.asynchronous, True)]
    table = stacked([part for part in parts if len(part)])
    table["device"] = pd.Categorical([device.name] * len(table))
    table["program"], table["step"] = _programs_of(table["start_ps"].to_numpy(), device.programs)
    return table[list(COLUMNS)]


def step_table(device: DeviceEvents) -> pd.DataFrame:
    """Return one row per execution of a program: its program, start and duration."""
    starts, durations, kinds = device.programs.ordered()
    names = [about.instruction for about in device.programs.abouts]
    return pd.DataFrame(
        {
            "device": pd.Series([device.name] * len(starts), dtype="object"),
            "step": np.arange(len(starts)),
            "program": pd.Series([names[kind] for kind in kinds], dtype="object"),
            "start_ps": starts,
            "duration_ps": durations,
        }
    )


def stacked(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return tables one below the other, with the categories of all."""
    if len(tables) == 1:
        return tables[0]
    names = [name for name in tables[0] if isinstance(tables[0][name].dtype, pd.CategoricalDtype)]
    for name in names:
        shared = dict.fromkeys(each for table in tables for each in table[name].cat.categories)
        for table in tables:
            table[name] = table[name].cat.set_categories([*shared])
    return pd.concat(tables, ignore_index=True)


def _rows(events: Events, asynchronous: bool) -> pd.DataFrame:
    starts, durations, kinds = events.ordered()
    abouts = events.abouts
    table = _facts(abouts, kinds)
    table["start_ps"], table["duration_ps"] = starts, durations
    table["asynchronous"] = asynchronous
    if asynchronous:
        table["self_ps"], outer = durations, np.full(len(starts), -1)
    else:
        table["self_ps"], outer = _nested(starts, durations)
    loops = np.array([_is_loop(about) for about in abouts], bool)
    loop, table["loops"] = _loops(outer, loops[kinds])
    table["layer"] = _layers(table["scope"], kinds, loop)
    return table


def _nested(starts: np.ndarray, durations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the time of each event without those inside it, and the event that it is inside of.

    Of events that overlap, neither inside the other, the later one has the time of both: clocks
    round.
    """
    own, outer = durations.copy(), np.full(len(starts), -1, np.int64)
    begins, ends = starts.data, (starts + durations).data
    self_ps, around = own.data, outer.data
    open_events: list[int] = []
    for at, begin in enumerate(begins):
        end = ends[at]
        while open_events and not begin < ends[open_events[-1]] >= end:
            earlier = open_events.pop()
            if (shared := ends[earlier] - begin) > 0:
                self_ps[earlier] -= shared
                if around[earlier] >= 0:
                    self_ps[around[earlier]] += shared
        if open_events:
            self_ps[open_events[-1]] -= end - begin
            around[at] = open_events[-1]
        open_events.append(at)
    return own, outer


def _facts(kinds: Sequence[About], codes: np.ndarray) -> pd.DataFrame:
    """Return the columns that all events of an operation share. codes: the kind of each row."""
    texts: dict[str, Sequence[str]] = {
        name: [getattr(kind, name) for kind in kinds]
        for name in ("instruction", "source", "scope", "text")
    }
    texts["category"] = [_category(kind) for kind in kinds]
    shapes = [_shape(kind) for kind in kinds]
    texts["shape"], texts["spaces"] = ([each[at] for each in shapes] for at in (0, 1))
    table: dict[str, Any] = {name: _repeated(values, codes) for name, values in texts.items()}
    table["wait"] = np.array([_is_wait(kind) for kind in kinds], bool)[codes]
    for name in ("flops", "bytes"):
        known = np.array([getattr(kind, name) for kind in kinds], float)[codes]
        table[name] = np.where(known >= 0, known, np.nan)
    return pd.DataFrame(table)


def _repeated(values: Sequence[str], codes: np.ndarray) -> pd.Categorical:
    own, categories = pd.factorize(pd.Series(values, dtype="object"))
    return pd.Categorical.from_codes(np.asarray(own)[codes] if len(codes) else [], categories)


def _category(kind: About) -> str:
    """Return the category that is recorded, or else the opcode of the HLO line, if there is one."""
    found = _OPCODE.search(kind.text)
    return kind.category or (found[1] if found else "")


def _is_wait(kind: About) -> bool:
    """Return True for the end of an asynchronous operation, for which the core may wait."""
    return _category(kind).endswith("-done") or bool(_DONE.search(kind.instruction))


def _is_loop(kind: About) -> bool:
    """Return True for a loop, whose events contain those of its body."""
    return (_category(kind) or kind.instruction.partition(".")[0]) == "while"


def _shape(kind: About) -> tuple[str, str]:
    """Return the shapes of an operation's results, and the memories that they are in."""
    line = kind.text.partition(" = ")[2]
    end = _OPCODE.search(line)
    try:
        arrays = flatten_shape(parse_shape(line[: end.start()] if end else kind.shape))
    except (ValueError, IndexError, AttributeError, TypeError, RecursionError):
        return "", ""
    names = {HBM_SPACE: "HBM", HOST_SPACE: "host"}
    spaces = dict.fromkeys(names.get(each.space, "chip") for each in arrays)
    return ", ".join(map(str, arrays)), ", ".join(spaces)


def _loops(outer: np.ndarray, loops: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the innermost loop that each event is inside of, as a row or -1, and their number.

    outer: the event that each is inside of. loops: True for a loop.
    """
    found, count = np.full(len(outer), -1, np.int64), np.zeros(len(outer), np.int64)
    loop, depth, around = found.data, count.data, outer.data
    for at in np.flatnonzero(outer >= 0).tolist():
        inside = around[at]
        loop[at] = inside if loops[inside] else loop[inside]
        depth[at] = depth[inside] + bool(loops[inside])
    return found, count


def _layers(scopes: pd.Series, kinds: np.ndarray, loop: np.ndarray) -> np.ndarray:
    """Return the layer of each row; -1 where it is not known.

    It is the number in the name of the scope or, in a loop, of the iteration. JAX runs the backward
    pass of a loop from the last layer to the first. Of loops inside each other the layers' is the
    one whose body has the most operations: those around it are microbatches, and those inside it
    parts of a layer.

    loop: the innermost loop of each row, as a row.
    """
    codes = scopes.cat.codes.to_numpy()
    named = np.array([_named_layer(scope) for scope in scopes.cat.categories], np.int64)
    iteration = pd.Series(kinds).groupby([loop, kinds]).cumcount().to_numpy()
    rows = np.flatnonzero(loop >= 0)
    loops, inside = np.unique(loop[rows], return_inverse=True)
    back = scopes.cat.categories.str.contains("transpose(", regex=False)[codes[rows]]
    backward = np.bincount(inside[back], minlength=len(loops)) > 0
    last = np.zeros(len(loops), np.int64)
    np.maximum.at(last, inside, iteration[rows])
    layer = np.full(len(loop), -1)
    layer[rows] = np.where(backward[inside], last[inside] - iteration[rows], iteration[rows])
    richness = np.bincount(inside[iteration[rows] == 0], minlength=len(loops))
    follows = np.zeros(len(loops), bool)
    place = dict(zip(loops.tolist(), range(len(loops)), strict=True))
    for at in loops[loop[loops] >= 0].tolist():
        around, own = place[loop[at]], place[at]
        if follows[around]:
            layer[at] = layer[loop[at]]
        if richness[own] < richness[around]:
            follows[own], richness[own] = True, richness[around]
    layer[rows] = np.where(follows[inside], layer[loop[rows]], layer[rows])
    return np.where(named[codes] >= 0, named[codes], layer)


def _named_layer(scope: str) -> int:
    found = _LAYER.search(scope)
    return int(found[1]) if found and len(found[1]) < 6 else -1


def _programs_of(starts: np.ndarray, programs: Events) -> tuple[pd.Categorical, np.ndarray]:
    """Return the program that runs at each of some times, and the number of its execution."""
    begins, durations, kinds = programs.ordered()
    step = np.searchsorted(begins, starts, side="right") - 1
    inside = (step >= 0) & (starts < (begins + durations)[step])
    step = np.where(inside, step, -1)
    codes, names = pd.factorize(
        pd.Series([about.instruction for about in programs.abouts], dtype="object")
    )
    found = np.where(inside, np.asarray(codes)[kinds][step], -1)
    return pd.Categorical.from_codes(found, names), step
