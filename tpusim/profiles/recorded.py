"""What a profile file holds, whatever its format: devices, their events, and programs."""

import re
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from tpusim.base.plain_text import visible

LONGEST_PS = 2**56
"""Times above it, 20 hours, are no times of a profile."""


class About(NamedTuple):
    """What is known of all events of one operation.

    instruction: the name in the HLO; of a program, its name with the fingerprint.
    category: XLA's `hlo_category`; empty if it is not recorded.
    text: the HLO line; may be cut.
    shape: of its result, with layouts, where it is recorded apart from the line.
    flops, bytes: what the compiler counts, of one execution; negative if it is not recorded.
    source: the file and line of the user's code, such as `model.py:42`.
    scope: JAX's name of the operation, such as `jit(step)/layer/dot_general`.
    """

    instruction: str
    category: str = ""
    text: str = ""
    shape: str = ""
    flops: float = -1.0
    bytes: float = -1.0
    source: str = ""
    scope: str = ""


class Events:
    """The events of a kind of one device: what it did, and when.

    starts, durations: picoseconds since the profile began. kinds: the index of each in `abouts`.
    impossible: events that are left out, as their times are none.
    """

    def __init__(self) -> None:
        self.starts, self.durations, self.kinds = array("q"), array("q"), array("q")
        self.impossible = 0
        self._numbers: dict[About, int] = {}

    @property
    def abouts(self) -> tuple[About, ...]:
        """What the events are about."""
        return tuple(self._numbers)

    def __len__(self) -> int:
        return len(self.starts)

    def number(self, about: About) -> int:
        """Return the kind of an event."""
        return self._numbers.setdefault(about, len(self._numbers))

    def add(self, start_ps: int, duration_ps: int, kind: int) -> None:
        """Add an event, unless its times are none."""
        if -LONGEST_PS < start_ps < LONGEST_PS and 0 <= duration_ps < LONGEST_PS:
            self.starts.append(start_ps)
            self.durations.append(duration_ps)
            self.kinds.append(kind)
        else:
            self.impossible += 1

    def ordered(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return starts, durations and kinds, by the starts; an event before what is inside it."""
        starts, durations, kinds = map(np.asarray, (self.starts, self.durations, self.kinds))
        order = np.lexsort((-durations, starts))
        return starts[order], durations[order], kinds[order]


@dataclass(slots=True)
class DeviceEvents:
    """The events of one device (a core, or a die).

    programs: executions of whole programs. steps: as the profiler marked them, if it did.
    operations: on the core; a loop's event contains those of its body.
    asynchronous: of the engines beside the core, such as copies and SparseCores.
    """

    name: str
    programs: Events = field(default_factory=Events)
    steps: Events = field(default_factory=Events)
    operations: Events = field(default_factory=Events)
    asynchronous: Events = field(default_factory=Events)

    @property
    def all_events(self) -> tuple[Events, ...]:
        """Events of each kind."""
        return self.programs, self.steps, self.operations, self.asynchronous


@dataclass(slots=True)
class Recorded:
    """A profile as it was read.

    devices: the TPU devices, by name. others: names of other devices, such as GPUs.
    programs: HLO protos by the names of programs.
    kind: the device's kind as the profiler states it, such as `TPU v6 Lite`; empty if unknown.
    peak_flops: of a device per second, as the profiler states it; 0 if unknown.
    epoch_ns: the first timestamp that counts from 1970; 0 if none does.
    notes: why parts are missing, in sentences.
    """

    devices: dict[str, DeviceEvents] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    programs: Mapping[str, bytes] = field(default_factory=dict)
    kind: str = ""
    peak_flops: float = 0.0
    epoch_ns: int = 0
    notes: tuple[str, ...] = ()

    def begin_at_zero(self) -> None:
        """Count times from the first event."""
        every = [each for device in self.devices.values() for each in device.all_events if each]
        first = min((min(each.starts) for each in every), default=0)
        for each in every:
            each.starts = array("q", (start - first for start in each.starts))

    def events(self, plane: str, line: str) -> Events | None:
        """Return where the events of a line go; None if they are not read.

        plane: such as `/device:TPU:0`. line: such as `XLA Ops`.
        """
        if not (tpu := _TPU.fullmatch(plane)):
            return None
        kind = (_SPARSE_LINES if tpu[2] else LINES).get(line)
        return getattr(self.device(tpu[1]), kind) if kind else None

    def device(self, name: str) -> DeviceEvents:
        """Return the device of a name, such as `TPU:0`, which is made if need be."""
        return self.devices.setdefault(name, DeviceEvents(name))

    def add_plane(self, plane: str) -> bool:
        """Note a plane, and return True for one of a TPU."""
        if tpu := _TPU.fullmatch(plane):
            self.device(tpu[1])
        elif plane.startswith(DEVICE) and not plane.startswith(_NO_DEVICE):
            self.others.append(clean(plane.removeprefix(DEVICE)))
        return tpu is not None


DEVICE = "/device:"
_NO_DEVICE = f"{DEVICE}CUSTOM:"
_TPU = re.compile(rf"{DEVICE}(TPU:\d{{1,9}})( SparseCore \d+)?")
LINES = {
    "XLA Modules": "programs",
    "Steps": "steps",
    "XLA Ops": "operations",
    "Async XLA Ops": "asynchronous",
}
"""Lines of a device that are read, and the field that holds their events."""

_SPARSE_LINES = {"Sparse Core Ops": "asynchronous", "XLA Ops": "asynchronous"}
"""Lines of a SparseCore, which works beside the core."""

_SEGMENTS = r"(?:[\w.@+~%-]+(?: [\w.@+~%-]+)*[\\/]+)"
_PATH = re.compile(rf"(?<![\w)\]>}}.*])(?:[A-Za-z]:[\\/]+{_SEGMENTS}*|[~\\/]+{_SEGMENTS}+)")
_FILE = re.compile(r"(file=|\bfile:)(\"?)[^\"\s]{0,1000}[\\/]")
_CODE = re.compile(r"[A-Za-z0-9+/=]{300,}")


def clean(text: str) -> str:
    """Return a text that a profile holds without control characters and the folders of paths.

    A kernel's serialised code, which may hold paths, is an ellipsis.

    >>> clean('dot(a), metadata={op_name="jit(f)/x/dot" source_file="/home/ann/my work/a.py"}')
    'dot(a), metadata={op_name="jit(f)/x/dot" source_file="a.py"}'
    """
    return _FILE.sub(r"\1\2", _PATH.sub("", _CODE.sub("…", visible(text))))


def about_of(name: str, facts: Mapping[str, object]) -> About:
    """Return what a profiler's statistics say of an operation.

    name: of the instruction, or its HLO line.
    facts: by XProf's names, such as `hlo_category`.
    """
    text, source = (str(facts.get(key, "")) for key in ("long_name", "source"))
    return About(
        instruction=clean(name.split(" = ")[0].lstrip("%")),
        category=clean(str(facts.get("hlo_category", ""))),
        text=clean(text) if " = " in text else "",
        shape=clean(str(facts.get("shape_with_layout", ""))),
        flops=_number(facts, "model_flops", "flops"),
        bytes=_number(facts, "raw_bytes_accessed", "bytes_accessed"),
        source=visible(source.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]),
        scope=clean(str(facts.get("tf_op", "")).rstrip(":")),
    )


def _number(facts: Mapping[str, object], *keys: str) -> float:
    for key in keys:
        try:
            return float(facts[key])  # type: ignore[arg-type]
        except (KeyError, ValueError, TypeError, OverflowError):
            continue
    return -1.0
