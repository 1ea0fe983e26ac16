"""The operations of a profile as a table: self times, programs, steps and layers."""

import re
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from tpusim.compiler.hlo.shapes import HBM_SPACE, HOST_SPACE, flatten_shape, parse_shape
from tpusim.profiles.recorded import About, DeviceEvents, Event

COLUMNS = (
    "device", "program", "step", "instruction", "category", "start_ps", "duration_ps", "self_ps",
    "wait", "asynchronous", "loops", "layer", "flops", "bytes", "shape", "spaces", "source",
    "scope", "text",
)  # fmt: skip

LONGEST_PS = 2**61
"""Times above it are no times of a device."""

_LAYER = re.compile(r"(?:layers?|blocks?|stages?)[_./\[ ]?(\d+)")
_OPCODE = re.compile(r"\s([a-z][\w-]*)\(")
_DONE = re.compile(r"(?:^|[-_.])done(?:[-_.]\d+)*$")
_PATH = re.compile(r"(?:/[\w.@+-]+){2,}/")


def operation_table(device: DeviceEvents) -> pd.DataFrame:
    """Return one row per operation of a device, in the order of their starts (`COLUMNS`)."""
    parts = [
        _rows(_ordered(events), asynchronous)
        for events, asynchronous in ((device.operations, False), (device.asynchronous, True))
    ]
    table = pd.concat(parts, ignore_index=True)
    table["device"] = pd.Categorical([device.name] * len(table))
    program, step = _programs_of(table["start_ps"].to_numpy(), _ordered(device.programs))
    table["program"], table["step"] = program, step
    return table[list(COLUMNS)]


def step_table(device: DeviceEvents) -> pd.DataFrame:
    """Return one row per execution of a program: its program, start and duration."""
    programs = _ordered(device.programs)
    return pd.DataFrame(
        {
            "device": pd.Series([device.name] * len(programs), dtype="object"),
            "step": np.arange(len(programs)),
            "program": pd.Series([event.about.instruction for event in programs], dtype="object"),
            "start_ps": np.array([event.start_ps for event in programs], np.int64),
            "duration_ps": np.array([event.duration_ps for event in programs], np.int64),
        }
    )


def _ordered(events: Iterable[Event]) -> list[Event]:
    """Return events with possible times, by their starts; an event before what is inside it."""
    found = [each for each in events if 0 <= each.start_ps < LONGEST_PS]
    found = [each for each in found if 0 <= each.duration_ps < LONGEST_PS]
    return sorted(found, key=lambda event: (event.start_ps, -event.duration_ps))


def _rows(events: Sequence[Event], asynchronous: bool) -> pd.DataFrame:
    starts = np.array([event.start_ps for event in events], np.int64)
    lasts = np.array([event.duration_ps for event in events], np.int64)
    numbers: dict[About, int] = {}
    kinds = np.array([numbers.setdefault(e.about, len(numbers)) for e in events], np.int64)
    own, outer = (lasts, np.full(len(events), -1)) if asynchronous else _nested(starts, lasts)
    table = _facts(list(numbers), kinds)
    table["start_ps"], table["duration_ps"], table["self_ps"] = starts, lasts, own
    table["asynchronous"] = asynchronous
    table["loops"], table["layer"] = _layers(table, kinds, outer)
    return table


