"""A compiled program: the TPU compiler's HLO, and facts that the HLO does not record."""

import gzip
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from math import inf
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, get_args

from tpusim.base.errors import FileError, PlanError, nearest
from tpusim.base.plain_text import plain, visible
from tpusim.base.shown_value import shown
from tpusim.base.text_files import path_of, write_file
from tpusim.base.units import format_bytes, format_rate, format_seconds
from tpusim.hardware import Slice, parse_slice

TESTED = {"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.42.1"}
"""Versions with which the tests compile."""

MOST = 1e40
"""The largest number of a header: bytes, seconds, or FLOPs."""

Until: TypeAlias = Literal["code", "schedule"]
"""How far a program is compiled: to the end, or until it is scheduled and has its memory."""
UNTIL: tuple[Until, ...] = get_args(Until)

DevicePosition: TypeAlias = tuple[int, int, int, int, int]
"""Position of a device: slice, x, y, z, core."""


STRUCTURE_ONLY = (
    "structure only, until='schedule': no cycle estimates of the compiler; collectives run by "
    "their usual algorithms"
)
"""What a program lacks for which no code was generated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """Bytes of HBM on one device, as the compiler assigned them.

    total = arguments + outputs + heap.

    outputs: those that do not share an argument's memory.
    aliased: those that do.
    heap: all else, which lives within the step.
    host: memory offloaded to the host.
    exact: True for the compiler's buffer assignment, False for its rougher summary.
    """

    arguments: int
    outputs: int
    aliased: int
    heap: int
    total: int
    host: int = 0
    exact: bool = True

    def __str__(self) -> str:
        parts = (f"{n} {format_bytes(getattr(self, n))}" for n in ("arguments", "outputs", "heap"))
        host = f", and {format_bytes(self.host)} on the host" if self.host else ""
        rough = "" if self.exact else ", by the compiler's summary"
        return f"{format_bytes(self.total)} ({', '.join(parts)}{rough}){host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A program made by `compile` or read by `load`; facts missing in a file are None or empty.

    data: HLO text, scheduled if the TPU compiler made it, or a serialised HloModuleProto.
    devices: the position of each id of the HLO, in the order of ids.
    mesh: axes and their sizes.
    versions: of jax, jaxlib and libtpu.
    flags: compiler flags that were set, as `--name=value`.
    seconds: duration of the compilation.
    model_flops: FLOPs of a step on all devices, without recomputation.
    padding_flops: those of them that are of taps of convolutions on padding.
    from_cache: True if an earlier call compiled it.
    until: how far it was compiled.
    refusal: why the compiler refused it, in a sentence: it needs more HBM than there is. Such a
        program is the last that the compiler tried, scheduled and with its memory.
    """

    name: str
    data: bytes
    slice: Slice | None = None
    devices: tuple[DevicePosition, ...] | None = None
    mesh: tuple[tuple[str, int], ...] | None = None
    memory: MemoryReport | None = None
    versions: tuple[tuple[str, str], ...] = ()
    flags: tuple[str, ...] = ()
    seconds: float | None = None
    model_flops: float | None = None
    padding_flops: float = 0.0
    from_cache: bool = False
    until: Until = "code"
    refusal: str = ""

    @property
    def hlo(self) -> str:
        """The HLO text; empty for a proto."""
        return "" if b"\0" in self.data[:1024] else self.data.decode("utf-8", "replace")

    def save(self, path: str | Path) -> None:
        """Write the HLO after a line of comment, which `load` reads; gzipped for a .gz path.

        Raise FileError if it cannot be written, and for a path at which no regular file stands.
        """
        from tpusim.compiler.hlo.hlo_files import format_header

        facts = format_header(self.facts()) if self.hlo else ""
        data = facts.encode() + self.data.lstrip(b"\n")
        path = path_of(path, "save")
        packed = gzip.compress(data, 6, mtime=0) if path.suffix == ".gz" else data
        write_file(path, packed)

    def facts(self) -> dict[str, Any]:
        """Return all but the HLO, as JSON holds it."""
        return {
            "name": self.name,
            "slice": None if self.slice is None else _spell_slice(self.slice),
            "mesh": None if self.mesh is None else dict(self.mesh),
            "devices": None if self.devices is None else [list(place) for place in self.devices],
            "memory": None if self.memory is None else asdict(self.memory),
            "versions": dict(self.versions),
            "flags": list(self.flags),
            "seconds": self.seconds,
            "model_flops": self.model_flops,
            **({"padding_flops": self.padding_flops} if self.padding_flops else {}),
            **({} if self.until == "code" else {"until": self.until}),
            **({"refusal": self.refusal} if self.refusal else {}),
        }

    @classmethod
    def of(cls, data: bytes, facts: Mapping[str, Any], name: str = "") -> Self:
        """Return the program of HLO and its facts, as `facts` returns them.

        Raise ValueError or TpusimError for malformed facts.
        """
        devices, mesh, memory = (facts.get(key) for key in ("devices", "mesh", "memory"))
        versions = _items(facts.get("versions", {}))
        axes = None if mesh is None else [(axis, _size(size)) for axis, size in _items(mesh)]
        return cls(
            name=plain(str(facts.get("name") or name)),
            data=data,
            slice=None if facts.get("slice") is None else _slice(facts["slice"]),
            devices=None if devices is None else tuple(map(_position, _typed(devices, list))),
            mesh=None if axes is None else tuple(axes),
            memory=None if memory is None else _memory(memory),
            versions=tuple((key, plain(str(made))) for key, made in versions),
            flags=tuple(visible(str(flag)) for flag in _typed(facts.get("flags", []), list)),
            seconds=_number(facts.get("seconds")),
            model_flops=_number(facts.get("model_flops")),
            padding_flops=_number(facts.get("padding_flops")) or 0.0,
            until=_until(facts.get("until", "code")),
            refusal=plain(_typed(facts.get("refusal", ""), str)),
        )

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> list[str]:
        pod = self.slice
        where = f" for {pod} ({pod.devices} devices)" if pod else ""
        axes = ", ".join(f"{axis}={size}" for axis, size in self.mesh or ())
        lines = [f"{self.name}{where}" + (f", mesh {axes}" if axes else "")]
        made = ", ".join(f"{name} {version}" for name, version in self.versions)
        if self.seconds is not None:
            cached = "; now read from the cache" if self.from_cache else ""
            lines.append(f"  compiled in {format_seconds(self.seconds)} ({made}){cached}")
        if self.until == "schedule":
            lines.append(f"  note         {STRUCTURE_ONLY}")
        if self.refusal:
            lines.append(f"  refused      {self.refusal}")
        if self.flags:
            lines.append(f"  flags        {' '.join(self.flags)}")
        other = [f"{k} {TESTED[k]}" for k, v in self.versions if TESTED.get(k, v) != v]
        if other:
            lines.append(f"  note         what is tested is {', '.join(other)}")
        lines.append(f"  HLO          {format_bytes(len(self.data))}")
        if self.memory is not None:
            lines.append(f"  HBM/device   {self.memory}")
        if self.model_flops is not None:
            lines.append(f"  model FLOPs  {format_rate(self.model_flops, 'FLOP')} per step")
        return lines


