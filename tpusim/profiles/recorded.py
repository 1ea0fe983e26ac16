"""What a profile file holds, whatever its format: devices, their events, and programs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class About(NamedTuple):
    """What is known of all events of one operation.

    instruction: the name in the HLO; of a program, its name with the fingerprint.
    category: XLA's `hlo_category`; empty if it is not recorded.
    text: the HLO line; may be cut.
    flops, bytes: what the compiler counts, of one execution; negative if it is not recorded.
    source: the file and line of the user's code, such as `model.py:42`.
    scope: JAX's name of the operation, such as `jit(step)/layer/dot_general`.
    """

    instruction: str
    category: str = ""
    text: str = ""
    flops: float = -1.0
    bytes: float = -1.0
    source: str = ""
    scope: str = ""


class Event(NamedTuple):
    """Something that a device did. Times in picoseconds since the profile began."""

    start_ps: int
    duration_ps: int
    about: About


@dataclass(slots=True)
class DeviceEvents:
    """The events of one device (a core, or a die).

    programs: executions of whole programs. steps: as the profiler marked them, if it did.
    operations: on the core; a loop's event contains those of its body.
    asynchronous: of the engines beside the core, such as copies.
    """

    name: str
    programs: Sequence[Event] = ()
    steps: Sequence[Event] = ()
    operations: Sequence[Event] = ()
    asynchronous: Sequence[Event] = ()


@dataclass(slots=True)
class Recorded:
    """A profile as it was read.

    devices: the TPU devices, in their order. others: names of other devices, such as GPUs.
    programs: HLO protos by the names of programs.
    kind: the device's kind as the profiler states it, such as `TPU v6 Lite`; empty if unknown.
    peak_flops: of a device per second, as the profiler states it; 0 if unknown.
    cut: why parts are missing, in words.
    """

    devices: list[DeviceEvents] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    programs: Mapping[str, bytes] = field(default_factory=dict)
    kind: str = ""
    peak_flops: float = 0.0
    cut: tuple[str, ...] = ()


def place_of(path: str) -> str:
    """Return the file and line of a path, without its folders, which may name a user."""
    return path.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