def _nested(starts: np.ndarray, lasts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the time of each event without those inside it, and the event that it is inside of.

    Of events that overlap, neither inside the other, the later one has the time of both: clocks
    round.
    """
    own, outer = lasts.copy(), np.full(len(starts), -1, np.int64)
    open_events: list[int] = []
    ends = starts + lasts
    for at in range(len(starts)):
        while open_events and ends[open_events[-1]] < ends[at]:
            earlier = open_events.pop()
            shared = max(ends[earlier] - starts[at], 0)
            own[earlier] -= shared
            if outer[earlier] >= 0:
                own[outer[earlier]] += shared
        if open_events and ends[open_events[-1]] > starts[at]:
            outer[at] = open_events[-1]
            own[outer[at]] -= lasts[at]
        open_events.append(at)
    return own, outer


def _facts(kinds: Sequence[About], codes: np.ndarray) -> pd.DataFrame:
    """Return the columns that all events of an operation share. codes: the kind of each row."""
    texts = {
        "instruction": [kind.instruction for kind in kinds],
        "category": [kind.category or opcode(kind.text) for kind in kinds],
        "shape": [_shape(kind.text)[0] for kind in kinds],
        "spaces": [_shape(kind.text)[1] for kind in kinds],
        "source": [kind.source for kind in kinds],
        "scope": [kind.scope for kind in kinds],
        "text": [_PATH.sub("", kind.text) for kind in kinds],
    }
    numbers = {
        "flops": np.array([kind.flops for kind in kinds], float),
        "bytes": np.array([kind.bytes for kind in kinds], float),
        "wait": np.array([is_wait(kind) for kind in kinds], bool),
    }
    table = {name: _repeated(values, codes) for name, values in texts.items()}
    table |= {name: values[codes] for name, values in numbers.items()}
    found = pd.DataFrame(table)
    return found.assign(**{n: found[n].where(found[n] >= 0) for n in ("flops", "bytes")})


def _repeated(values: Sequence[str], codes: np.ndarray) -> pd.Categorical:
    own, categories = pd.factorize(pd.Series(values, dtype="object"))
    return pd.Categorical.from_codes(np.asarray(own)[codes] if len(codes) else [], categories)


def opcode(text: str) -> str:
    """Return the opcode of an HLO line; empty if it has none."""
    found = _OPCODE.search(text)
    return found[1] if found else ""


def is_wait(kind: About) -> bool:
    """Return True for the end of an asynchronous operation, for which the core may wait."""
    return (kind.category or opcode(kind.text)).endswith("-done") or bool(
        _DONE.search(kind.instruction)
    )


def _shape(text: str) -> tuple[str, str]:
    """Return the shapes of an operation's results, and the memories that they are in."""
    line = text.partition(" = ")[2]
    end = _OPCODE.search(line)
    try:
        arrays = flatten_shape(parse_shape(line[: end.start()] if end else ""))
    except (ValueError, IndexError, AttributeError, TypeError):
        return "", ""
    names = {HBM_SPACE: "HBM", HOST_SPACE: "host"}
    spaces = dict.fromkeys(names.get(each.space, "chip") for each in arrays)
    return ", ".join(map(str, arrays)), ", ".join(spaces)


def _layers(
    table: pd.DataFrame, kinds: np.ndarray, outer: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return how many loops each row is inside of, and its layer (-1 if it is not known).

    The layer is the number in the name of the scope or, in the body of a loop, of the iteration.
    """
    depth = np.zeros(len(table), np.int64)
    for at, around in enumerate(outer):
        if around >= 0:
            depth[at] = depth[around] + 1
    iteration = pd.Series(kinds).groupby([outer, kinds]).cumcount().to_numpy()
    named = np.array([_named_layer(scope) for scope in table["scope"].cat.categories], np.int64)
    codes = table["scope"].cat.codes.to_numpy()
    layer = np.where(depth > 0, iteration, -1)
    if len(named):
        layer = np.where(named[codes] >= 0, named[codes], layer)
    return depth, layer


def _named_layer(scope: str) -> int:
    found = _LAYER.search(scope)
    return int(found[1]) if found and len(found[1]) < 6 else -1


def _programs_of(
    starts: np.ndarray, programs: Sequence[Event]
) -> tuple[pd.Categorical, np.ndarray]:
    """Return the program that runs at each of some times, and the number of its execution."""
    begins = np.array([event.start_ps for event in programs], np.int64)
    ends = begins + np.array([event.duration_ps for event in programs], np.int64)
    step = np.searchsorted(begins, starts, side="right") - 1
    inside = step >= 0
    inside[inside] = starts[inside] < ends[step[inside]]
    step = np.where(inside, step, -1)
    codes, names = pd.factorize(
        pd.Series([event.about.instruction for event in programs], dtype="object")
    )
    found = np.full(len(starts), -1)
    found[inside] = np.asarray(codes)[step[inside]]
    return pd.Categorical.from_codes(found, names), step