def load(path: str | Path) -> Compiled:
    """Return the program in a file: HLO text or a serialised HloModuleProto, gzipped or not.

    A file that `Compiled.save` wrote is restored in full; of others only the HLO is known. The HLO
    is not parsed here. Raise FileError for a file that cannot be read.
    """
    from tpusim.compiler.hlo.hlo_files import read_hlo_file

    path = path_of(path, "load")
    facts, data = read_hlo_file(path)
    name = path.name.removesuffix(".gz").removesuffix(".hlo")
    try:
        return Compiled.of(data, facts or {}, name)
    except ValueError as error:
        raise FileError(
            f"{path}: line 1 is not what tpusim writes there ({error}); save the file again, or "
            "delete the line and give the slice yourself"
        ) from error


def check_until(until: object) -> Until:
    """Return how far to compile. Raise PlanError if there is no such choice."""
    for known in UNTIL:
        if until == known:
            return known
    raise PlanError(f"until is {until!r}: {nearest(str(until), UNTIL)}")


def check_flops(model_flops: object) -> None:
    """Raise PlanError for an impossible number of FLOPs per step."""
    if not isinstance(model_flops, (int, float)) or not 0 < model_flops < inf:
        raise PlanError(f"model_flops is {model_flops!r}; write the FLOPs of a step, above 0")


def _spell_slice(pod: Slice) -> str:
    """Return the slice as it prints, with the chip as its file has it."""
    return str(Slice(pod.chip.generation, str(pod.topology), pod.num_slices))


def _slice(spelt: Any) -> Slice:
    """Return the slice of a header; earlier ones list a slice and the number of slices."""
    parts = [spelt] if isinstance(spelt, str) else _typed(spelt, list)
    return parse_slice(" x ".join(map(str, parts)))


def _typed(value: Any, *kinds: type) -> Any:
    """Return the value. Raise ValueError if it is of none of these types."""
    if not isinstance(value, kinds):
        raise ValueError(
            f"{shown(value)} is not of type {' or '.join(kind.__name__ for kind in kinds)}"
        )
    return value


def _items(value: Any) -> list[tuple[str, Any]]:
    return [(plain(str(key)), each) for key, each in _typed(value, dict).items()]


def _position(row: Any) -> DevicePosition:
    number, x, y, z, core = (_coordinate(part) for part in _typed(row, list))
    return number, x, y, z, core


def _coordinate(value: Any) -> int:
    """Return the number of a slice, a chip along a dimension, or a core of a device."""
    number: int = _typed(value, int)
    if not 0 <= number < 2**31:
        raise ValueError(f"{shown(value)} is no coordinate of a device: 0 to {2**31 - 1}")
    return number


def _memory(value: Any) -> MemoryReport:
    facts = dict(_items(value))
    missing = [each.name for each in fields(MemoryReport) if each.default is MISSING]
    for name in missing:
        if name not in facts:
            raise ValueError(f"memory has no {name!r}")
    known = {each.name: facts.get(each.name, each.default) for each in fields(MemoryReport)}
    exact = _typed(known.pop("exact"), bool)
    return MemoryReport(**{name: _size(fact) for name, fact in known.items()}, exact=exact)


def _until(value: Any) -> Until:
    return check_until(_typed(value, str))


def _number(value: Any) -> float | None:
    """Return seconds or FLOPs. Raise ValueError for what is none: text, negative, not finite."""
    if value is None:
        return None
    number = _typed(value, int, float)
    if isinstance(value, bool) or not 0 <= number <= MOST:
        raise ValueError(f"{shown(value)} is no number from 0 to {MOST:.0e}")
    return float(number)


def _size(value: Any) -> int:
    """Return the size of a mesh axis, or bytes. Raise ValueError unless it is a whole number."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MOST:
        raise ValueError(f"{shown(value)} is no whole number from 0 to {MOST:.0e}")
    return value
